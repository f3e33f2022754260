"""A run that stands still in the middle, so that no test has to be quicker than the network."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from thg.plans.plan import Plan
from thg.studio.engine import Engine
from thg.studio.jobs import Emit
from thg.studio.model import Model
from thg.studio.specs import RunRequest


class WatchedEngine(Engine):
    """An engine of which one can see whether its run was cancelled."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.cancelled = threading.Event()
        self._warm = True  # each call of the network belongs to a run that a test has asked for

    def compare(self, request: RunRequest, plan: Plan, emit: Emit, cancelled: threading.Event) -> None:
        self.cancelled = cancelled
        super().compare(request, plan, emit, cancelled)


class Hold:
    """In front of each call of the network: counts them, and lets no more than `after` through until it is released.

    A cancelled run goes on, so that it can end.
    """

    def __init__(self, engine: WatchedEngine, after: int) -> None:
        self.engine = engine
        self.after = after
        self.calls = 0
        self.released = threading.Event()

    def __call__(self, network: Any, arguments: Any) -> None:
        self.calls += 1
        while self.calls > self.after and not self.released.is_set() and not self.engine.cancelled.is_set():
            self.released.wait(0.01)


@contextmanager
def held(engine: WatchedEngine, after: int = 5) -> Iterator[Hold]:
    """The network of the next run stands still after so many calls."""
    hold = Hold(engine, after)
    handle = engine.model.pipe.unet.register_forward_pre_hook(hold)
    try:
        yield hold
    finally:
        hold.released.set()
        handle.remove()
