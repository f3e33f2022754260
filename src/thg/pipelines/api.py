"""enable, disable and what a user asks about it: for diffusers pipelines."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from thg.errors import PlanError, THGError, UnsupportedPipelineError
from thg.ode.integrate import run_of
from thg.ode.solvers import ddim
from thg.pipelines.describe import known_run
from thg.pipelines.identity import fingerprint, remembered
from thg.pipelines.layouts import Batched, Delegates, Refused, Sequential, layout_of, unknown_layout
from thg.pipelines.owner import EnabledPipeline, owner_of
from thg.pipelines.run import SCALES
from thg.plans.guide import GuideMaker
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Planned, Tapered, guide_maker, tapered
from thg.plans.run_info import RunInfo
from thg.plans.summary import Summary, combined
from thg.plans.tolerance import most_steps

USUAL_GUIDANCE = 5.0

_ended: WeakKeyDictionary[Any, list[EnabledPipeline]] = WeakKeyDictionary()
"""What was enabled in the last block of `enabled`, for questions after it."""


def enable(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Any:
    """Makes a pipeline run its networks at fewer steps, from its next call on. Returns the pipeline.

    plan: a planner such as `thg.within(0.01)` or `thg.tapered(0.5)`, a `Plan`, or the name of a preset. Default:
        `thg.within(0.01)`, which keeps the result within about 1 % of the plain run's. A number is a short form: 0.5 is
        `thg.tapered(0.5)`, and "1%" is `thg.within(0.01)`.
    layout: how the pipeline lays out its branches (`thg.Batched()`, `thg.Sequential()`), for plans of the guidance term
        alone, such as the paper's. Other plans do not need it.

    Enabling again replaces the plan.
    """
    maker, own = _enabling(pipe, plan, layout)
    if isinstance(own, Delegates):
        for part in _parts(pipe, own):
            enable(part, plan)
        return pipe
    disable(pipe)
    EnabledPipeline(pipe, maker, own, tuned=plan is None)
    return pipe


def _enabling(
    pipe: Any, plan: Choice, layout: Any
) -> tuple[Planned | GuideMaker, Batched | Sequential | Delegates | None]:
    """What follows the plan, and the layout that it needs. Raises an error for what cannot be enabled."""
    maker = guide_maker(plan)
    own = layout if layout is not None else layout_of(pipe)
    _check(pipe, own)
    if isinstance(own, Delegates):
        return maker, own
    if isinstance(maker, Planned) and maker.skips == "network" and not (isinstance(own, Refused) and own.entirely):
        return maker, None
    if isinstance(own, Refused):
        raise UnsupportedPipelineError(f"thg cannot follow this plan on {type(pipe).__name__}: {own.why}")
    if own is None:
        raise unknown_layout(type(pipe).__name__)
    return maker, own


def disable(pipe: Any) -> None:
    """Undoes `enable` and restores the pipeline. Does nothing on a pipeline that is not enabled."""
    owners = _owners(pipe)
    _ended.pop(pipe, None)
    for part, owner in owners.items():
        owner.undo(part)


@contextmanager
def enabled(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Iterator[Any]:
    """`enable` within a block. Afterwards, also when the block raises, the pipeline is as it was before.

    `summary` still answers after the block.
    """
    before = _owners(pipe)
    try:
        yield enable(pipe, plan, layout=layout)
    finally:
        owners = list(_owners(pipe).values())
        disable(pipe)
        _ended[pipe] = owners
        for part, owner in before.items():
            owner.redo(part)


def is_enabled(pipe: Any) -> bool:
    """Is thg enabled on this pipeline?"""
    return bool(_owners(pipe))


@dataclass(frozen=True)
class Support:
    """Whether a pipeline can be enabled; true or false in conditions. reason: why not."""

    ok: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok


def supported(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Support:
    """Can `enable` take this pipeline, with this plan? Changes nothing."""
    try:
        _enabling(pipe, plan, layout)
    except THGError as error:
        return Support(False, str(error))
    return Support(True)


def summary(pipe: Any) -> Summary:
    """The cost of the last run of an enabled pipeline, or of the last one in a block of `thg.enabled`."""
    owners = list(_owners(pipe).values()) or _ended.get(pipe)
    if not owners:
        raise THGError(f"this {type(pipe).__name__} is not enabled; write thg.enable(pipe) before the run")
    reports = [owner.summary() for owner in owners]
    name = type(pipe).__name__
    return reports[0] if reports[0].pipeline == name else combined(name, reports)


# -- before a run


def preview(pipe: Any, plan: Choice = None, *, steps: int, guidance_scale: float | None = None) -> Plan:
    """The plan that a run would follow, before it runs: `print(thg.preview(pipe, steps=30))`.

    plan: as for `enable`; by default the one that is enabled, or thg's default. steps, guidance_scale: of the run.
    Of a pipeline that runs others, the last of them is meant.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise PlanError(f"steps must be the number of steps of a run, such as 30, not {steps!r}")
    if isinstance(layout := layout_of(pipe), Delegates):
        pipe = _parts(pipe, layout)[-1]
    maker = guide_maker(plan)
    if plan is None:
        owner, found = owner_of(pipe), remembered(pipe)
        maker = owner.maker(pipe) if owner is not None else maker if found is None else Planned(found)
    run = replace(_run_of(pipe, steps, guidance_scale), network=fingerprint(pipe))
    planned = maker.planner.plan(run) if isinstance(maker, Planned) else maker.guide(run).plan
    if planned is None:
        raise THGError(f"{maker!r} follows no plan: it decides at each step")
    return planned


