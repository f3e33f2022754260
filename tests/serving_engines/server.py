"""A real server as a process of its own, and requests to it."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
IMAGES = "/v1/images/generations"
STARTS_WITHIN = 1800  # seconds: almost all of it are imports, a minute on a free machine
ANSWERS_WITHIN = 600
WRITES_WITHIN = 30  # a line in the log, after an answer
CLOSE = 35.0  # dB
USUAL = {"num_inference_steps": 28}  # of Stable Diffusion 3, where little more than half is needed
COLOUR = {  # a request for the shipped model of emoji
    "prompt": "smiling face with sunglasses",
    "num_inference_steps": 30,
    "guidance_scale": 5.0,
    "size": "64x64",
}


@dataclass
class Server:
    address: str
    log: Path
    pid: int

    def ask(self, path: str, content: dict[str, Any] | None = None) -> tuple[bytes, Message]:
        """An answer and its headers."""
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN) as answer:
            return answer.read(), answer.headers

    def picture(self, **settings: Any) -> np.ndarray:
        """The picture of a request: rows, columns, three colours between 0 and 1."""
        answer = json.loads(self.ask(IMAGES, settings)[0])
        with Image.open(io.BytesIO(base64.b64decode(answer["data"][0]["b64_json"]))) as image:
            return np.asarray(image.convert("RGB"), dtype=np.float64) / 255

    def reports(self, at_least: int = 0) -> list[tuple[int, int, str]]:
        """(evaluations, those of the plain run, steps) of each accelerated request, from the log of all ranks.

        at_least: so many are waited for; a rank that sends no answer may write its line after it.
        """
        line = r"thg: request \S+: (\d+) of (\d+) network evaluations in \d+ steps ([●○·]+)"
        until = time.monotonic() + WRITES_WITHIN
        while len(found := re.findall(line, self.log.read_text())) < at_least and time.monotonic() < until:
            time.sleep(0.1)
        return [(int(made), int(plain), strip) for made, plain, strip in found]


@contextmanager
def served(command: list[str], folder: Path, health: str, **environment: str) -> Iterator[Server]:
    """A server on a free port of this machine. command: ends where the port is expected."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))  # its processes import thg and vllm_cpu.py from here
    settings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **environment}
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *command, str(port)], stdout=log, stderr=log, env=settings, cwd=folder
        )
    server = Server(f"http://127.0.0.1:{port}", folder / "server.log", process.pid)
    try:
        _wait(server, process, health)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(server: Server, process: subprocess.Popen[bytes], health: str) -> None:
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until and process.poll() is None:
        try:
            server.ask(health)
            return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(2)
    raise AssertionError(f"the server did not start:\n{server.log.read_text()[-4000:]}")


def decibels(found: np.ndarray, expected: np.ndarray) -> float:
    """PSNR."""
    error = float(np.mean((found - expected) ** 2))
    return float("inf") if error == 0 else -10 * float(np.log10(error))


def same_picture(
    server: Server, plain: dict[str, Any], asked: dict[str, Any], evaluations: int, share: float = 0.75
) -> tuple[np.ndarray, np.ndarray]:
    """The pictures of two requests, the second of which must cost less and give the same picture.

    evaluations: of the plain one. share: of them that the other may need. What is found is printed (`pytest -rP` shows
    it).
    """
    before = len(server.reports())
    expected, found = server.picture(**plain), server.picture(**asked)
    ((made, of, strip), *_) = reports = server.reports()[before:]
    print(f"{made} of {of} evaluations {strip}, {decibels(found, expected):.1f} dB")
    assert len(set(reports)) == 1
    assert made <= share * of
    assert of == evaluations
    assert decibels(found, expected) > CLOSE
    return expected, found


def metric(server: Server, name: str) -> float:
    """The value of a counter of the metrics endpoint."""
    text = server.ask("/metrics")[0].decode()
    return float(re.search(rf"^{name}_total(?:{{.*}})? (\S+)", text, re.MULTILINE)[1])
