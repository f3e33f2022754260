"""enable, disable, enabled and summary, for diffusers pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import torch

from thg.adapter.layouts import Batched, Delegates, Refused, Sequential, layout_of, unknown_layout
from thg.adapter.patch import takeover_of
from thg.adapter.takeover import Takeover
from thg.errors import THGError, UnsupportedPipelineError
from thg.pipelines.enabled import EnabledPipeline
from thg.plans.fidelity import within
from thg.plans.planners import Choice, Planned, guide_maker, tapered
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
    maker = guide_maker(_abbreviated(plan))
    own = layout if layout is not None else layout_of(pipe)
    _check(pipe, own)
    if isinstance(own, Delegates):
        for part in _parts(pipe, own):
            enable(part, plan)
        return pipe
    if isinstance(maker, Planned) and maker.skips == "network":
        disable(pipe)
        EnabledPipeline(pipe, maker)
        return pipe
    if isinstance(own, Refused):
        raise UnsupportedPipelineError(f"thg cannot follow this plan on {type(pipe).__name__}: {own.why}")
    if own is None:
        raise unknown_layout(type(pipe).__name__)
    disable(pipe)
    Takeover(pipe, own, maker)
    return pipe


def disable(pipe: Any) -> None:
    """Undoes `enable` and restores the pipeline. Does nothing on a pipeline that is not enabled."""
    takeover = takeover_of(pipe)
    if takeover is not None:
        takeover.undo(pipe)
        return
    for part in _enabled_parts(pipe):
        disable(part)


@contextmanager
def enabled(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Iterator[Any]:
    """`enable` within a block. Afterwards, also when the block raises, the pipeline is as it was before."""
    before = {part: owner for part in _all_parts(pipe) if (owner := takeover_of(part)) is not None}
    try:
        yield enable(pipe, plan, layout=layout)
    finally:
        disable(pipe)
        for part, owner in before.items():
            owner.redo(part)


def is_enabled(pipe: Any) -> bool:
    """Is thg enabled on this pipeline?"""
    return any(takeover_of(part) is not None for part in _all_parts(pipe))


def summary(pipe: Any) -> Summary:
    """The cost of the last run of an enabled pipeline."""
    takeover = takeover_of(pipe)
    if takeover is not None:
        return takeover.summary()
    parts = [summary(part) for part in _enabled_parts(pipe)]
    if not parts:
        raise THGError(f"this {type(pipe).__name__} is not enabled; write thg.enable(pipe) before the run")
    return combined(type(pipe).__name__, parts)


def _abbreviated(plan: Any) -> Choice:
    """The planner of a number: 0.5 is a share of the evaluations, "1%" a tolerance."""
    if isinstance(plan, float):
        return tapered(plan)
    if isinstance(plan, str) and plan.endswith("%"):
        with suppress(ValueError):
            return within(float(plan[:-1]) / 100)
    return cast(Choice, plan)


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
    return [part for part in _all_parts(pipe) if part is not pipe and takeover_of(part) is not None]
