"""The overhead of calibration, and the time of planning.

    python benchmarks/bench_calibrate.py --samples 8

Calibration makes 4 N - 2 evaluations per sample, of which 2 N are the pipeline's own run. It is timed against plain CFG
runs of the same pipeline, per evaluation, in CPU time of this process (wall time is unreliable on a shared machine).
Limits: 10 % over plain sampling at the same number of evaluations, and 1 s for a plan of 50 steps.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

import thg
from thg.models import SHIPPED
from thg.models.garments import mixed_prompts
from thg.plans.run_info import RunInfo

OVERHEAD_LIMIT, PLANNING_LIMIT = 0.10, 1.0


def best(*works: Callable[[], Any], repeats: int) -> list[float]:
    """The least CPU time of each, over some repeats in which they take turns."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for spent, work in zip(times, works, strict=True):
            began = time.process_time()
            work()
            spent.append(time.process_time() - began)
    return [min(spent) for spent in times]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("eps", "flow"), default="eps")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pipe: Any = thg.shipped_pipeline(args.model)
    pipe.set_progress_bar_config(disable=True)
    prompts, scale = mixed_prompts(args.samples), SHIPPED[args.model].guidance_scale

    def plain() -> None:
        pipe(prompts, num_inference_steps=args.steps, guidance_scale=scale, output_type="latent")

    def calibrate() -> thg.Profile:
        return thg.calibrate(
            pipe,
            prompts,
            steps=args.steps,
            guidance_scale=scale,
            batch_size=args.samples,
            sensitivity=0,
            algorithm3=True,
            progress=False,
        )

    plain()  # warm up
    plainly, calibrating = best(plain, calibrate, repeats=args.repeats)
    per_plain, per_calibrated = plainly / (2 * args.steps), calibrating / (6 * args.steps - 2)
    overhead = per_calibrated / per_plain - 1
    profile, run = calibrate(), RunInfo.of(args.steps, scale)

    def plan(method: Any, order: int, corrector: float) -> None:
        profile.planner(nfe=0.65, method=method, hare_order=order, corrector=corrector).plan(run)

    planning = {
        f"{method} {order}{' + corrector' if corrector else ''}": best(
            partial(plan, method, order, corrector), repeats=args.repeats
        )[0]
        for method, order, corrector in (("algorithm2", 1, 0.0), ("optimal", 1, 0.0), ("optimal", 2, 0.7))
    }
    print(f"per evaluation of {args.samples} samples: plain {per_plain * 1e3:.2f} ms, ", end="")
    print(f"calibrating {per_calibrated * 1e3:.2f} ms, overhead {overhead:+.1%} (limit {OVERHEAD_LIMIT:.0%})")
    for name, seconds in planning.items():
        print(f"planning {args.steps} steps, {name}: {seconds:.3f} s (limit {PLANNING_LIMIT:g} s)")
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": platform.processor() or platform.machine(),
        "model": args.model,
        "samples": args.samples,
        "steps": args.steps,
        "plain_ms": per_plain * 1e3,
        "calibrating_ms": per_calibrated * 1e3,
        "overhead": overhead,
        "planning_seconds": planning,
    }
    print(json.dumps(record))
    return int(overhead > OVERHEAD_LIMIT or max(planning.values()) > PLANNING_LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
