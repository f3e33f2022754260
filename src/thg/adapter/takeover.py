"""One enabled pipeline: what was patched, so that it can be restored, and the current run."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from thg.adapter import patch
from thg.adapter.classes import original_class
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.lesson import Lesson
from thg.adapter.observe import candidates
from thg.adapter.run import PipelineRun
from thg.errors import ConcurrentRunError, UnsupportedPipelineError
from thg.plans.guide import GuideMaker
from thg.plans.report import Summary


class Takeover:
    """A pipeline that thg is enabled on. Keeps neither the pipeline nor its networks alive."""

    def __init__(self, pipe: Any, layout: Batched | Sequential | None, maker: GuideMaker) -> None:
        """layout: None if it has to be inferred."""
        self.name = type(pipe).__name__
        self.lesson, self.maker = Lesson(original_class(pipe), layout), maker
        self.run: PipelineRun | None = None  # the open one
        self._last: PipelineRun | None = None
        self._lock = threading.Lock()
        self._networks: list[weakref.ref[torch.nn.Module]] = []
        self.acquire(pipe)
        patch.route_calls(pipe, self)
        self._when_forgotten = weakref.finalize(pipe, self._release)
        self._when_forgotten.atexit = False

    def undo(self, pipe: Any) -> None:
        """Restores the pipeline."""
        self._when_forgotten.detach()
        try:
            self._release()
        finally:
            patch.restore_calls(pipe)

    def acquire(self, pipe: Any) -> None:
        """Patches the pipeline's current networks, and restores those that it no longer has."""
        self.lesson.refresh(pipe)
        networks = _networks(pipe, self.lesson.layout)
        for reference in self._networks:
            network = reference()
            if network is not None and all(network is not wanted for wanted, _, _ in networks):
                patch.release(network, self)
        for network, role, name in networks:
            patch.acquire(network, self, role, name)
        self._networks = [weakref.ref(network) for network, _, _ in networks]

    def _release(self) -> None:
        for reference in self._networks:
            network = reference()
            if network is not None:
                patch.release(network, self)

    @contextmanager
    def opened_run(self, pipe: Any) -> Iterator[None]:
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
            self.run = self._last = run = PipelineRun(self, pipe, self.lesson, self.maker)
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


def _networks(pipe: Any, layout: Batched | Sequential | None) -> list[tuple[torch.nn.Module, str, str]]:
    """The networks of a pipeline that take part in guidance, with their roles and names."""
    if layout is None:  # to be inferred: all that could be the denoiser
        return [(network, "denoiser", name) for name, network in candidates(pipe).items()]
    roles = [(name, "denoiser") for name in layout.denoisers]
    if isinstance(layout, Sequential) and layout.unconditional is not None:
        roles.append((layout.unconditional, "unconditional"))
    if isinstance(layout, Batched):
        roles.append(("controlnet", "control"))
    components = [(getattr(pipe, name, None), role, name) for name, role in roles]
    networks = [(network, role, name) for network, role, name in components if isinstance(network, torch.nn.Module)]
    if all(role == "control" for _, role, _ in networks):
        raise UnsupportedPipelineError(
            f"this {type(pipe).__name__} has no network under {' or '.join(layout.denoisers)}; load it first"
        )
    return networks
