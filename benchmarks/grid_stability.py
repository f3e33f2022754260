"""How the coarse grid depends on the guidance scale and on the number of trajectories: the paper's two appendix tables.

    python benchmarks/grid_stability.py --model eps --samples 60 --subset 16
    torchrun --nproc-per-node 8 benchmarks/grid_stability.py --model stable-diffusion-v1-5/stable-diffusion-v1-5 \\
        --scheduler DDIMScheduler --dtype float16 --prompts benchmarks/data/coco_pairs.csv --column caption \\
        --samples 30000 --subset 1000 --scales 6.5 7.5 8.5 --rho 1.1 --out runs/grids

Calibrates a model at some guidance scales and prints the grid of each as indices, as measured and with rho adjusted so
that (w - 1) / rho is that of the middle scale; then takes subsets of the trajectories and compares their grids with
that of all (IoU). Finished batches are kept in --out: the same command goes on, and several processes share the work.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np

import thg
from thg.bench.config import ModelTable
from thg.bench.samples import load_pipeline
from thg.models.garments import mixed_prompts
from thg.models.shipped import about
from thg.plans.planners import look_before_you_leap, m_max
from thg.plans.run_info import RunInfo
from thg.processes import find_shard
from thg.profiles.profile import Profile
from thg.prompts import read_prompts
from thg.rows import RowFiles, Rows

Grid = tuple[int, ...]


def iou(one: Grid, other: Grid) -> float:
    """The Jaccard index of two grids."""
    return len({*one} & {*other}) / len({*one} | {*other})


def as_printed(grid: Grid, steps: int) -> str:
    """As the paper's appendix has it: the indices, and the end of the run."""
    return "{" + ", ".join(map(str, (*grid, steps))) + "}"


def grid_of(rows: Rows, chosen: Any, w: float, rho: float) -> Grid:
    """Algorithm 2 on the mean norms of some trajectories."""
    tortoise, hare = (rows[name][chosen].mean(axis=0) for name in ("tortoise", "hare"))
    return tuple(look_before_you_leap([*m_max(tortoise, (w - 1) * hare, rho, 1), 1]))


def by_guidance_scale(profiles: dict[float, Profile], rho: float, w0: float, steps: int) -> list[str]:
    """Table 1: a line for each scale, with the same rho and with the same (w - 1) / rho."""
    own = profiles[w0].planner(rho=rho).plan(RunInfo.of(steps, w0))
    lines = ["| guidance scale | rho | IoU | evaluations | grid |", "|---|---|---|---|---|"]
    for w, profile in sorted(profiles.items()):
        for each in sorted({rho, rho * (w - 1) / (w0 - 1)}):
            plan = profile.planner(rho=each).plan(RunInfo.of(steps, w))
            cells = [f"{w:g}", f"{each:.2f}", f"{iou(plan.coarse, own.coarse):.1%}", str(plan.nfe)]
            lines.append(f"| {' | '.join(cells)} | {as_printed(plan.coarse, steps)} |")
    return lines


def by_trajectories(rows: Rows, w: float, rho: float, steps: int, subset: int, trials: int) -> list[str]:
    """Table 2: the grid of all trajectories, and those of some random subsets."""
    count = len(rows["tortoise"])
    everything = grid_of(rows, np.arange(count), w, rho)
    lines = ["| trajectories | IoU | grid |", "|---|---|---|", f"| {count} | – | {as_printed(everything, steps)} |"]
    generator, scores = np.random.default_rng(0), []
    for trial in range(1, trials + 1):
        grid = grid_of(rows, generator.choice(count, subset, replace=False), w, rho)
        scores.append(iou(grid, everything))
        lines.append(f"| {subset} (trial {trial}) | {scores[-1]:.1%} | {as_printed(grid, steps)} |")
    return [*lines, "", f"Mean IoU over {trials} trials: {np.mean(scores):.2%}; lowest {min(scores):.1%}."]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="eps", help="eps, flow, a hub id or a folder")
    parser.add_argument("--scheduler", help="such as DDIMScheduler (default: the model's own)")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--device", help="where to run (default: the best there is)")
    parser.add_argument("--prompts", type=Path, help="a file of prompts; the shipped models have their own")
    parser.add_argument("--column", help="which column of the file holds the prompts")
    parser.add_argument("--samples", type=int, default=60, help="trajectories")
    parser.add_argument("--subset", type=int, default=16, help="trajectories of a trial")
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=15)
    parser.add_argument("--scales", type=float, nargs="+", help="guidance scales; the middle one is the choice")
    parser.add_argument("--rho", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=Path("results/grids"))
    options = parser.parse_args(arguments)

    shipped = options.model in ("eps", "flow")
    given: dict[str, Any] = {"shipped": options.model} if shipped else {"source": options.model}
    model = ModelTable(scheduler=options.scheduler, dtype=options.dtype, **given)
    if options.prompts is not None:
        prompts = read_prompts(options.prompts, options.column, options.samples)
    elif shipped:
        prompts = mixed_prompts(options.samples)
    else:
        parser.error("a model that is not shipped needs --prompts")
    default = about(options.model).guidance_scale or 7.5
    scales = sorted(options.scales or (default - 1, default, default + 1))
    w0 = scales[len(scales) // 2]
    pipe = load_pipeline(model, find_shard(None, options.device).device)
    folders = {w: options.out / f"{Path(options.model).name}-{w:g}" for w in scales}
    profiles = {
        w: thg.calibrate(
            pipe,
            prompts,
            steps=options.steps,
            guidance_scale=w,
            batch_size=options.batch_size,
            sensitivity=0,
            algorithm3=True,
            folder=folders[w],
            call=about(options.model).call,
        )
        for w in scales
    }
    if os.environ.get("RANK", "0") != "0":
        return
    print("\n".join(by_guidance_scale(profiles, options.rho, w0, options.steps)), "\n")
    rows = RowFiles(folders[w0], "algorithm3-").read()
    subset = min(options.subset, options.samples)
    print("\n".join(by_trajectories(rows, w0, options.rho, options.steps, subset, options.trials)))


if __name__ == "__main__":
    main()
