"""The solver of the core that applies the same steps as a diffusers scheduler."""

from __future__ import annotations

import math
from typing import Any, Literal

from thg.errors import ScheduleError
from thg.ode.schedulers import kind_of
from thg.ode.solvers import DPMSolver2, Solver, ddim, euler, lms, plms

METHODS = {
    "DDIMScheduler": "ddim",
    "EulerDiscreteScheduler": "euler",
    "DPMSolverMultistepScheduler": "dpm multistep",
    "DPMSolverSinglestepScheduler": "dpm singlestep",
    "LMSDiscreteScheduler": "lms",
    "PNDMScheduler": "plms",
    "FlowMatchEulerDiscreteScheduler": "euler",
}


def solver_like(scheduler: Any) -> Solver:
    """The solver that a diffusers scheduler applies, after its `set_timesteps`."""
    config = scheduler.config
    for flag in ("thresholding", "clip_sample"):
        if getattr(config, flag, False):
            raise ScheduleError(
                f"{type(scheduler).__name__} with {flag}=True is not linear in the network's output; "
                f"write scheduler = diffusers.{type(scheduler).__name__}.from_config(scheduler.config, {flag}=False)"
            )
    kind = kind_of(scheduler)
    method = METHODS.get(kind.name) if kind is not None else None
    if method == "ddim":
        return ddim()
    if method == "euler":
        return euler()
    if method == "lms":
        return lms(order=4)
    if method == "plms":
        if config.prediction_type != "epsilon":
            raise ScheduleError(
                f"PNDMScheduler with prediction_type={config.prediction_type!r} averages outputs before converting "
                "them to eps, which no solver of thg does; write scheduler = "
                "diffusers.DPMSolverMultistepScheduler.from_config(scheduler.config)"
            )
        return plms(order=4)
    if method in ("dpm multistep", "dpm singlestep"):
        return _dpm_like(scheduler, singlestep=method == "dpm singlestep")
    raise ScheduleError(
        f"{type(scheduler).__name__} has no counterpart among the solvers of thg; "
        "write scheduler = diffusers.DPMSolverMultistepScheduler.from_config(scheduler.config)"
    )


def _dpm_like(scheduler: Any, singlestep: bool) -> Solver:
    config, steps = scheduler.config, len(scheduler.timesteps)
    if config.solver_order == 1:
        return ddim()
    if config.solver_order != 2:
        raise ScheduleError(
            f"{type(scheduler).__name__} of order {config.solver_order} has no counterpart among the solvers of thg; "
            f"write scheduler = diffusers.{type(scheduler).__name__}.from_config(scheduler.config, solver_order=2)"
        )
    kinds: dict[str, Literal["sample", "epsilon"]] = {"dpmsolver++": "sample", "dpmsolver": "epsilon"}
    if config.algorithm_type not in kinds:
        raise ScheduleError(
            f"algorithm_type {config.algorithm_type!r} of {type(scheduler).__name__} adds fresh noise at every step; "
            "set algorithm_type='dpmsolver++'"
        )
    if singlestep:
        lower_final = scheduler.order_list[-1] == 1
    else:
        lower_final = config.euler_at_final or (config.lower_order_final and steps < 15)
    return DPMSolver2(
        kinds[config.algorithm_type],
        singlestep=singlestep,
        correction=config.solver_type,
        first_order_into=steps if lower_final else math.inf,
    )
