"""Stopped in the middle, politely (SIGINT) or not (SIGKILL): no broken file, and the same bytes after going on.

Training that is killed is tried in tests/models, several processes of which one is killed in tests/bench and
tests/calibrate. Here are the commands.
"""

import os
import signal
import time
from pathlib import Path

import pytest
from PIL import Image

from tests.bench.runs import pictures, records
from tests.forked import PATIENCE, finish
from tests.release.commands import start

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")

CALIBRATE = ("calibrate", "--out", "profile.json", "--steps", 5, "--samples", 6, "--batch-size", 1, "--sensitivity", 1)
BENCH = ("bench", "--config", "bench.toml", "--out", "run")
FINISHED = {"calibrate": "profile.json.parts/samples-*", "bench": "store/series/*/samples/*.json"}  # parts of the work
CONFIG = """
title = "killed"
steps = 5
guidance_scale = 5.0
count = 12
batch_size = 2
metrics = ["psnr"]
model = { shipped = "eps" }
[[methods]]
name = "CFG"
policy = "cfg"
[[methods]]
name = "thg"
policy = "uniform"
nfe = 7
"""


def wait_until(process, there) -> None:
    """Until `there()` holds; the process must still be at work then."""
    give_up = time.monotonic() + PATIENCE
    while not there():
        assert process.is_alive(), f"ended too soon, with exit code {process.exitcode}"
        assert time.monotonic() < give_up
        time.sleep(0.005)
    assert process.is_alive()


def result(folder: Path) -> dict[str, bytes]:
    """What a command has made, without what depends on the clock."""
    if (folder / "run").exists():
        return {**pictures(folder / "run"), **records(folder / "run")}
    return {"profile.json": (folder / "profile.json").read_bytes()}


@pytest.mark.parametrize("words", [CALIBRATE, BENCH], ids=["calibrate", "bench"])
def test_stopped_twice_and_resumed_it_ends_in_the_same_bytes(words, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
        (folder / "bench.toml").write_text(CONFIG)
    straight = start(whole, *words)
    done = 0
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        broken = start(cut, *words)
        wait_until(broken, lambda before=done: len(list(cut.glob(FINISHED[words[0]]))) >= before + 2)
        os.kill(broken.pid, how)
        assert finish(broken) == code
        assert not (cut / "profile.json").exists()
        assert not (cut / "run" / "report.md").exists()
        if how == signal.SIGINT:
            shown = (cut / "err.txt").read_text()
            assert shown.splitlines()[-1] == f"thg {words[0]}: interrupted"
            assert "Traceback" not in shown
            assert not [path for path in cut.rglob(".*") if path.is_file()]
        done = len(list(cut.glob(FINISHED[words[0]])))
    assert finish(straight) == 0
    assert finish(start(cut, *words)) == 0
    assert result(cut) == result(whole)


@pytest.mark.parametrize(
    "words",
    [
        ("generate", "a bag", "--steps", 900, "--count", 9, "-o", "out.png", "--force"),
        ("compare", "a bag", "--steps", 900, "-o", "out.png", "--force"),
        ("demo", "--steps", 900, "-o", "out.png", "--force"),
    ],
    ids=lambda words: words[0],
)
def test_interrupted_while_it_makes_pictures(words, tmp_path):
    Image.new("L", (4, 4)).save(tmp_path / "out.png")
    before = (tmp_path / "out.png").read_bytes()
    process = start(tmp_path, *words)
    time.sleep(1.5)
    assert process.is_alive()
    os.kill(process.pid, signal.SIGINT)
    assert finish(process) == 130
    shown = (tmp_path / "err.txt").read_text()
    assert shown.rstrip().endswith(f"thg {words[0]}: interrupted")
    assert "Traceback" not in shown
    assert (tmp_path / "out.png").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["err.txt", "out.png", "out.txt"]
