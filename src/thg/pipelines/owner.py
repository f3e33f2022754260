"""A pipeline on which leaps of the whole network are enabled."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import patch
from thg.errors import ConcurrentRunError, UnsupportedPipelineError
from thg.pipelines.remembered import remembered
from thg.pipelines.run import LeapingRun
from thg.pipelines.watch import networks_of
from thg.plans.planners import Planned
from thg.plans.report import Summary


class EnabledPipeline:
    """What was patched, so that it can be restored, and the current run. Keeps neither pipeline nor networks alive."""

    def __init__(self, pipe: Any, planned: Planned, *, tuned: bool = False) -> None:
        """tuned: a result of `thg.tune` is used instead, if there is one."""
        self.name, self.maker, self._tuned = type(pipe).__name__, planned, tuned
        self.run: LeapingRun | None = None  # the open one
        self._last: LeapingRun | None = None
        self._lock = threading.Lock()
        self._networks: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        if not networks_of(pipe):
            raise UnsupportedPipelineError(f"this {self.name} has no network that denoises; load it first")
        self.redo(pipe)

    def redo(self, pipe: Any) -> None:
        """Patches the pipeline, at first or again."""
        self._route(networks_of(pipe))
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
            self._route(networks_of(pipe))
            tuned = remembered(pipe) if self._tuned else None
            self.run = self._last = run = LeapingRun(self, pipe, self.maker if tuned is None else Planned(tuned))
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
