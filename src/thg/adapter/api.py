"""enable, disable, enabled, summary: the one line on a pipeline, and its undoing."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import patch
from thg.adapter.layouts import Batched, Delegates, Sequential, layout_of
from thg.adapter.takeover import Takeover
from thg.errors import THGError, UnsupportedPipelineError
from thg.plans.guide import GuideMaker
from thg.plans.planners import Choice, guide_maker
from thg.plans.report import Summary, combined


class Enabled:
    """One enabled pipeline: what was done to it, so that it can be undone."""

    def __init__(self, pipe: Any, layout: Batched | Sequential, maker: GuideMaker) -> None:
        self._pipe = weakref.ref(pipe)
        self.layout = layout
        self.takeover = Takeover(pipe, layout, maker, self.refresh)
        self.networks: list[torch.nn.Module] = []
        self.scheduler: Any = None
        self.refresh()

    def refresh(self) -> None:
        """Takes over what the pipeline consists of now, and lets go of what it no longer has."""
        pipe: Any = self._pipe()
        networks = _networks(pipe, self.layout)
        for network in self.networks:
            if all(network is not wanted for wanted, _ in networks):
                patch.release(network, self.takeover)
        for network, role in networks:
            patch.take(network, self.takeover, role)
        self.networks = [network for network, _ in networks]
        if self.scheduler is not pipe.scheduler:
            self._unwatch()
            patch.watch(pipe.scheduler, self.takeover)
            self.scheduler = pipe.scheduler

    def undo(self) -> None:
        for network in self.networks:
            patch.release(network, self.takeover)
        self._unwatch()

    def _unwatch(self) -> None:
        if self.scheduler is not None:
            patch.unwatch(self.scheduler, self.takeover)


_enabled: weakref.WeakKeyDictionary[Any, Enabled] = weakref.WeakKeyDictionary()


def enable(pipe: Any, plan: Choice = None, *, layout: Batched | Sequential | None = None) -> None:
    """Makes a pipeline skip the unconditional evaluations that a plan leaves out, from its next run on.

    plan: a `Plan`, a planner such as `thg.within(0.01)`, `thg.tapered(0.65)` or one of a profile, or the name of a
        preset. Without one, `thg.within(0.01)`: the evaluations that keep the result within about 1 % of plain CFG's.
    layout: for a pipeline that thg does not know: how it lays out its branches (`thg.Batched()`, `thg.Sequential()`).

    Enabling again replaces the plan.
    """
    found = layout or _layout(pipe)
    maker = guide_maker(plan)
    if isinstance(found, Delegates):
        for part in _parts(pipe, found):
            enable(part, plan)
        return
    disable(pipe)
    _enabled[pipe] = Enabled(pipe, found, maker)


def disable(pipe: Any) -> None:
    """Undoes `enable`: the pipeline is what it was. Harmless on a pipeline that is not enabled."""
    entry = _enabled.pop(pipe, None)
    if entry is not None:
        entry.undo()
        return
    for part in _enabled_parts(pipe):
        disable(part)


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


def _networks(pipe: Any, layout: Batched | Sequential) -> list[tuple[torch.nn.Module, str]]:
    """The networks of a pipeline that guidance concerns, with their roles."""
    roles = [(name, "denoiser") for name in layout.denoisers]
    if isinstance(layout, Sequential) and layout.unconditional is not None:
        roles.append((layout.unconditional, "unconditional"))
    if isinstance(layout, Batched):
        roles.append(("controlnet", "control"))
    found = [(getattr(pipe, name, None), role) for name, role in roles]
    networks = [(network, role) for network, role in found if isinstance(network, torch.nn.Module)]
    if all(role == "control" for _, role in networks):
        raise UnsupportedPipelineError(
            f"this {type(pipe).__name__} has no network under {' or '.join(layout.denoisers)}; load it first"
        )
    return networks
