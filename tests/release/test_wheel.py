"""Wheel and source distribution: what is in them, and that the wheel works where there is no source tree.

The environment is new, and thg in it comes from the wheel alone. Everything else it borrows from this environment by a
path file, because a second torch would take gigabytes and minutes; what such a line adds is a folder, whose own path
files (the editable install of thg is one) are not followed.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from PIL import Image

import thg
from thg.models import SHIPPED

pytest.importorskip("hatchling", reason="the build backend is not installed; write pip install hatchling")

ROOT = Path(__file__).parents[2]
LARGE = 1_000_000
LIMIT = 60_000_000
pytestmark = pytest.mark.slow


COMMANDS = """
import runpy, sys
import pytest, thg
from thg.cli import main

print(thg.__file__)
sys.argv = ["thg", "--version"]
try:
    runpy.run_module("thg", run_name="__main__")  # python -m thg
except SystemExit as end:
    assert not end.code

assert main(["doctor"]) == 0
assert main(["generate", "panda", "--steps", "4", "-o", "panda.png"]) == 0
assert main(["compare", "a loud low trumpet note", "--model", "audio", "--steps", "4", "-o", "sheet.png"]) == 0
assert pytest.main(["-q", "-p", "no:cacheprovider", "tests/core/test_plan.py"]) == 0
"""  # in one process, which imports torch and diffusers once
STATIC = ROOT / "src" / "thg" / "studio" / "static"
SERVE = """
import asyncio, hashlib, json, sys, httpx, thg
from fastapi import FastAPI
from thg.studio.app import add_page

app = FastAPI()
add_page(app)

async def fetch():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answers = {name: await client.get(f"/static/{name}") for name in sys.argv[1:]}
    return {name: [answer.status_code, hashlib.sha256(answer.content).hexdigest()] for name, answer in answers.items()}

print(json.dumps([thg.__file__, asyncio.run(fetch())]))
"""


def build(source: Path, out: Path, *words: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out), *words],
        cwd=source,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    (wheel,), (source,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, source


def test_what_is_in_the_wheel(built):
    wheel, _ = built
    assert wheel.stat().st_size < LIMIT
    with zipfile.ZipFile(wheel) as archive:
        sizes = {item.filename: item.file_size for item in archive.infolist()}
    assert {name.partition("/")[0].partition("-")[0] for name in sizes} == {"thg", "tortoise_hare_guidance"}
    assert not [name for name in sizes if "__pycache__" in name or Path(name).name.startswith(".")]
    large = [name for name, size in sizes.items() if size > LARGE]
    assert all(name.startswith("thg/models/") and name.endswith(".safetensors") for name in large), large
    package = ROOT / "src" / "thg"
    expected = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    missing = {f"thg/{path.relative_to(package)}" for path in expected} - set(sizes)
    assert not missing
    for needed in (
        *(f"thg/models/{name}/model_index.json" for name in SHIPPED),
        *(f"thg/models/{name}.safetensors" for name in ("judge", "emoji_judge", "sound_judge", "sound_reference")),
        *("thg/studio/static/index.html", "thg/bench/shipped.toml", "thg/py.typed"),
    ):
        assert sizes[needed] >= (0 if needed.endswith("py.typed") else 100)
    assert any(name.endswith("licenses/LICENSE") for name in sizes)


def test_the_source_distribution_makes_the_same_wheel(built, tmp_path):
    wheel, source = built
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert (unpacked / "tests" / "core").is_dir()
    build(unpacked, tmp_path / "again", "-t", "wheel")
    (again,) = (tmp_path / "again").iterdir()
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert first.namelist() == second.namelist()
        assert all(first.read(name) == second.read(name) for name in first.namelist())


def test_a_studio_from_the_wheel_serves_the_page(built, tmp_path):
    with zipfile.ZipFile(built[0]) as archive:
        archive.extractall(tmp_path / "site")
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
    assert {"index.html", "token.html", "icon.svg", "js/main.js", "css/base.css"} <= set(files)
    served = subprocess.run(
        [sys.executable, "-c", SERVE, *files],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    package, answers = json.loads(served.stdout.splitlines()[-1])
    assert Path(package).is_relative_to(tmp_path / "site")
    assert answers == {name: [200, hashlib.sha256(path.read_bytes()).hexdigest()] for name, path in files.items()}


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The programs of a new environment with the wheel in it."""
    place = tmp_path_factory.mktemp("installed") / "env"
    venv.create(place)
    python = place / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index", str(built[0])]
    subprocess.run([sys.executable, *install], check=True, capture_output=True)
    (packages,) = place.glob("lib/python*/site-packages")
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return place / "bin"


@pytest.mark.skipif(os.name == "nt", reason="the layout of environments is another one")
def test_the_installed_package_works_without_the_source_tree(installed, tmp_path):
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__", "studio"))
    commands = [["thg", "--help"], ["python", "-c", COMMANDS]]
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    settings |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [str(installed / words[0]), *words[1:]],
            cwd=tmp_path,
            env=settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for words in commands
    ]
    shown = [process.communicate(timeout=300)[0] for process in running]
    for process, text in zip(running, shown, strict=True):
        assert process.returncode == 0, text
    assert "generate" in shown[0]
    place, version = str(installed.parent), f"thg {thg.__version__}"
    for expected in (place, version, "shipped model flow", "network evaluations instead of 8", "passed"):
        assert expected in shown[1]
    for name in ("panda.png", "sheet.png"):
        with Image.open(tmp_path / name) as picture:
            picture.load()
