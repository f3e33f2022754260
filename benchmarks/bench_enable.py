"""What `thg.enable` gains on the shipped models: seconds against plain CFG, and fidelity at equal evaluations.

    python benchmarks/bench_enable.py --out runs/enable
    python benchmarks/bench_enable.py --models emoji --threads 2 --out runs/enable_emoji

Speed: one run of the pipeline with plain CFG (thg not enabled at all), one without guidance, and one with each method,
in turn, several times; the best time of each counts, since other work on the machine only ever adds. Target: at least
0.95 of the ideal speed-up 2 * steps / nfe. That assumes that half a batch takes half the time; the actual gain
of skipping a branch is measured by a run without guidance, and "of possible" is relative to that. Fidelity:
PSNR to plain CFG, same prompts and seeds. FasterCache of diffusers, DeepCache and cache-dit run in the same loop where
they are installed and support the model.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch

import thg
from thg.bench.config import ModelTable
from thg.bench.methods import as_policy
from thg.bench.methods.baselines import CFGCache, CFGCacheFFT
from thg.bench.methods.policy import Pilot, PlainCFG, Policy, Prepared
from thg.bench.methods.third_party import CacheDiT, CacheError, DeepCache, FasterCache
from thg.bench.samples import load_pipeline, run_pipeline
from thg.distribution import environment
from thg.files import write_atomically
from thg.media import mean_psnr, psnr
from thg.models import SHIPPED, ShippedName
from thg.plots.charts import Point, draw_frontier

SHARES = (0.57, 0.60, 0.65, 0.70)
"""Budgets, as shares of plain CFG's evaluations."""
TARGET = 0.95
MODELS = {
    "eps": ModelTable(shipped="eps"),
    "flow": ModelTable(shipped="flow", call={"max_sequence_length": 1}),  # it does not support longer texts
    "emoji": ModelTable(shipped="emoji"),
}


def policies(name: ShippedName, pipe: Any, steps: int) -> dict[str, tuple[str, Policy, Prepared]]:
    """By name: the family for the plot, the policy, and what was prepared for it. Programs that fail are left out."""
    found: dict[str, tuple[str, Policy, Prepared]] = {"CFG": ("cfg", PlainCFG(), {})}
    for nfe in (round(share * 2 * steps) for share in SHARES):
        found[f"thg tapered {nfe}"] = ("tapered", as_policy(thg.tapered(nfe), steps), {})
        found[f"thg uniform {nfe}"] = ("uniform", as_policy(thg.uniform(nfe=nfe), steps), {})
        if nfe >= steps + math.ceil(steps / 5):
            found[f"CFG-Cache {nfe}"] = ("cfg-cache", as_policy(CFGCache(nfe), steps), {})
    nfe = round(0.7 * 2 * steps)
    found[f"held, uniform {nfe}"] = ("held hare", as_policy(thg.uniform(nfe=nfe, hare_order=1), steps), {})
    found[f"CFG-Cache + FFT {nfe}"] = ("cfg-cache-fft", as_policy(CFGCacheFFT(nfe), steps), {})
    paper = thg.preset("sd15")
    if paper.steps == steps:
        found[f"THG, the paper's plan {paper.nfe}"] = ("thg", as_policy(paper, steps), {})
    about = SHIPPED[name]
    scale = about.guidance_scale
    pilot = Pilot(pipe, list(about.examples), steps, scale, lambda: draw(name, pipe, 2, steps, scale))
    for program in (DeepCache(), FasterCache(), CacheDiT()):
        title = type(program).__name__
        try:
            found[title] = (title, program, program.prepare(pilot))
        except CacheError as error:
            print(f"  left out: {error}", flush=True)
    return found


def draw(name: ShippedName, pipe: Any, count: int, steps: int, guidance_scale: float) -> torch.Tensor:
    examples = SHIPPED[name].examples
    prompts = [examples[i % len(examples)] for i in range(count)]
    return run_pipeline(pipe, MODELS[name], prompts, range(count), 0, steps, guidance_scale).values


