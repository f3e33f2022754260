"""A tiny real pipeline, and a studio around it on a real socket."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

pytest.importorskip("diffusers")
pytest.importorskip("fastapi")
uvicorn = pytest.importorskip("uvicorn")

import torch  # noqa: E402
from tiny import tiny_stable_diffusion  # noqa: E402

from thg.studio.app import create_app  # noqa: E402
from thg.studio.engine import Engine  # noqa: E402
from thg.studio.model import Model  # noqa: E402


@dataclass(frozen=True)
class Running:
    """A studio that is up."""

    url: str
    engine: Engine

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=30, trust_env=False)


@contextmanager
def serve(engine: Engine, **settings: Any) -> Iterator[Running]:
    """The studio on a free port, in a thread."""
    app = create_app(engine, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", engine)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture(scope="session")
def model() -> Model:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    return Model(
        tiny_stable_diffusion(),
        "tiny",
        ("from tiny import tiny_stable_diffusion", "pipe = tiny_stable_diffusion()"),
        guidance_scale=5.0,
        steps=20,
        examples=("a dark coat",),
    )


@pytest.fixture
def engine(model: Model) -> Engine:
    return Engine(model)


@pytest.fixture(scope="session")
def studio(model: Model) -> Iterator[Running]:
    with serve(Engine(model)) as running:
        yield running
