"""The paper's tables in small, from samples to figures, in two processes that are killed in each stage.

    python -m tests.bench.rehearsal                      # every table
    python -m tests.bench.rehearsal sd35_large           # one

Each configuration in benchmarks/ is made small (tiny pipelines of the same classes saved to disk, a few prompts,
pictures and sounds made for the purpose as references) and run in two processes as torchrun starts them. Both are
killed with SIGKILL as soon as samples, measurements, figures and tables appear; the same command goes on. In the end
there must be a report, and the samples must be those of one process, byte for byte.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

from tests import forked
from tests.bench.runs import save_model, save_sound_model
from tests.bench.tiny_models import save_clip
from tests.calibrate.pipelines import stable_diffusion_3
from thg.bench.config import load_config, parse_config
from thg.bench.runner import BenchmarkRun, make_samples
from thg.cli import main
from thg.media import wav_bytes
from thg.processes import Shard

TABLES = Path(__file__).parents[2] / "benchmarks"
COUNT, BATCH, PATIENCE = 4, 2, 600
STAGES = {  # a file that appears in each
    "samples": "store/series/*/samples/*.json",
    "measurements": "store/*/*/measured/*/*.safetensors",
    "figures": "run/*.png",
    "tables": "run/metrics.json",
}


def prepare(home: Path) -> None:
    """Models, prompts, references and networks for all tables."""
    torch.set_num_threads(1)
    save_model(home)
    stable_diffusion_3().save_pretrained(home / "flow")
    save_sound_model(home, upsampling=(8, 5, 4))
    save_clip(home / "clip")
    generator = np.random.default_rng(0)
    (home / "pictures").mkdir()
    (home / "sounds").mkdir()
    rows = ["caption,file"]
    for number, prompt in enumerate((home / "prompts.txt").read_text().splitlines()):
        rows.append(f'"{prompt}",{number:03}')
        height, width = generator.integers(24, 40, 2)
        pixels = generator.integers(0, 255, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(home / "pictures" / f"{number:03}.png")
        (home / "sounds" / f"{number:03}.wav").write_bytes(wav_bytes(generator.normal(0, 0.1, 20_000), 16_000))
    (home / "pairs.csv").write_text("\n".join(rows) + "\n")


def small(table: Path, home: Path) -> dict:
    """The values of a table's configuration, for the tiny models; each policy once."""
    values = tomllib.loads(table.read_text())
    source = values["model"].get("source", "")
    kind = "sound" if "audio" in source else "flow" if "3.5" in source or "medium" in source else "model"
    model = {"source": str(home / kind)}
    if "scheduler" in values["model"]:
        model |= {k: values["model"][k] for k in ("scheduler", "scheduler_options") if k in values["model"]}
    if kind == "flow":
        model["leave_out"] = ["text_encoder_3", "tokenizer_3"]
    if kind == "sound":
        model["call"] = {"audio_length_in_s": 1.0}
    methods, seen = [], set()
    for method in values["methods"]:
        if method["policy"] not in seen or method["name"] == values.get("reference"):
            seen.add(method["policy"])
            methods.append({**method, "calibrate": 2} if "calibrate" in method else method)
    folder = "sounds" if kind == "sound" else "pictures"
    return {
        **{key: values[key] for key in ("title", "steps", "guidance_scale", "metrics")},
        **({"reference": values["reference"]} if "reference" in values else {}),
        "count": COUNT,
        "batch_size": BATCH,
        "model": model,
        "prompts": {"file": str(home / "pairs.csv"), "column": "caption"},
        "references": {
            "folder": str(home / folder),
            "file": "{file}.wav" if kind == "sound" else "{file}.png",
        },
        "networks": {
            "clip_score": str(home / "clip"),
            "cmmd": str(home / "clip"),
        },
        "methods": methods,
    }