def measure(
    name: ShippedName, steps: int, repeats: int, families: list[str]
) -> tuple[list[dict[str, Any]], list[Point]]:
    """The rows of one shipped model."""
    pipe = load_pipeline(MODELS[name], "cpu")
    guidance_scale = SHIPPED[name].guidance_scale
    chosen = {
        title: found for title, found in policies(name, pipe, steps).items() if found[0] in families or not families
    }
    best: dict[tuple[str, int], float] = {}
    unguided = {1: math.inf, 16: math.inf}
    pictures: dict[str, torch.Tensor] = {}
    nfe: dict[str, float] = {}
    for batch in (1, 16):
        for _ in range(repeats if batch > 1 else 3 * repeats):
            started = time.perf_counter()
            draw(name, pipe, batch, steps, 1.0)
            unguided[batch] = min(unguided[batch], time.perf_counter() - started)
            for method, (_, policy, prepared) in chosen.items():
                with policy.applied(pipe, prepared) as evaluations:
                    started = time.perf_counter()
                    pictures[method] = draw(name, pipe, batch, steps, guidance_scale)
                    seconds = time.perf_counter() - started
                    nfe[method] = evaluations(batch)[0]
                best[method, batch] = min(seconds, best.get((method, batch), math.inf))
    rows, points = [], []
    for method, (family, _, _) in chosen.items():
        ideal = 2 * steps / nfe[method]
        speed = {batch: best["CFG", batch] / best[method, batch] for batch in (1, 16)}
        decibels = [psnr(a, b) for a, b in zip(pictures[method].numpy(), pictures["CFG"].numpy(), strict=True)]
        fidelity = mean_psnr(decibels) if method != "CFG" else None
        row = {"model": name, "method": method, "nfe": nfe[method], "ideal": ideal, "psnr": fidelity}
        row |= {f"seconds_{b}": best[method, b] for b in (1, 16)} | {f"speedup_{b}": speed[b] for b in (1, 16)}
        both = nfe[method] / steps - 1  # the share of steps with both branches
        for b in (1, 16):
            row[f"possible_{b}"] = best["CFG", b] / (both * best["CFG", b] + (1 - both) * unguided[b])
        rows.append(row)
        if fidelity is not None:
            points.append(Point(method, family, nfe[method], fidelity))
    return rows, points


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| method | evaluations | PSNR dB | ideal | "
        + " | ".join(f"batch {b}, s | speed-up | of ideal | of possible" for b in (1, 16))
        + " |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        cells = [row["method"], f"{row['nfe']:.1f}".removesuffix(".0")]
        cells += ["–" if row["psnr"] is None else f"{row['psnr']:.2f}", f"{row['ideal']:.2f}x"]
        for batch in (1, 16):
            speed = row[f"speedup_{batch}"]
            cells += [f"{row[f'seconds_{batch}']:.2f}", f"{speed:.2f}x"]
            cells += [f"{speed / row['ideal']:.2f}", f"{speed / row[f'possible_{batch}']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _least(rows: list[dict[str, Any]], batch: int, of: str) -> float:
    return min(float(row[f"speedup_{batch}"] / row[of]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/enable"), help="where the report goes")
    parser.add_argument("--models", nargs="+", default=["eps", "flow"], choices=list(MODELS))
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--families", nargs="*", default=[], help="such as cfg tapered (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="of the CPU; one is steadier than several (default: 1)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = environment("cpu")
    text = [
        f"# thg.enable on the shipped models {', '.join(options.models)}",
        "",
        f"{about['device']}, {about['threads']} threads, {about['date']}, commit {about['commit']}. "
        f"{options.steps} steps; best of {3 * options.repeats} runs at batch 1 and {options.repeats} at 16; "
        "plain CFG is the bare pipeline.",
    ]
    everything = []
    for name in options.models:
        print(f"model {name}", flush=True)
        rows, points = measure(name, options.steps, options.repeats, options.families)
        everything += rows
        ours = [row for row in rows if row["method"].startswith("thg ")]
        verdict = "; ".join(
            f"at batch {b} {_least(ours, b, 'ideal'):.2f} of the ideal, "
            f"{_least(ours, b, f'possible_{b}'):.2f} of what is possible"
            for b in (1, 16)
        )
        text += ["", f"## {name}", "", table(rows), ""]
        text += [f"The least that a plan of thg reaches: {verdict} (target {TARGET})."]
        if draw_frontier(points, options.out / f"frontier-{name}.png", f"shipped model {name}"):
            text += ["", f"![Fidelity against evaluations](frontier-{name}.png)"]
        print("\n".join(text[-3:]), flush=True)
    write_atomically(options.out / "report.md", ("\n".join(text) + "\n").encode())
    write_atomically(options.out / "metrics.json", json.dumps({"environment": about, "rows": everything}).encode())
    print("\n".join(text))
    print(json.dumps({"environment": about, "rows": everything}))


if __name__ == "__main__":
    main()
