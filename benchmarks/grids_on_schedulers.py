"""Evenly spread evaluations against the default grid, with other schedulers than the shipped models' own.

    python benchmarks/grids_on_schedulers.py

Mean PSNR to plain CFG in dB over held-out seeds; both plans have the corrector.
"""

from __future__ import annotations

import argparse
from typing import Any

import diffusers
import torch

import thg
from thg.media import mean_psnr, psnr
from thg.models import DEFAULT_CALL
from thg.models.garments import mixed_prompts

HELD_OUT = 1_000_000  # the first seed
RUNS: list[tuple[str, str, dict[str, Any], float, tuple[int, ...]]] = [
    ("flow", "FlowMatchEulerDiscreteScheduler", {"shift": 3.0}, 4.0, (28, 50)),
    ("eps", "EulerDiscreteScheduler", {}, 7.5, (30,)),
    ("eps", "DPMSolverMultistepScheduler", {}, 5.0, (25,)),
    ("eps", "DPMSolverMultistepScheduler", {"use_karras_sigmas": True}, 5.0, (25, 30)),
]


def pictures(pipe: Any, model: str, plan: Any, steps: int, scale: float, count: int) -> torch.Tensor:
    with thg.enabled(pipe, plan):
        made = pipe(
            mixed_prompts(count),
            generator=[torch.Generator().manual_seed(HELD_OUT + i) for i in range(count)],
            num_inference_steps=steps,
            guidance_scale=scale,
            output_type="pt",
            **DEFAULT_CALL[model],  # type: ignore[index]
        )
    return made.images.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--nfe", type=float, default=0.65)
    options = parser.parse_args()
    print("| model | scheduler | guidance | steps | uniform | tapered |\n|---|---|---|---|---|---|")
    for model, name, settings, scale, counts in RUNS:
        pipe: Any = thg.shipped_pipeline(model)  # type: ignore[arg-type]
        pipe.scheduler = getattr(diffusers, name).from_config(pipe.scheduler.config, **settings)
        pipe.set_progress_bar_config(disable=True)
        for steps in counts:
            plans = (thg.uniform(every=1), thg.uniform(nfe=options.nfe, corrector=0.7), thg.tapered(options.nfe))
            plain, *others = (pictures(pipe, model, plan, steps, scale, options.samples) for plan in plans)
            decibels = [[psnr(a, b) for a, b in zip(made.numpy(), plain.numpy(), strict=True)] for made in others]
            cells = [f"{mean_psnr(values):.1f}" for values in decibels]
            how = ", ".join([name.removesuffix("Scheduler"), *(f"{k}={v}" for k, v in settings.items())])
            print(f"| {model} | {how} | {scale:g} | {steps} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
