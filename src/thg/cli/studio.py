"""thg studio: plain CFG and thg side by side in the browser."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from thg.cli import pipelines
from thg.errors import THGError
from thg.models import SHIPPED
from thg.models.pretrained import is_single_file
from thg.profiles.profile import Profile
from thg.studio.app import WAITING, create_app
from thg.studio.engine import Engine
from thg.studio.gate import Gate
from thg.studio.jobs import Worker
from thg.studio.model import Model

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

        worker = Worker(WAITING)
        _serve(create_app(engine, host=name, token=token, worker=worker), listener, ready, worker.close)
    _say("the studio has closed")
    if not worker.stop():
        os._exit(0)  # a large network is in the middle of a call, and nothing is left to be written
    return 0


def load(args: argparse.Namespace) -> Model:
    """The pipeline with its profile, and the Python code that loads it in the same way."""
    profile = Profile.load(args.profile) if args.profile else None
    pipe = pipelines.load(args)
    source = _source(args, pipe)
    if args.model not in SHIPPED:
        return Model(pipe, Path(args.model).name, source, profile=profile)
    shipped = SHIPPED[args.model]
    return Model(
        pipe,
        f"shipped {args.model} model",
        source,
        guidance_scale=shipped.guidance_scale,
        steps=shipped.steps,
        batch=4,  # small results: larger batches use the device better
        examples=shipped.examples,
        objection=shipped.objection,
        call=shipped.call,
        profile=profile,
    )


def _source(args: argparse.Namespace, pipe: Any) -> tuple[str, ...]:
    """The Python code that loads the same pipeline."""
    place, precision = str(pipe.device), str(pipe.dtype)
    if args.model in SHIPPED:
        arguments = "" if place == "cpu" else f", device={place!r}"
        arguments += "" if precision == "torch.float32" else f", dtype={precision}"
        loading = [f"pipe = thg.shipped_pipeline({args.model!r}{arguments})"]
    else:
        single = is_single_file(args.model)
        name = type(pipe).__name__ if single else "DiffusionPipeline"
        given = {"config": args.config, "variant": args.variant}
        options = [f"{option}={value!r}" for option, value in given.items() if value is not None]
        if not single:  # diffusers needs these for components missing from the folder
            absent = [part for part, value in pipe.components.items() if value is None]
            options += [f"{part}=None" for part in sorted(set(absent) - set(pipe._optional_components))]
        how = ", ".join([repr(args.model), f"torch_dtype={precision}", *options])
        loading = [
            f"from diffusers import {name}",
            f"pipe = {name}.{'from_single_file' if single else 'from_pretrained'}({how}).to({place!r})",
        ]
    for number, (path, _) in enumerate(args.lora):
        where = f"{str(path.parent)!r}, weight_name={path.name!r}"
        loading.append(f'pipe.load_lora_weights({where}, adapter_name="lora_{number}")')
    if args.lora:
        names = [f"lora_{number}" for number in range(len(args.lora))]
        loading.append(f"pipe.set_adapters({names}, {[scale for _, scale in args.lora]})")
    return tuple(loading)


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


def _serve(app: Gate, listener: socket.socket, ready: Callable[[], None], closing: Callable[[], None]) -> None:
    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            closing()  # open streams would keep the server waiting
            self.should_exit = True

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            ready()

    config = uvicorn.Config(
        app, log_level="error", server_header=False, timeout_graceful_shutdown=1, timeout_keep_alive=30, ws="none"
    )
    Server(config).run(sockets=[listener])
