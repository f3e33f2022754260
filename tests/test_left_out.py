"""The suite itself: what a machine lacks is named at the end, and bfloat16 never stops the tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = """
import os, pytest

def test_runs():
    pass

@pytest.mark.skip(reason="chromium is not installed")
@pytest.mark.parametrize("page", [1, 2])
def test_needs_a_browser(page):
    pass

@pytest.mark.parametrize("dtype", ["torch.bfloat16", "torch.float32"])
def test_precision(dtype):
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == {expected!r}
"""
DIES = """
import os, signal, sys
if any("torch.bfloat16" in word for word in sys.orig_argv) and {dies}:
    os.kill(os.getpid(), signal.SIGILL)
"""
WITHOUT_THE_SETTING = "'ONEDNN_MAX_CPU_ISA' not in os.environ"


pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGILL"), reason="there is no SIGILL here")


def run_suite(folder: Path, expected: str | None, dies: str) -> str:
    """Runs a small suite with the conftest of this one; `dies`: when the child that probes bfloat16 is killed."""
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (folder / "test_some.py").write_text(TESTS.format(expected=expected))
    (folder / "sitecustomize.py").write_text(DIES.format(dies=dies))
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    settings.pop("ONEDNN_MAX_CPU_ISA", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "test_some.py"]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.partition("left out")[2]


def test_what_was_left_out_is_said_at_the_end(tmp_path):
    shown = run_suite(tmp_path, expected=None, dies="True")
    assert "2 tests: chromium is not installed" in shown
    assert "1 tests: bfloat16 stops the process on this CPU" in shown


def test_bfloat16_runs_with_fewer_instructions_where_the_cpu_stops_it(tmp_path):
    shown = run_suite(tmp_path, expected="AVX512_CORE_BF16", dies=WITHOUT_THE_SETTING)
    assert "2 tests: chromium is not installed" in shown
    assert "bfloat16" not in shown
