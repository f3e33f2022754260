"""thg studio: plain CFG and thg side by side in the browser."""

from __future__ import annotations

import argparse
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from thg.cli import pipelines
from thg.errors import THGError
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE, EXAMPLE_PROMPTS
from thg.profiles.profile import Profile
from thg.studio.app import create_app
from thg.studio.engine import Engine
from thg.studio.gate import Gate
from thg.studio.model import Model
from thg.studio.specs import MAX_BATCH

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")


def run(args: argparse.Namespace) -> int:
    with _listen(args.host or LOOPBACK, args.port) as listener:
        engine = Engine(load(args))
        token = secrets.token_urlsafe(16) if args.host else None
        name = socket.gethostname() if args.host in EVERYWHERE else args.host
        address = _address(name or LOOPBACK, listener.getsockname()[1], token)

        def ready() -> None:
            _say(f"the studio is open: {address}  (Ctrl-C closes it)")
            if not args.no_browser:
                webbrowser.open(address)

        _serve(create_app(engine, host=name, token=token), listener, ready)
    return 0


def load(args: argparse.Namespace) -> Model:
    """The pipeline with its profile, and the Python code that loads it in the same way."""
    profile = Profile.load(args.profile) if args.profile else None
    shipped = args.model in pipelines.SHIPPED
    pipe = pipelines.load(args)
    place, precision = str(pipe.device), str(pipe.dtype)
    if not shipped:
        absent = [
            name for name, part in pipe.components.items() if part is None and name not in pipe._optional_components
        ]
        without = "".join(
            f", {name}=None" for name in sorted(absent)
        )  # diffusers needs these for components missing from the folder
        loaded = f"DiffusionPipeline.from_pretrained({args.model!r}, torch_dtype={precision}{without}).to({place!r})"
        source = ("from diffusers import DiffusionPipeline", f"pipe = {loaded}")
        return Model(pipe, Path(args.model).name, source, profile=profile)
    arguments = "" if place == "cpu" else f", device={place!r}"
    arguments += "" if precision == "torch.float32" else f", dtype={precision}"
    return Model(
        pipe,
        f"shipped {args.model} model",
        (f"pipe = thg.shipped_pipeline({args.model!r}{arguments})",),
        guidance_scale=DEFAULT_GUIDANCE[args.model],
        steps=pipelines.DEFAULT_STEPS[args.model],
        batch=MAX_BATCH,  # small pictures: larger batches use the device better
        examples=EXAMPLE_PROMPTS,
        call=DEFAULT_CALL[args.model],
        profile=profile,
    )


def _say(text: str) -> None:
    print(text, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """Opens the port; before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise THGError(f"cannot listen on {host}, port {port} ({error}); --port 0 takes any free port") from error


def _address(host: str, port: int, token: str | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _serve(app: Gate, listener: socket.socket, ready: Callable[[], None]) -> None:
    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app, log_level="warning", server_header=False, timeout_graceful_shutdown=2, timeout_keep_alive=30, ws="none"
    )
    try:
        Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        _say("the studio has closed")
