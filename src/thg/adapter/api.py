"""enable, disable, enabled and summary, for diffusers pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter.layouts import Batched, Delegates, Refused, Sequential, layout_of, require_layout, unknown_layout
from thg.adapter.patch import takeover_of
from thg.adapter.takeover import Takeover
from thg.errors import THGError, UnsupportedPipelineError
from thg.plans.planners import Choice, guide_maker
from thg.plans.report import Summary, combined


def enable(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> None:
    """Makes a pipeline skip unconditional evaluations according to a plan, from its next run on.

    plan: a `Plan`, a planner such as `thg.within(0.01)`, `thg.tapered(0.65)` or one of a profile, or the name of a
        preset. Default: `thg.within(0.01)`, which keeps the result within about 1 % of plain CFG's.
    layout: how the pipeline lays out its branches (`thg.Batched()`, `thg.Sequential()`). By default that of its class;
        thg knows those of diffusers. It is checked at the first guided step of each run.

    Enabling again replaces the plan.
    """
    if layout is not None:
        require_layout(layout)
    chosen_layout = _layout(pipe) if layout is None else layout
    maker = guide_maker(plan)
    if isinstance(chosen_layout, Delegates):
        for part in _parts(pipe, chosen_layout):
            enable(part, plan)
        return
    disable(pipe)
    Takeover(pipe, chosen_layout, maker)


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
    """`enable` within a block; undone also when the block raises."""
    enable(pipe, plan, layout=layout)
    try:
        yield pipe
    finally:
        disable(pipe)


def summary(pipe: Any) -> Summary:
    """The cost of the last run of an enabled pipeline."""
    takeover = takeover_of(pipe)
    if takeover is not None:
        return takeover.summary()
    parts = [summary(part) for part in _enabled_parts(pipe)]
    if not parts:
        raise THGError(f"this {type(pipe).__name__} is not enabled; write thg.enable(pipe) before the run")
    return combined(type(pipe).__name__, parts)


# -- the layout and parts of a pipeline


def _layout(pipe: Any) -> Batched | Sequential | Delegates:
    if isinstance(pipe, torch.nn.Module) or not hasattr(pipe, "components"):
        raise UnsupportedPipelineError(
            f"thg.enable takes a diffusers pipeline, not {type(pipe).__name__}; without diffusers, use thg.sample"
        )
    layout = layout_of(pipe)
    if isinstance(layout, Refused):
        raise UnsupportedPipelineError(f"thg cannot accelerate {type(pipe).__name__}: {layout.why}")
    if not callable(pipe):
        raise UnsupportedPipelineError(
            f"thg cannot accelerate {type(pipe).__name__}: it is not called itself; enable the pipeline that it makes"
        )
    if not isinstance(layout, Delegates) and not hasattr(getattr(pipe, "scheduler", None), "set_timesteps"):
        raise UnsupportedPipelineError(f"thg cannot accelerate {type(pipe).__name__}: it has no scheduler")
    if layout is None:
        raise unknown_layout(type(pipe).__name__)
    return layout


def _parts(pipe: Any, layout: Delegates) -> list[Any]:
    return [getattr(pipe, name) for name in layout.parts]


def _enabled_parts(pipe: Any) -> list[Any]:
    layout = layout_of(pipe)
    if not isinstance(layout, Delegates):
        return []
    return [part for part in _parts(pipe, layout) if takeover_of(part) is not None]
