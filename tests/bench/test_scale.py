"""Several processes on one store: killed in the middle of sampling, and the same bytes in the end."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import rehearsal
from tests.bench.runs import config_in, pictures, quietly, save_model, values
from thg.bench.store import BenchmarkRun

COUNT, STEPS = 2, 12


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One batch for two processes, and a method that is calibrated."""
    folder = tmp_path_factory.mktemp("scale")
    save_model(folder)
    methods = [
        {"name": "CFG", "policy": "cfg"},
        {"name": "THG", "policy": "thg", "rho": 1.1, "calibrate": 4},
        {"name": "thg uniform", "policy": "uniform", "nfe": STEPS + 6},
    ]
    given = values(
        count=COUNT,
        steps=STEPS,
        batch_size=COUNT,
        metrics=["psnr", "judge_accuracy"],
        model={"source": str(folder / "model"), "call": {"height": 32, "width": 32}},
        methods=methods,
    )
    (folder / "bench.toml").write_text(rehearsal.toml(given))
    return folder


def wait_for(home: Path, pattern: str, going: Callable[[], bool]) -> None:
    give_up = time.monotonic() + rehearsal.PATIENCE
    while not list(home.glob(pattern)):
        assert going(), f"ended before {pattern} was there"
        assert time.monotonic() < give_up, f"two processes hang before {pattern}"
        time.sleep(0.005)


@pytest.mark.slow
def test_two_processes_killed_while_they_sample_end_with_the_bytes_of_one(home):
    """There are fewer batches than processes: one has nothing to sample, and must not wait for the other."""
    launcher, most = rehearsal.launch(home), 0

    def going() -> bool:
        nonlocal most
        most = max(most, len(rehearsal.workers(launcher)))
        return launcher.poll() is None

    wait_for(home, "store/series/*/samples/*.json", going)
    assert most == 2  # what the documentation's command promises, also without a GPU; one may be done already
    for worker in rehearsal.workers(launcher):
        os.kill(worker.pid, signal.SIGKILL)
    launcher.communicate(timeout=rehearsal.PATIENCE)
    assert launcher.returncode != 0
    assert not (home / "run" / "report.md").exists()
    assert "| THG |" in rehearsal.finish(home)
    run = BenchmarkRun.stored(home / "run")
    assert not run.missing_samples()
    assert (home / "run" / "sheet.png").exists()
    quietly(config_in(home, **run.config.source), home / "one")
    assert pictures(home / "run") == pictures(home / "one")
