"""A tiny real pipeline, and a studio around it on a real socket."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

pytest.importorskip("diffusers", reason="the studio needs diffusers")
pytest.importorskip("fastapi", reason="the studio needs fastapi")
uvicorn = pytest.importorskip("uvicorn", reason="the studio needs uvicorn")
httpx = pytest.importorskip("httpx", reason="these tests speak HTTP by httpx")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the import, which happens once for all tests
    import diffusers
    import transformers

diffusers.utils.logging.set_verbosity(logging.ERROR)
transformers.utils.logging.set_verbosity(logging.ERROR)
torch.set_num_threads(1)

if TYPE_CHECKING:
    from thg.studio.engine import Engine
    from thg.studio.model import Model

HERE = Path(__file__).parent

KNOWN_WARNINGS = (
    "ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning",  # numpy on a scheduler's tensor
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for warning in KNOWN_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@dataclass(frozen=True)
class Running:
    """A studio that is up."""

    url: str
    engine: Engine

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **settings)


@contextmanager
def serve(engine: Engine, **settings: Any) -> Iterator[Running]:
    """The studio on a free port, in a thread."""
    from thg.studio.app import create_app

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
    from tests.studio.tiny import tiny_stable_diffusion
    from thg.studio.model import Model

    return Model(
        tiny_stable_diffusion(),
        "tiny",
        ("from tests.studio.tiny import tiny_stable_diffusion", "pipe = tiny_stable_diffusion()"),
        guidance_scale=5.0,
        steps=20,
        examples=("a dark coat",),
    )


@pytest.fixture
def engine(model: Model) -> Engine:
    from thg.studio.engine import Engine

    return Engine(model)


@pytest.fixture(scope="session")
def studio(model: Model) -> Iterator[Running]:
    from thg.studio.engine import Engine

    with serve(Engine(model)) as running:
        yield running


@pytest.fixture(scope="session")
def profiled_model(model: Model) -> Model:
    """The same pipeline with a profile, as calibration would have measured it on a smooth model."""
    import numpy as np

    from thg.profile import About, Moments, Profile
    from thg.studio.model import Model

    steps = 20
    about = About("StableDiffusionPipeline", "", "tiny", "DDIMScheduler", "epsilon", 1, steps, 5.0, 0, "2025-01-01")
    at = np.linspace(0, 1, steps - 1)

    def moments(curve: np.ndarray) -> Moments:
        return Moments.of(curve * np.array([[0.9], [1.0], [1.1]]))

    terms = np.exp(-np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) / 8)
    profile = Profile(
        about,
        times=np.linspace(951, 1, steps),
        noise=np.linspace(0.95, 0.0, steps + 1),
        middle=np.linspace(0.92, 0.05, steps - 1),
        tortoise=moments(0.5 + 4 * (at - 0.4) ** 2),
        hare=moments(0.08 + 0.3 * np.exp(-6 * at)),
        tortoise_rate=moments(3 + 20 * (at - 0.4) ** 2),
        hare_rate=moments(0.4 + 2 * np.exp(-6 * at)),
        gram=3 * terms,
    )
    return Model(model.pipe, "tiny", model.source, guidance_scale=5.0, steps=steps, profile=profile)
