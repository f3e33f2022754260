"""Every example runs, on the shipped models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
ALONE = sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py") if path.name != "multi_gpu.py")


def run(command: list[str], folder: Path) -> str:
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ALONE)
def test_example(name, tmp_path):
    shown = run([sys.executable, str(EXAMPLES / name), "--shipped"], tmp_path)
    if name == "modular_guider.py":
        assert (tmp_path / "modular.png").stat().st_size > 0
    else:
        assert "evaluations" in shown


def test_multi_gpu_example_with_two_processes(tmp_path):
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    shown = run([*launch, str(EXAMPLES / "multi_gpu.py"), "--shipped"], tmp_path)
    assert "process 0: a bag, 13 evaluations" in shown
    assert "process 1: a light dress, 13 evaluations" in shown
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [f"{i:05d}.png" for i in range(4)]
