"""thg studio: plain CFG and thg side by side in the browser."""

from __future__ import annotations

import argparse
import secrets
import socket
import webbrowser
from collections.abc import Callable
from typing import TYPE_CHECKING

from thg.errors import MissingExtraError, THGError

if TYPE_CHECKING:
    from thg.studio.gate import Gate

LOOPBACK = "127.0.0.1"
PORT = 7861


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="eps", help="eps or flow (shipped), a folder, or a name on the Hugging Face hub [eps]"
    )
    parser.add_argument("--profile", help="a profile of this model, written by thg calibrate")
    parser.add_argument("--device", help="cpu, cuda, mps ... [cuda where there is one, else cpu]")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--port", type=int, default=PORT, help=f"0 takes any free one [{PORT}]")
    parser.add_argument(
        "--host",
        help="listen to other machines, too, on this address; the studio then asks for a token [this one only]",
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and do not open it")


def run(args: argparse.Namespace) -> int:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("the studio needs fastapi and uvicorn; write pip install 'thg[studio]'") from error
    with _listen(args.host or LOOPBACK, args.port) as listener:
        from thg.studio.app import create_app
        from thg.studio.engine import Engine
        from thg.studio.model import load

        model = load(args.model, device=args.device, dtype=args.dtype, profile=args.profile, say=_say)
        engine = Engine(model)
        engine.warm_up()
        token = secrets.token_urlsafe(16) if args.host else None
        address = _address(args.host or LOOPBACK, listener.getsockname()[1], token)

        def ready() -> None:
            _say(f"{model.name} is ready: {address}  (Ctrl-C ends it)")
            if not args.no_browser:
                webbrowser.open(address)

        _serve(create_app(engine, host=args.host, token=token), listener, ready)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _listen(host: str, port: int) -> socket.socket:
    """Before the model is loaded, so that a port in use costs no waiting."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise THGError(f"cannot listen on {host}, port {port} ({error}); --port 0 takes any free port") from error


def _address(host: str, port: int, token: str | None) -> str:
    anywhere = host in ("0.0.0.0", "::")
    name = socket.gethostbyname(socket.gethostname()) if anywhere else f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _serve(app: Gate, listener: socket.socket, ready: Callable[[], None]) -> None:
    import uvicorn

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