def toml(values: dict) -> str:
    """Enough TOML for these values."""
    lines = [f"{key} = {_value(value)}" for key, value in values.items() if key != "methods"]
    for method in values["methods"]:
        lines += ["[[methods]]", *(f"{key} = {_value(value)}" for key, value in method.items())]
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


def launch(folder: Path) -> subprocess.Popen:
    """Two processes of thg bench on the configuration in a folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command += ["-m", "thg", "bench", "--config", str(folder / "bench.toml"), "--out", str(folder / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers(launcher: subprocess.Popen) -> list[psutil.Process]:
    """The processes that run thg itself, below the launcher."""
    found = []
    for child in psutil.Process(launcher.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it has just ended
            if {"thg", "bench"} <= set(child.cmdline()):
                found.append(child)
    return found


def start(folder: Path) -> list[BaseProcess]:
    """The same without the launcher and its seconds of start-up: forks in the environment that it would give them."""
    words = ["bench", "--config", str(folder / "bench.toml"), "--out", str(folder / "run")]
    running = []
    for rank in range(2):
        streams = folder / f"process-{rank}"
        streams.mkdir(exist_ok=True)
        running.append(forked.start(folder, main, words, streams=streams, RANK=rank, WORLD_SIZE=2))
    return running


def kill_in(stage: str, folder: Path) -> bool:
    """Starts the run and kills it when the stage has made something new; False if the run was quicker."""
    if STAGES[stage].startswith("run/"):
        for path in folder.glob(STAGES[stage]):  # of a stage before: it is made again
            path.unlink()
    before = len(list(folder.glob(STAGES[stage])))
    running, give_up = start(folder), time.monotonic() + PATIENCE
    while len(list(folder.glob(STAGES[stage]))) <= before and any(process.is_alive() for process in running):
        assert time.monotonic() < give_up, f"nothing new in {stage}"
        time.sleep(0.002)
    for process in running:
        process.kill()
    return -signal.SIGKILL in [forked.finish(process) for process in running]


def finish(folder: Path) -> str:
    """The run to its end; what it printed."""
    for rank, process in enumerate(start(folder)):
        assert forked.finish(process) == 0, (folder / f"process-{rank}" / "err.txt").read_text()[-3000:]
    return "".join((folder / f"process-{rank}" / "out.txt").read_text() for rank in range(2))


def samples_of(run: BenchmarkRun) -> dict[str, bytes]:
    return {
        f"{name}/{file.name}": file.read_bytes()
        for name, series in run.series().items()
        for file in (series.path / "samples").glob("[0-9]*")  # a kill may leave a hidden file
    }


def rehearse(table: Path, home: Path) -> str:
    """One table; returns what was killed and the table."""
    folder = home / table.stem
    folder.mkdir()
    (folder / "bench.toml").write_text(toml(small(table, home)))
    config = load_config(folder / "bench.toml")
    killed = {stage: kill_in(stage, folder) for stage in STAGES}
    out = finish(folder)
    assert (folder / "run" / "report.md").exists()
    whole = BenchmarkRun.start(parse_config(config.source, config.base), folder / "whole", folder / "whole" / "store")
    make_samples(whole, Shard(), lambda text: None)
    assert samples_of(whole) == samples_of(BenchmarkRun.stored(folder / "run"))
    made = {stage: any(folder.glob(pattern)) for stage, pattern in STAGES.items()}
    other = {stage: "too quick to be killed" if made[stage] else "none" for stage in STAGES}
    told = ", ".join(f"{stage}: {'killed' if killed[stage] else other[stage]}" for stage in STAGES)
    return f"{table.stem}: {told}\n{out}"


def rehearse_all() -> None:
    tables = [path for path in sorted(TABLES.glob("*.toml")) if "shipped" not in path.stem]
    if chosen := sys.argv[1:]:
        tables = [path for path in tables if path.stem in chosen]
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        prepare(home)
        for table in tables:
            began = time.monotonic()
            print(rehearse(table, home), f"({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    rehearse_all()