def plan_for(pipe: Any, nfe: int, *, guidance_scale: float | None = None) -> tuple[int, Tapered]:
    """Steps and planner for a total number of network evaluations, with the pipeline's scheduler.

        steps, planner = thg.plan_for(pipe, nfe=40)
        thg.enable(pipe, planner)
        pipe("a light dress", num_inference_steps=steps)

    Steps at which nothing runs are nearly free: there are five for each evaluated one, which ends closest to the
    converged result, above all with a second-order scheduler. Plain CFG would have half as many steps as evaluations.

    Without a pipeline it takes a function that makes the schedule of a number of steps:

        steps, planner = thg.plan_for(thg.Schedule.vp, nfe=40, guidance_scale=4)
        thg.sample(denoiser, x, planner, thg.Schedule.vp(steps), guidance_scale=4)

    nfe: evaluations per sample. guidance_scale: as it will be used; a pipeline's own default unless set.
    """
    if isinstance(nfe, bool) or not isinstance(nfe, int) or nfe < 2:
        raise PlanError(f"nfe must be a number of evaluations such as 40, not {nfe!r}")
    scale = usual_guidance(pipe) if guidance_scale is None else guidance_scale
    return most_steps(nfe, lambda steps: _run_of(pipe, steps, scale)), tapered(nfe)


def usual_guidance(pipe: Any) -> float:
    """The default of the pipeline's own call, if that is above 1."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    for name in SCALES:
        value = parameters[name].default if name in parameters else None
        if isinstance(value, int | float) and value > 1:
            return float(value)
    return USUAL_GUIDANCE


def _run_of(pipe: Any, steps: int, guidance_scale: float | None) -> RunInfo:
    """The run of a call with these arguments, as far as it is known before."""
    if inspect.isroutine(pipe):  # makes a schedule
        run = run_of(pipe(steps), ddim(), USUAL_GUIDANCE)
    elif _has_scheduler(pipe):
        run = known_run(copy.deepcopy(pipe.scheduler), steps)
    else:
        raise UnsupportedPipelineError(
            f"{type(pipe).__name__} has no scheduler with set_timesteps, so its steps are not known before a run"
        )
    branches = 1 if guidance_scale is not None and guidance_scale <= 1 else 2
    return replace(run, guidance_scale=guidance_scale, branches=branches)


# -- the parts of a pipeline


def _check(pipe: Any, layout: Any) -> None:
    """Raises an error for what cannot be enabled."""
    if isinstance(pipe, type):
        name = pipe.__name__
        raise UnsupportedPipelineError(
            f"thg.enable takes a pipeline, not its class: {name}.from_pretrained(...) loads one"
        )
    if isinstance(pipe, torch.nn.Module) or not hasattr(pipe, "components"):
        raise UnsupportedPipelineError(
            f"thg.enable takes a diffusers pipeline, not {type(pipe).__name__}; without diffusers, use thg.sample"
        )
    if not callable(pipe):
        raise UnsupportedPipelineError(
            f"thg cannot accelerate {type(pipe).__name__}: it is not called itself; enable the pipeline that it makes"
        )
    if layout is not None and not isinstance(layout, Batched | Sequential | Delegates | Refused):
        raise UnsupportedPipelineError(
            f"layout must be thg.Batched() or thg.Sequential(), not {layout!r}; plans that skip the whole network, "
            "such as the default, do not need one"
        )
    if not isinstance(layout, Delegates) and not _has_scheduler(pipe):
        raise UnsupportedPipelineError(f"thg cannot accelerate {type(pipe).__name__}: it has no scheduler")


def _has_scheduler(pipe: Any) -> bool:
    return hasattr(getattr(pipe, "scheduler", None), "set_timesteps")


def _parts(pipe: Any, layout: Delegates) -> list[Any]:
    return [getattr(pipe, name) for name in layout.parts]


def _owners(pipe: Any) -> dict[Any, EnabledPipeline]:
    """The pipeline and those that it runs, as far as they are enabled, with their owners."""
    if not hasattr(pipe, "__weakref__"):  # None, a name, a list
        raise UnsupportedPipelineError(f"this takes a diffusers pipeline, not {pipe!r}")
    layout = layout_of(pipe)
    parts = _parts(pipe, layout) if isinstance(layout, Delegates) else []
    return {part: owner for part in (pipe, *parts) if (owner := owner_of(part)) is not None}
