"""A pipeline that thg is enabled on: what was patched, and its runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from thg.adapter import patch
from thg.adapter.layouts import Batched, Sequential, guided_networks
from thg.adapter.run import GuidedRun
from thg.errors import ConcurrentRunError, UnsupportedPipelineError
from thg.pipelines.remembered import remembered
from thg.pipelines.run import LeapingRun
from thg.pipelines.watch import networks_of
from thg.plans.guide import GuideMaker
from thg.plans.planners import Planned
from thg.plans.report import Summary

Networks = Callable[[Any], dict[torch.nn.Module, str]]
"""The networks of a pipeline that are patched, with their names."""


class EnabledPipeline:
    """What was patched, so that it can be restored, and the current run. Keeps neither pipeline nor networks alive.

    maker: what was enabled. networks: finds those to patch. start: makes the run of a call with these arguments.
    """

    def __init__(
        self,
        pipe: Any,
        maker: Planned | GuideMaker,
        networks: Networks,
        start: Callable[[EnabledPipeline, Any, Mapping[str, Any]], patch.OpenRun],
    ) -> None:
        self.name, self.maker = type(pipe).__name__, maker
        self.run: patch.OpenRun | None = None  # the open one
        self._last: patch.OpenRun | None = None
        self._find, self._start = networks, start
        self._lock = threading.Lock()
        self._networks: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.redo(pipe)

    def redo(self, pipe: Any) -> None:
        """Patches the pipeline, at first or again."""
        self._route(self._find(pipe))
        patch.route_calls(pipe, self)
        self._when_forgotten = weakref.finalize(pipe, self._route, {})
        self._when_forgotten.atexit = False

    def undo(self, pipe: Any) -> None:
        """Restores the pipeline."""
        self._when_forgotten.detach()
        try:
            self._route({})
        finally:
            patch.restore_calls(pipe)

    def _route(self, networks: dict[torch.nn.Module, str]) -> None:
        """Patches the pipeline's current networks, and restores those that it no longer has."""
        for network in set(self._networks).difference(networks):
            patch.release(network, self)
        for network, name in networks.items():
            patch.acquire(network, self, name)
        self._networks = weakref.WeakSet(networks)

    @contextmanager
    def opened_run(self, pipe: Any, arguments: Mapping[str, Any]) -> Iterator[None]:
        """A context for a call of the pipeline. Refused before any state changes if another thread is in one."""
        with self._lock:
            before = self.run
            if before is not None and before.thread != threading.get_ident():
                raise ConcurrentRunError(
                    f"this {self.name} is running in another thread; a pipeline and its scheduler hold the state of "
                    "one run. Use a lock, or one pipeline per thread; they can share all but the scheduler: "
                    "type(pipe)(**{**pipe.components, 'scheduler': copy.deepcopy(pipe.scheduler)})"
                )
            self._route(self._find(pipe))
            self.run = self._last = run = self._start(self, pipe, arguments)
        try:
            with run.opened():
                yield
        finally:
            self.run = before

    def summary(self) -> Summary:
        """The cost of the last run."""
        if self._last is None:
            return Summary(self.name, 0, 0, 0, (), 0.0, note="enabled, and no run yet")
        return self._last.summary()


# -- the two ways to follow a plan


def enable_leaps(pipe: Any, planned: Planned, *, tuned: bool) -> None:
    """Enables leaps of the whole network. tuned: a result of `thg.tune` is used instead, if there is one."""

    def start(owner: EnabledPipeline, pipe: Any, arguments: Mapping[str, Any]) -> patch.OpenRun:
        found = remembered(pipe) if tuned else None
        return LeapingRun(owner, pipe, planned if found is None else Planned(found))

    EnabledPipeline(pipe, planned, _denoising_networks, start)


def enable_guide(pipe: Any, maker: GuideMaker, layout: Batched | Sequential) -> None:
    """Enables a plan of the guidance term, on a pipeline with this layout."""

    def start(owner: EnabledPipeline, pipe: Any, arguments: Mapping[str, Any]) -> patch.OpenRun:
        return GuidedRun(owner, pipe, layout, maker, arguments)

    EnabledPipeline(pipe, maker, partial(guided_networks, layout=layout), start)


def _denoising_networks(pipe: Any) -> dict[torch.nn.Module, str]:
    networks = networks_of(pipe)
    if not networks:
        raise UnsupportedPipelineError(f"this {type(pipe).__name__} has no network that denoises; load it first")
    return networks
