"""The state of one run of an enabled pipeline: made when the run starts, and of no use after it."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from thg.adapter.rows import tensors_of
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide, Run
from thg.plans.plan import Plan


class RunState:
    """Everything that belongs to one run and to no other."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.started = self.ended = time.perf_counter()
        self.run: Run | None = None  # known at the first network call
        self.guide: Guide | None = None
        self.timesteps: weakref.ref[Any] | None = None
        self.step = -1  # the step under way
        self.rows: int | None = None  # rows of a call with all branches
        self.time: Any = None  # the time of the step under way
        self.evaluations: list[int] = []  # per step, per sample
        self.plain: list[int] = []  # the same for plain CFG
        self.guided_steps = 0
        self.failed = False  # the network has raised
        # sequential pipelines: the conditional call of the step under way
        self.sample: Any = None
        self.output: Any = None
        self.conditional: Any = None  # its network and arguments, for a guide that visits
        self.answered = True
        self.plan: Plan | None = None
        self.is_finite: Callable[[], bool] = lambda: True  # was the last output free of NaN? Waits for the device

    def next_step(self, pipeline: str) -> int:
        assert self.run is not None
        self.step += 1
        if self.step >= self.run.steps:
            raise UnsupportedPipelineError(
                f"{pipeline} calls its network more often than the {self.run.steps} time steps of its run; thg cannot "
                "tell which calls belong to which step. Please report this pipeline; thg.disable(pipe) meanwhile"
            )
        self.evaluations.append(0)
        self.plain.append(0)
        return self.step

    def evaluated(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain[-1] += instead_of
        self.ended = time.perf_counter()

    @property
    def at_last_step(self) -> bool:
        return self.run is not None and self.step == self.run.steps - 1

    def ended_with(self, output: Any) -> None:
        """The last output of the run. A NaN anywhere spreads to all later states, so this one tells for all."""
        flags = [torch.isfinite(tensor).all() for tensor in tensors_of(output)]
        self.is_finite = functools.partial(all, flags)

    def release(self) -> None:
        """Drops what holds tensors, and keeps what the summary needs."""
        self.sample = self.output = self.time = self.conditional = None
        if self.guide is not None:
            self.plan = self.guide.plan
        self.guide = None
