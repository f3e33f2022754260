"""How the coarse grid depends on the guidance scale and on the number of samples: the paper's two appendix tables.

    python benchmarks/grid_stability.py --model eps --samples 60 --out results/grids

Calibrates a shipped model at three guidance scales, and shows the grid of each as measured and with rho adjusted so
that (w-1)/rho is the same; then takes subsets of the samples and compares their grids with that of all (IoU).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import thg
from thg.calibration.shards import Rows, stored_rows
from thg.cli.calibrate import shipped_prompts
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE
from thg.plans.guide import Run
from thg.plans.planners import look_before_you_leap, m_max
from thg.profiles.profile import Profile


def profile_at(model: str, scale: float, samples: int, steps: int, batch: int, out: Path) -> Profile:
    return thg.calibrate(
        thg.shipped_pipeline(model),  # type: ignore[arg-type]
        shipped_prompts(samples),
        steps=steps,
        guidance_scale=scale,
        batch_size=batch,
        sensitivity=0,
        folder=out / f"{model}-{scale:g}",
        call=DEFAULT_CALL[model],  # type: ignore[index]
    )


def iou(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The Jaccard index of two grids."""
    return len({*one} & {*other}) / len({*one} | {*other})


def grid_of(rows: Rows, chosen: np.ndarray, w: float, rho: float) -> tuple[int, ...]:
    """Algorithm 2 on the mean norms of some samples."""
    tortoise, hare = (rows[name][chosen].mean(axis=0) for name in ("tortoise", "hare"))
    return look_before_you_leap([*m_max(tortoise, (w - 1) * hare, rho, 1), 1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("eps", "flow"), default="eps")
    parser.add_argument("--samples", type=int, default=60)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=15)
    parser.add_argument("--rho", type=float, default=2.0)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--out", type=Path, default=Path("results/grids"))
    args = parser.parse_args()
    w0 = DEFAULT_GUIDANCE[args.model]
    print("| guidance scale | rho | IoU | NFE | grid |\n|---|---|---|---|---|")
    profiles = {
        w: profile_at(args.model, w, args.samples, args.steps, args.batch_size, args.out) for w in (w0, w0 - 1, w0 + 1)
    }
    own = profiles[w0].planner(rho=args.rho).plan(Run.of(args.steps, w0))
    for w, profile in sorted(profiles.items()):
        for rho in sorted({args.rho, args.rho * (w - 1) / (w0 - 1)}):
            plan = profile.planner(rho=rho).plan(Run.of(args.steps, w))
            print(f"| {w:g} | {rho:.2f} | {iou(plan.coarse, own.coarse):.0%} | {plan.nfe} | `{plan.strip()}` |")

    rows = stored_rows(args.out / f"{args.model}-{w0:g}")
    rng = np.random.default_rng(0)
    everything = grid_of(rows, np.arange(args.samples), w0, args.rho)
    print(f"\n| samples | mean IoU with all {args.samples} | lowest of {args.trials} trials |\n|---|---|---|")
    for count in (4, 8, 16, 32):
        if count < args.samples:
            subsets = [rng.choice(args.samples, count, replace=False) for _ in range(args.trials)]
            scores = [iou(grid_of(rows, chosen, w0, args.rho), everything) for chosen in subsets]
            print(f"| {count} | {np.mean(scores):.1%} | {min(scores):.0%} |")


if __name__ == "__main__":
    main()
