"""Why not just fewer steps? Distance to the converged result at equal network evaluations, on the shipped models.

    python benchmarks/converged.py --samples 20

The converged result is that of plain CFG with many steps of a second-order scheduler. At each budget plain CFG takes
half as many steps; thg takes the most steps that its default can guide with the budget. Cells are dB of the final
latents' norm over that of the difference, mean and worst 5 %; more is closer.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import thg
from thg.cli.calibrate import shipped_prompts
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE
from thg.models.schedulers import Schedulers
from thg.plans.fidelity import CORRECTOR, SLOPE, balanced, evaluations_within
from thg.plans.response import Response

SCHEDULERS = {
    "eps": ("EulerDiscreteScheduler", "DPMSolverMultistepScheduler"),
    "flow": ("FlowMatchEulerDiscreteScheduler", "DPMSolverMultistepScheduler"),
}
FIRST_SEED = 3_000_000


@dataclass(frozen=True)
class Count:
    """So many evaluations, placed as the default places them."""

    evaluations: int

    def plan(self, run: thg.Run) -> thg.Plan:
        return thg.Plan(run.steps, balanced(run, self.evaluations), corrector=CORRECTOR, slope=SLOPE)


def uses(budget: int) -> dict[str, tuple[int, Any]]:
    """Steps and plan of each way to spend a budget of evaluations."""
    fitting = [steps for steps in range(2, budget) if steps + evaluations_within(0.01, corrected(steps)) <= budget]
    return {"fewer steps": (budget // 2, False), "thg": (fitting[-1], Count(budget - fitting[-1]))}


def corrected(steps: int) -> thg.Run:
    """A run that the corrector works in."""
    return replace(thg.Run.of(steps), response=Response.from_final([1.0] * steps))


def latents(pipe: Any, name: str, prompts: list[str], steps: int, plan: Any) -> torch.Tensor:
    seeds = [torch.Generator().manual_seed(FIRST_SEED + k) for k in range(len(prompts))]
    call = {"prompt": prompts, "generator": seeds, "num_inference_steps": steps, "output_type": "latent"}
    call |= {"guidance_scale": DEFAULT_GUIDANCE[name], **DEFAULT_CALL[name]}  # type: ignore[index]
    if plan is False:
        return torch.as_tensor(pipe(**call).images)
    with thg.enabled(pipe, plan):
        return torch.as_tensor(pipe(**call).images)


def from_pure_noise(scheduler: Any) -> Any:
    """The same scheduler with a first step that does not depend on how many there are."""
    if "timestep_spacing" not in scheduler.config:
        return scheduler
    return type(scheduler).from_config(scheduler.config, timestep_spacing="trailing")


def decibels(found: torch.Tensor, converged: torch.Tensor) -> str:
    wrong = (found - converged).flatten(1).norm(dim=1) / converged.flatten(1).norm(dim=1)
    values = (-20 * wrong.log10()).numpy()
    return f"{np.mean(values):.1f} / {np.quantile(values, 0.05):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["eps", "flow"])
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--steps", type=int, default=250, help="of the converged result")
    parser.add_argument("--budgets", type=int, nargs="+", default=[30, 40, 50, 60, 70])
    options = parser.parse_args()
    prompts = shipped_prompts(options.samples)
    print("| model | scheduler | evaluations | " + " | ".join(uses(40)) + " |\n" + "|---" * 5 + "|")
    for name in options.models:
        pipe: Any = thg.shipped_pipeline(name)
        pipe.set_progress_bar_config(disable=True)
        schedulers = Schedulers(pipe.scheduler)
        pipe.scheduler = from_pure_noise(schedulers.make("DPMSolverMultistepScheduler"))
        converged = latents(pipe, name, prompts, options.steps, False)
        for scheduler in SCHEDULERS[name]:
            pipe.scheduler = from_pure_noise(schedulers.make(scheduler))
            for budget in options.budgets:
                found = [decibels(latents(pipe, name, prompts, *use), converged) for use in uses(budget).values()]
                short = scheduler.removesuffix("Scheduler")
                print(f"| {name} | {short} | {budget} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
