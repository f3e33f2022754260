"""`plan_for`: steps and plan for a number of network evaluations."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import Any

from thg.errors import PlanError, UnsupportedPipelineError
from thg.pipelines.describe import known_run
from thg.plans.fidelity import most_steps
from thg.plans.planners import Tapered, tapered
from thg.plans.run import RunInfo

USUAL_GUIDANCE = 5.0


def plan_for(pipe: Any, nfe: int, *, guidance_scale: float | None = None) -> tuple[int, Tapered]:
    """Steps and planner for a total number of network evaluations, with the pipeline's scheduler.

        steps, planner = thg.plan_for(pipe, nfe=40)
        thg.enable(pipe, planner)
        pipe("a light dress", num_inference_steps=steps)

    Steps at which nothing runs are nearly free: there are five for each evaluated one, which ends closest to the
    converged result, above all with a second-order scheduler. Plain CFG would have half as many steps as evaluations.

    nfe: evaluations per sample. guidance_scale: as the pipeline will be used; its own default unless set.
    """
    if isinstance(nfe, bool) or not isinstance(nfe, int) or nfe < 2:
        raise PlanError(f"nfe must be a number of evaluations such as 40, not {nfe!r}")
    scheduler = getattr(pipe, "scheduler", None)
    if not hasattr(scheduler, "set_timesteps"):
        raise UnsupportedPipelineError(
            f"{type(pipe).__name__} has no scheduler with set_timesteps; choose the steps, and thg.tapered({nfe})"
        )
    scale = usual_guidance(pipe) if guidance_scale is None else guidance_scale

    def run_of(steps: int) -> RunInfo:
        run = known_run(copy.deepcopy(scheduler), steps)
        return replace(run, guidance_scale=scale, branches=2 if scale > 1 else 1)

    return most_steps(nfe, run_of), tapered(nfe)


def usual_guidance(pipe: Any) -> float:
    """The default of the pipeline's own call, if that is above 1."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    for name in ("true_cfg_scale", "guidance_scale"):
        value = parameters[name].default if name in parameters else None
        if isinstance(value, int | float) and value > 1:
            return float(value)
    return USUAL_GUIDANCE
