"""enable, disable, enabled, summary: the one line on a pipeline, and its undoing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import patch
from thg.adapter.layouts import Batched, Delegates, Sequential, layout_of
from thg.adapter.summary import Summary, combined
from thg.adapter.takeover import Takeover
from thg.errors import THGError, UnsupportedPipelineError
from thg.planner import Choice, guide_maker

_enabled: weakref.WeakKeyDictionary[Any, Enabled]


class Enabled:
    """What was done to one pipeline, so that it can be undone."""

    def __init__(self, takeover: Takeover) -> None:
        self.takeover = takeover
        self.networks: list[torch.nn.Module] = []
        self.schedulers: list[Any] = []


_enabled = weakref.WeakKeyDictionary()


def enable(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> None:
    """Makes a pipeline skip the unconditional evaluations that a plan leaves out, from its next run on.

    plan: a `Plan`, a planner such as `thg.uniform(nfe=0.65)` or one of a profile, or the name of a preset. Without one,
        the plan of the pipeline's own profile where thg ships one, else a uniform grid with 65 % of CFG's evaluations.
    layout: for a pipeline that thg does not know: how it lays out its branches (`thg.Batched()`, `thg.Sequential()`).

    Enabling again replaces the plan.
    """
    maker = guide_maker(plan)
    layout = layout or _layout(pipe)
    if isinstance(layout, Delegates):
        for part in _parts(pipe, layout):
            enable(part, plan)
        return
    disable(pipe)
    networks, controls = _networks(pipe, layout)
    entry = _enabled[pipe] = Enabled(Takeover(pipe, layout, maker))
    for role, network in networks:
        patch.take(network, entry.takeover, role)
        entry.networks.append(network)
    for network in controls:
        patch.take(network, entry.takeover, "control")
        entry.networks.append(network)
    patch.watch(pipe.scheduler, entry.takeover)
    entry.schedulers.append(pipe.scheduler)


def disable(pipe: Any) -> None:
    """Undoes `enable`: the pipeline is what it was. Harmless on a pipeline that is not enabled."""
    entry = _enabled.pop(pipe, None)
    if entry is None:
        for part in _enabled_parts(pipe):
            disable(part)
        return
    for network in entry.networks:
        patch.release(network, entry.takeover)
    for scheduler in entry.schedulers:
        patch.unwatch(scheduler, entry.takeover)


@contextmanager
def enabled(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> Iterator[Any]:
    """`enable` for the length of a block; undone also when the block raises."""
    enable(pipe, plan, layout=layout)
    try:
        yield pipe
    finally:
        disable(pipe)


def summary(pipe: Any) -> Summary:
    """What the last run of an enabled pipeline has cost."""
    entry = _enabled.get(pipe)
    if entry is not None:
        return entry.takeover.summary()
    parts = [summary(part) for part in _enabled_parts(pipe)]
    if not parts:
        raise THGError(f"this {type(pipe).__name__} is not enabled; write thg.enable(pipe) before the run")
    return combined(type(pipe).__name__, parts)


# -- what a pipeline consists of


def _layout(pipe: Any) -> Batched | Sequential | Delegates:
    if isinstance(pipe, torch.nn.Module) or not hasattr(pipe, "components"):
        raise UnsupportedPipelineError(
            f"thg.enable takes a diffusers pipeline, not {type(pipe).__name__}; without diffusers, use thg.sample"
        )
    return layout_of(pipe)


def _parts(pipe: Any, layout: Delegates) -> list[Any]:
    return [getattr(pipe, name) for name in layout.parts]


def _enabled_parts(pipe: Any) -> list[Any]:
    try:
        layout = layout_of(pipe)
    except UnsupportedPipelineError:
        return []
    if not isinstance(layout, Delegates):
        return []
    return [part for part in _parts(pipe, layout) if part in _enabled]


def _networks(
    pipe: Any, layout: Batched | Sequential
) -> tuple[list[tuple[str, torch.nn.Module]], list[torch.nn.Module]]:
    found = [("denoiser", getattr(pipe, name, None)) for name in layout.denoisers]
    if isinstance(layout, Sequential) and layout.unconditional is not None:
        found.append(("unconditional", getattr(pipe, layout.unconditional, None)))
    networks = [(role, network) for role, network in found if isinstance(network, torch.nn.Module)]
    if not networks:
        raise UnsupportedPipelineError(
            f"this {type(pipe).__name__} has no network under {' or '.join(layout.denoisers)}; load it first"
        )
    control = getattr(pipe, "controlnet", None)
    controls = [control] if isinstance(control, torch.nn.Module) and isinstance(layout, Batched) else []
    return networks, controls
