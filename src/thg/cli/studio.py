"""thg studio: plain CFG and thg side by side in the browser."""

from __future__ import annotations

import argparse
import os
import secrets
import socket
import webbrowser
from collections.abc import Callable
from types import FrameType

import uvicorn

from thg.cli import options
from thg.errors import THGError
from thg.profiles.profile import Profile
from thg.studio.app import WAITING, create_app
from thg.studio.engine import Engine
from thg.studio.gate import Gate
from thg.studio.jobs import Worker
from thg.studio.model import Model

LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::")


def run(args: argparse.Namespace) -> int:
    if args.models is not None and not args.models.is_dir():
        raise THGError(f"--models {args.models}: there is no such folder")
    with _listen(args.host or LOOPBACK, args.port) as listener:
        engine = Engine(load(args), options.source(args), args.models)
        token = secrets.token_urlsafe(16) if args.host else None
        name = socket.gethostname() if args.host in EVERYWHERE else args.host
        address = _address(name or LOOPBACK, listener.getsockname()[1], token)

        def ready() -> None:
            _say(f"the studio is open: {address}  (Ctrl-C closes it)")
            if not args.no_browser:
                webbrowser.open(address)

        worker = Worker(WAITING)
        _serve(create_app(engine, worker, host=name, token=token), listener, ready, worker.close)
    _say("the studio has closed")
    if not worker.stop():
        os._exit(0)  # a large network is in the middle of a call, and nothing is left to be written
    return 0


def load(args: argparse.Namespace) -> Model:
    """The model that the studio starts with."""
    return Model.load(options.source(args), Profile.load(args.profile) if args.profile else None)


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
