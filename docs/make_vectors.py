"""The test vectors of docs/portable.md, from the core: python docs/make_vectors.py

For each sampler and number of steps: its noise levels, the steps that are evaluated, and the weights of the evaluated
outputs in what the sampler gets. The weights are found by following a run whose outputs are unit vectors.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import diffusers
import torch

from thg.files import write_atomically
from thg.pipelines.describe import known_run
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, PRIOR, within

VECTORS = Path(__file__).with_name("test_vectors.json")
STEPS = (20, 30, 50)
GUIDANCE_SCALE = 7.5
LATENT = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {**LATENT, "clip_sample": False, "set_alpha_to_one": False}),
    "euler": ("EulerDiscreteScheduler", {**LATENT, "timestep_spacing": "leading"}),
    "flow_euler": ("FlowMatchEulerDiscreteScheduler", {"shift": 3.0}),
    "dpmpp_2m": ("DPMSolverMultistepScheduler", {**LATENT, "use_karras_sigmas": True}),
}


def vectors() -> dict[str, Any]:
    return {
        "format": "thg-test-vectors-1",
        "error": DEFAULT_ERROR,
        "prior": asdict(PRIOR),
        "cases": [case(sampler, steps) for sampler in SAMPLERS for steps in STEPS],
    }


def case(sampler: str, steps: int) -> dict[str, Any]:
    name, config = SAMPLERS[sampler]
    scheduler = getattr(diffusers, name).from_config(config)
    run = replace(known_run(scheduler, steps), guidance_scale=GUIDANCE_SCALE)
    assert run.response is not None
    plan = within(DEFAULT_ERROR).plan(run)
    predicted, used = (_weights(chosen, run) for chosen in (replace(plan, corrector=0.0), plan))
    return {
        "name": f"{sampler}, {steps} steps",
        "sampler": sampler,
        "scheduler": {"class": name, **config},
        "steps": steps,
        "guidance_scale": GUIDANCE_SCALE,
        "times": _rounded(run.times or ()),
        "levels": _rounded(_levels(scheduler)),
        "evaluated": list(plan.coarse),
        "prediction": [_sparse(row) for row in predicted],
        "correction": [_sparse(row) for row in used - predicted],
        "weights": [_sparse(row) for row in used],
        "final_response": _rounded(run.response.final),
    }


def _levels(scheduler: Any) -> list[float]:
    """sigma / alpha at the start of each step and at the end of the last one; of a flow its sigmas."""
    if hasattr(scheduler, "sigmas"):
        return [float(s) for s in scheduler.sigmas]
    stride = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    times = [int(t) for t in scheduler.timesteps]
    table, final = scheduler.alphas_cumprod.double(), scheduler.final_alpha_cumprod.double()
    ends = [times[-1] - stride]
    return [float((1 / a - 1).sqrt()) for a in (table[t] if t >= 0 else final for t in [*times, *ends])]


def _weights(plan: Plan, run: RunInfo) -> torch.Tensor:
    """Row: a step. Column: the weight of that step's evaluation in what the sampler gets."""
    leaps, units = Leaps(plan, run), torch.eye(run.steps, dtype=torch.float64)
    rows = [
        leaps.observe(step, (units[step],)) if plan.evaluates(step) else leaps.predict(step)
        for step in range(run.steps)
    ]
    return torch.stack([row for (row,) in rows])


def _sparse(row: torch.Tensor) -> list[tuple[int, float]]:
    """[step, weight] of each evaluation that takes part."""
    return [(k, _rounded([weight])[0]) for k, weight in enumerate(row.tolist()) if abs(weight) > 1e-12]


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.9g}") for value in values]


def as_text(content: dict[str, Any]) -> str:
    """One line for each list of numbers."""
    head = {key: value for key, value in content.items() if key != "cases"}
    cases = ",\n".join(
        "  {\n" + ",\n".join(f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()) + "\n  }"
        for found in content["cases"]
    )
    return json.dumps(head, indent=1)[:-2] + f',\n "cases": [\n{cases}\n ]\n}}\n'


if __name__ == "__main__":
    write_atomically(VECTORS, as_text(vectors()).encode())
    print(f"wrote {VECTORS.name}")
