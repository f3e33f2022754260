"""A tiny real pipeline, a studio around it on a real socket, and a real browser in front of it."""

from __future__ import annotations

import logging
import os
import shutil
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

from tests.studio.browsing import DESKTOP, WAIT

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
    from thg.profiles.profile import Profile
    from thg.studio.engine import Engine
    from thg.studio.jobs import Worker
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
    engine: Any

    def client(self, **settings: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **settings)


@contextmanager
def serve(engine: Engine, *, port: int = 0, worker: Worker | None = None, **settings: Any) -> Iterator[Running]:
    """The studio on a free port, in a thread."""
    from thg.studio.app import WAITING, create_app
    from thg.studio.jobs import Worker

    worker = worker or Worker(WAITING)
    app = create_app(engine, worker, **settings)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", ws="none", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Running(f"http://127.0.0.1:{port}", engine)
    finally:
        worker.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Waits for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def command_model(*options: str) -> Model:
    """The model as `thg studio` with these options loads it."""
    from thg.cli import studio
    from thg.cli.parser import command_line

    return studio.load(command_line().parse_args(["studio", *options]))


@pytest.fixture(scope="session")
def model() -> Model:
    from tests.studio.tiny import tiny_stable_diffusion
    from thg.models import ShippedModel
    from thg.studio.model import Model

    return Model(
        tiny_stable_diffusion(),
        "tiny",
        ("from tests.studio.tiny import tiny_stable_diffusion", "pipe = tiny_stable_diffusion()"),
        shipped=ShippedModel(steps=20, guidance_scale=5.0, examples=("a dark coat",)),
    )


@pytest.fixture(scope="session")
def studio(model: Model) -> Iterator[Running]:
    from tests.studio.holding import WatchedEngine

    with serve(WatchedEngine(model)) as running:
        yield running


@pytest.fixture(scope="session")
def profile(model: Model) -> Profile:
    """Of the tiny model, really measured."""
    import thg

    prompts = ["a dark coat", "a light bag"]
    return thg.calibrate(model.pipe, prompts, steps=20, guidance_scale=5.0, algorithm3=True, progress=False)


@pytest.fixture(scope="session")
def profiled_model(model: Model, profile: Profile) -> Model:
    from thg.studio.model import Model

    return Model(model.pipe, "tiny", model.source, shipped=model.shipped, profile=profile)


# -- the browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
Open = Callable[..., Any]
SHORT = "/#plan=default&nfe=0.65"  # in the few steps of these tests the default leaves nothing out


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    sync_api.expect.set_options(timeout=WAIT)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser: Any, studio: Running) -> Iterator[Open]:
    """Opens the page in a fresh profile; afterwards the console must be free of errors and all requests our own."""
    contexts, wrong, asked = [], [], []

    def open_page(path: str = SHORT, url: str = studio.url, viewport: dict[str, int] = DESKTOP, **settings: Any) -> Any:
        context = browser.new_context(viewport=viewport, **settings)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(url + path)
        page.wait_for_selector("body[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []
    assert asked
    assert all(address.startswith(("http://127.0.0.1:", "blob:http://127.0.0.1:")) for address in asked)


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: the folder that THG_STUDIO_SHOTS names, if it names one."""
    folder = Path(os.environ.get("THG_STUDIO_SHOTS") or tmp_path_factory.mktemp("shots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder
