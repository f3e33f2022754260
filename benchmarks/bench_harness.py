"""The overhead of the benchmark at batch 16, and its memory at 200 and 2,000 samples.

    python benchmarks/bench_harness.py --out runs/harness

Overhead: the runner (counting, scores, PNG files, records, timings) against a bare loop of the same pipeline calls in
the same process, in turn, best of several. Target: under 10 %. Memory: a process of its own for each number of samples;
what counts is by how much its resident size grows from the first fifth of the run to the end.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from thg.bench.config import SHIPPED_CONFIG, BenchConfig, load_config, override, parse_config
from thg.bench.runner import Runner
from thg.bench.samples import load_pipeline, load_prompts, run_pipeline
from thg.bench.store import BenchmarkRun
from thg.distribution import environment
from thg.files import write_atomically
from thg.processes import Shard

TARGET = 0.10


def configured(count: int, steps: int, batch_size: int) -> BenchConfig:
    """Plain CFG and one plan of ours on the shipped model."""
    values = dict(load_config(SHIPPED_CONFIG).source)
    values |= {"steps": steps, "count": count, "batch_size": batch_size, "metrics": ["psnr", "ssim"], "sheet": {}}
    nfe = steps + max(1, steps // 3)
    values["methods"] = [
        {"name": "CFG", "policy": "cfg"},
        {"name": "thg", "policy": "uniform", "nfe": nfe},
    ]
    return parse_config(values, SHIPPED_CONFIG.parent)


def bare(config: BenchConfig, pipe: object, prompts: list[str]) -> float:
    """Seconds of the pipeline calls alone, plain CFG for both methods' worth of batches."""
    started = time.perf_counter()
    for first in range(0, config.count, config.batch_size):
        batch = range(first, min(first + config.batch_size, config.count))
        run_pipeline(pipe, config.model, prompts, batch, config.seed, config.steps, config.guidance_scale)
    return time.perf_counter() - started


def overhead(steps: int, batches: int, repeats: int) -> dict[str, float]:
    """The runner with plain CFG alone against the bare loop."""
    config = configured(16 * batches, steps, 16)
    alone = parse_config({**config.source, "methods": config.source["methods"][:1]}, config.base)
    pipe, prompts = load_pipeline(config.model, "cpu"), load_prompts(config)
    bare(override(alone, count=16), pipe, prompts.prompts)  # warm up
    plain, harness = [], []
    for _ in range(repeats):
        plain.append(bare(alone, pipe, prompts.prompts))
        with tempfile.TemporaryDirectory() as folder:
            run = BenchmarkRun.start(alone, Path(folder), Path(folder))
            runner = Runner(run, Shard(), lambda text: None, pipe)
            started = time.perf_counter()
            runner.run()
            harness.append(time.perf_counter() - started)
    return {"bare": min(plain), "harness": min(harness), "overhead": min(harness) / min(plain) - 1}


def memory(count: int, steps: int) -> dict[str, float]:
    """Resident memory in MB after a fifth of the run and at its end; to be called in a fresh process."""
    process, sizes = psutil.Process(), []
    with tempfile.TemporaryDirectory() as folder:
        config = configured(count, steps, 16)
        run = BenchmarkRun.start(config, Path(folder), Path(folder))
        Runner(run, Shard(), lambda text: sizes.append(process.memory_info().rss)).run()
    early = max(sizes[: max(2, len(sizes) // 5)])
    return {"samples": count, "early_mb": early / 1e6, "end_mb": sizes[-1] / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/harness"), help="where the report goes")
    parser.add_argument("--steps", type=int, default=20, help="of the overhead measurement")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=int, nargs="+", default=[200, 2000], help="of the memory measurement")
    parser.add_argument("--only-memory", type=int, metavar="N", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_memory:
        print(json.dumps(memory(options.only_memory, steps=4)))
        return
    cost = overhead(options.steps, options.batches, options.repeats)
    grown = []
    for count in options.samples:
        command = [sys.executable, __file__, "--only-memory", str(count)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        grown.append(json.loads(done.stdout.splitlines()[-1]))
    about = environment("cpu")
    text = [
        "# The harness beside the pipeline",
        "",
        f"{about['device']}, {about['threads']} threads, {about['date']}, commit {about['commit']}.",
        "",
        f"Overhead at batch 16, {options.steps} steps, plain CFG on the shipped eps model, best of {options.repeats}: "
        f"{cost['overhead']:.1%} ({cost['harness']:.2f} s, {cost['bare']:.2f} s bare; target under {TARGET:.0%}).",
        "",
        "| samples | resident MB after a fifth | at the end | growth |",
        "|---:|---:|---:|---:|",
    ]
    for row in grown:
        growth = row["end_mb"] - row["early_mb"]
        text.append(f"| {row['samples']} | {row['early_mb']:.0f} | {row['end_mb']:.0f} | {growth:+.0f} |")
    write_atomically(options.out / "report.md", ("\n".join(text) + "\n").encode())
    document = {"environment": about, "overhead": cost, "memory": grown}
    write_atomically(options.out / "metrics.json", json.dumps(document).encode())
    print("\n".join(text))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
