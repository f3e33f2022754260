"""enable, disable, enabled and summary, for diffusers pipelines."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from thg.errors import THGError, UnsupportedPipelineError
from thg.pipelines.describe import known_run
from thg.pipelines.identity import fingerprint
from thg.pipelines.layouts import Batched, Delegates, Refused, Sequential, layout_of, unknown_layout
from thg.pipelines.owner import enable_guide, enable_leaps, owner_of
from thg.plans.guide import GuideMaker
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Planned, guide_maker
from thg.plans.report import Summary, combined


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
    if isinstance(maker, Planned) and maker.skips == "network":
        enable_leaps(pipe, maker, tuned=plan is None)
    else:
        enable_guide(pipe, maker, own)
    return pipe


def _enabling(pipe: Any, plan: Choice, layout: Any) -> tuple[Planned | GuideMaker, Any]:
    """What follows the plan, and the pipeline's layout. Raises an error for what cannot be enabled."""
    maker = guide_maker(plan)
    own = layout if layout is not None else layout_of(pipe)
    _check(pipe, own)
    if isinstance(maker, Planned) and maker.skips == "network":
        return maker, own
    if isinstance(own, Refused):
        raise UnsupportedPipelineError(f"thg cannot follow this plan on {type(pipe).__name__}: {own.why}")
    if own is None:
        raise unknown_layout(type(pipe).__name__)
    return maker, own


def disable(pipe: Any) -> None:
    """Undoes `enable` and restores the pipeline. Does nothing on a pipeline that is not enabled."""
    owner = owner_of(pipe)
    if owner is not None:
        owner.undo(pipe)
        return
    for part in _enabled_parts(pipe):
        disable(part)


@contextmanager
def enabled(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Iterator[Any]:
    """`enable` within a block. Afterwards, also when the block raises, the pipeline is as it was before."""
    before = {part: owner for part in _all_parts(pipe) if (owner := owner_of(part)) is not None}
    try:
        yield enable(pipe, plan, layout=layout)
    finally:
        disable(pipe)
        for part, owner in before.items():
            owner.redo(part)


def is_enabled(pipe: Any) -> bool:
    """Is thg enabled on this pipeline?"""
    return any(owner_of(part) is not None for part in _all_parts(pipe))


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


def preview(pipe: Any, plan: Choice = None, *, steps: int, guidance_scale: float | None = None) -> Plan:
    """The plan that a run would follow, before it runs: `print(thg.preview(pipe, steps=30))`.

    plan: as for `enable`; by default the one that is enabled, or thg's default. steps, guidance_scale: of the run.
    """
    owner = owner_of(pipe)
    maker = guide_maker(plan) if plan is not None or owner is None else owner.maker
    run = known_run(copy.deepcopy(pipe.scheduler), steps)
    branches = 1 if guidance_scale is not None and guidance_scale <= 1 else 2
    run = replace(run, guidance_scale=guidance_scale, network=fingerprint(pipe), branches=branches)
    found = maker.planner.plan(run) if isinstance(maker, Planned) else maker.guide(run).plan
    if found is None:
        raise THGError(f"{maker!r} follows no plan: it decides at each step")
    return found


def summary(pipe: Any) -> Summary:
    """The cost of the last run of an enabled pipeline."""
    owner = owner_of(pipe)
    if owner is not None:
        return owner.summary()
    parts = [summary(part) for part in _enabled_parts(pipe)]
    if not parts:
        raise THGError(f"this {type(pipe).__name__} is not enabled; write thg.enable(pipe) before the run")
    return combined(type(pipe).__name__, parts)


# -- the parts of a pipeline


def _check(pipe: Any, layout: Any) -> None:
    """Raises an error for what cannot be enabled."""
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
    if not isinstance(layout, Delegates) and not hasattr(getattr(pipe, "scheduler", None), "set_timesteps"):
        raise UnsupportedPipelineError(f"thg cannot accelerate {type(pipe).__name__}: it has no scheduler")


def _parts(pipe: Any, layout: Delegates) -> list[Any]:
    return [getattr(pipe, name) for name in layout.parts]


def _all_parts(pipe: Any) -> list[Any]:
    """The pipeline, or those that it runs."""
    layout = layout_of(pipe)
    return _parts(pipe, layout) if isinstance(layout, Delegates) else [pipe]


def _enabled_parts(pipe: Any) -> list[Any]:
    return [part for part in _all_parts(pipe) if part is not pipe and owner_of(part) is not None]
