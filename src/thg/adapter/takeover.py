"""One enabled pipeline: what was patched, so that it can be restored, and the current run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import patch
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.run import PipelineRun
from thg.errors import ConcurrentRunError, UnsupportedPipelineError
from thg.plans.guide import GuideMaker
from thg.plans.report import Summary

CONTROL = "controlnet"  # takes the same rows as the denoiser, before it


class Takeover:
    """A pipeline that thg is enabled on. Keeps neither the pipeline nor its networks alive."""

    def __init__(self, pipe: Any, layout: Batched | Sequential, maker: GuideMaker) -> None:
        self.name = type(pipe).__name__
        self.layout, self.maker = layout, maker
        self.run: PipelineRun | None = None  # the open one
        self._last: PipelineRun | None = None
        self._lock = threading.Lock()
        self._networks: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self.redo(pipe)

    def redo(self, pipe: Any) -> None:
        """Patches the pipeline, at first or again."""
        self.acquire(pipe)
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

    def acquire(self, pipe: Any) -> None:
        """Patches the pipeline's current networks, and restores those that it no longer has."""
        self._route(_networks(pipe, self.layout))

    def _route(self, networks: dict[torch.nn.Module, str]) -> None:
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
            self.acquire(pipe)
            self.run = self._last = run = PipelineRun(self, pipe, self.layout, self.maker, arguments)
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


def _networks(pipe: Any, layout: Batched | Sequential) -> dict[torch.nn.Module, str]:
    """The networks of a pipeline that take part in guidance, with their names."""
    names = (*layout.networks, *((CONTROL,) if isinstance(layout, Batched) else ()))
    parts = [(getattr(pipe, name, None), name) for name in names]
    networks = {part: name for part, name in parts if isinstance(part, torch.nn.Module)}
    if not set(networks.values()) & set(layout.denoisers):
        raise UnsupportedPipelineError(
            f"this {type(pipe).__name__} has no network under {' or '.join(layout.denoisers)}; load it first"
        )
    return networks
