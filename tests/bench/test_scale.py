"""Several processes: `accelerate launch` with one of two killed in the middle, and the same bytes in the end."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytest.importorskip("accelerate", reason="the launcher belongs to accelerate")

from tests.bench.runs import pictures, quietly, save_model, values
from thg.bench.config import load_config
from thg.bench.report.measure import missing_samples
from thg.bench.store import RunFolder

COUNT = 16
STEPS = 16
PATIENCE = 600


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale")
    save_model(folder)
    given = values(count=COUNT, steps=STEPS, batch_size=2)
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items() if not isinstance(value, dict | list)]
    lines += ['metrics = ["psnr"]', "[model]", f'source = "{folder}/model"', "[prompts]", 'file = "prompts.txt"']
    lines += ["[[methods]]", 'name = "CFG"', 'policy = "cfg"']
    lines += ["[[methods]]", 'name = "CFG-Cache"', 'policy = "cfg-cache"', f"nfe = {STEPS + 8}"]
    (folder / "bench.toml").write_text("\n".join(lines))
    return folder


def launch(home, path):
    """`accelerate launch`, with two processes also where there are no two GPUs (it is what --multi_gpu does)."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    command += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command += ["-m", "thg", "bench", "--config", str(home / "bench.toml"), "--out", str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers(process):
    """The processes that run thg itself, below the launcher."""
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        words = child.cmdline()
        if "thg" in words and "bench" in words and "accelerate.commands.launch" not in words:
            found.append(child)
    return found


def done(path):
    return len(list((path / "samples").rglob("*.json"))) if (path / "samples").exists() else 0


@pytest.mark.slow
def test_two_processes_one_killed_in_the_middle_end_with_the_bytes_of_one(home):
    path = home / "two"
    process = launch(home, path)
    give_up = time.monotonic() + PATIENCE
    while done(path) < 6 and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)
    assert process.poll() is None, process.communicate()[1][-2000:]
    victims = workers(process)
    assert len(victims) == 2
    os.kill(victims[0].pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    config = load_config(home / "bench.toml")
    assert 0 < missing_samples(config, RunFolder(path)) < 2 * COUNT
    assert not (path / "report.md").exists()

    again = launch(home, path)
    out, error = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, error[-2000:]
    assert "| CFG-Cache |" in out
    quietly(config, home / "one")
    assert pictures(path) == pictures(home / "one")
    assert (path / "report.md").exists()
