"""Several processes on one store: killed in the middle of sampling and of measuring, and the same bytes in the end."""

import os
import signal
import time

import pytest
from PIL import Image

from tests.bench import rehearsal
from tests.bench.runs import config_in, pictures, quietly, save_model, values
from thg.bench.stages import Run

COUNT, STEPS, REFERENCES = 2, 12, 1500


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One batch for two processes, a method that is calibrated, and many references."""
    folder = tmp_path_factory.mktemp("scale")
    save_model(folder)
    (folder / "references").mkdir()
    for number in range(REFERENCES):
        Image.new("L", (32, 32), number % 256).save(folder / "references" / f"{number}.png")
    methods = [
        {"name": "CFG", "policy": "cfg"},
        {"name": "THG", "policy": "thg", "rho": 1.1, "calibrate": 4},
        {"name": "thg uniform", "policy": "uniform", "nfe": STEPS + 6},
    ]
    given = values(
        count=COUNT,
        steps=STEPS,
        batch_size=COUNT,
        metrics=["psnr", "judge_frechet"],
        model={"source": str(folder / "model"), "call": {"height": 32, "width": 32}},
        references={"folder": "references"},
        methods=methods,
    )
    (folder / "bench.toml").write_text(rehearsal.toml(given))
    return folder


@pytest.mark.slow
def test_two_processes_killed_while_they_sample_and_while_they_measure_end_with_the_bytes_of_one(home):
    """There are fewer batches than processes: one has nothing to sample, and must not wait for the other."""
    samples, measured = home / "store" / "series", home / "store" / "references"
    for stage, folder, pattern in (("sampling", samples, "*/samples/*.json"), ("measuring", measured, "*/*/*/*.saf*")):
        launcher = rehearsal.launch(home)
        give_up, most = time.monotonic() + rehearsal.PATIENCE, 0
        while not list(folder.glob(pattern)):
            most = max(most, len(rehearsal.workers(launcher)))
            assert launcher.poll() is None, launcher.communicate()[1][-2000:]
            assert time.monotonic() < give_up, f"two processes hang before {stage}"
            time.sleep(0.005)
        assert most == 2  # what the documentation's command promises, also without a GPU; one may be done already
        for worker in rehearsal.workers(launcher):
            os.kill(worker.pid, signal.SIGKILL)
        launcher.communicate(timeout=rehearsal.PATIENCE)
        assert launcher.returncode != 0
        assert not (home / "run" / "report.md").exists()
    out = rehearsal.finish(home)
    assert "| THG |" in out
    run = Run.stored(home / "run")
    assert not run.missing_samples()
    assert (home / "run" / "sheet.png").exists()
    quietly(config_in(home, **{**run.config.source, "references": {}}), home / "one")
    assert pictures(home / "run") == pictures(home / "one")
