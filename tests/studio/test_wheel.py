"""The page is in the wheel, and a studio from the wheel serves it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import thg

ROOT = Path(__file__).parents[2]
STATIC = Path(thg.__file__).parent / "studio" / "static"

SERVE = """
import asyncio, hashlib, json, sys, httpx, thg
from fastapi import FastAPI
from thg.studio import pages

app = FastAPI()
pages.add_to(app)

async def fetch():
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answers = {name: await client.get(f"/static/{name}") for name in sys.argv[1:]}
    return {name: [answer.status_code, hashlib.sha256(answer.content).hexdigest()] for name, answer in answers.items()}

print(json.dumps([thg.__file__, asyncio.run(fetch())]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--quiet", "--wheel-dir", str(folder), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "hatchling" in built.stderr:
        pytest.skip("the build backend cannot be installed here")
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("thg-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


@pytest.mark.slow
def test_a_studio_from_the_wheel_serves_the_page(unpacked, tmp_path):
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}
    assert {"index.html", "token.html", "icon.svg", "js/main.js", "css/base.css"} <= set(files)
    served = subprocess.run(
        [sys.executable, "-c", SERVE, *files],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(unpacked)},
        capture_output=True,
        text=True,
        check=True,
    )
    package, answers = json.loads(served.stdout.splitlines()[-1])
    assert Path(package).is_relative_to(unpacked)
    assert answers == {name: [200, hashlib.sha256(path.read_bytes()).hexdigest()] for name, path in files.items()}
