"""Real ComfyUI, headless: these tests run in the environment that comfyui/install.py makes."""

from __future__ import annotations

import importlib.util
import logging
import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, os.environ["COMFYUI"])
torch.set_num_threads(1)

import stubs  # noqa: E402

stubs.install()
import comfy.options  # noqa: E402

comfy.options.enable_args_parsing()
arguments, sys.argv = sys.argv, [sys.argv[0], "--cpu"]
import comfy.cli_args  # noqa: E402

sys.argv = arguments
import comfy.utils  # noqa: E402

comfy.utils.set_progress_bar_enabled(False)
logging.getLogger().setLevel(logging.WARNING)


def load_pack():
    """The pack as ComfyUI imports it: a folder, under a name of its own."""
    folder = HERE.parent / "tortoise_hare_guidance"
    places = [str(folder)]
    spec = importlib.util.spec_from_file_location("pack", folder / "__init__.py", submodule_search_locations=places)
    module = importlib.util.module_from_spec(spec)
    sys.modules["pack"] = module
    spec.loader.exec_module(module)


load_pack()
from http_server import Server  # noqa: E402
from shipped import Flux, Shipped  # noqa: E402


@pytest.fixture(scope="session")
def eps():
    return Shipped.load("eps")


@pytest.fixture(scope="session")
def flow():
    return Shipped.load("flow")


@pytest.fixture(scope="session")
def emoji():
    return Shipped.load("emoji")


@pytest.fixture(scope="session")
def flux():
    return Flux()


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("comfyui"))
    yield server
    server.stop()
