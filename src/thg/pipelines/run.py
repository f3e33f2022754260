"""One call of an enabled pipeline: what runs of either kind have in common (`leaping`, `guided`).

The pipeline's call opens the run and always closes it. A step is what happens between two calls of `scheduler.step`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
import types
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor

from thg.pipelines.caches import caches_in
from thg.pipelines.describe import describe
from thg.pipelines.identity import fingerprint
from thg.plans.report import Summary
from thg.plans.run import RunInfo

LOG = logging.getLogger("thg")
BROKEN = "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
LENGTH = "_num_timesteps"  # where pipelines keep the number of steps of their loop


class PipelineRun(ABC):
    """The state of one call of a pipeline; its tensors are dropped when the call ends, its summary remains.

    context: the pipeline's current cache context. calls_outside: network calls from other threads or tasks meanwhile.
    """

    def __init__(self, owner: Any, pipe: Any) -> None:
        self.owner, self.name, self.pipe = owner, type(pipe).__name__, pipe
        self.thread = threading.get_ident()
        self.context = ""
        self.calls_outside = 0
        self.caches = [cache for network in owner.networks for cache in caches_in(network)]
        self.cache_names = tuple(sorted({name for name, _ in self.caches}))
        self.plain_because = ""  # why everything is evaluated from now on
        self.evaluations: list[int] = []  # of each step, per sample
        self.plain_evaluations: list[int] = []  # of the plain run
        self.failed = False
        self.started = self.ended = time.perf_counter()

    @abstractmethod
    def answer(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        """Answers a call of one of the pipeline's networks, which has this name in it."""

    @abstractmethod
    def step(self, scheduler: Any, output: Tensor, arguments: dict[str, Any]) -> Tensor:
        """The output that a scheduler gets in place of the pipeline's."""

    @abstractmethod
    def close(self) -> None:
        """Drops everything that holds tensors."""

    @abstractmethod
    def summary(self) -> Summary:
        """The cost of the run."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context for the pipeline's call."""
        length = vars(self.pipe).pop(LENGTH, None)  # of an earlier run
        try:
            with watched(self):
                yield
        except BaseException:
            self.failed = True
            raise
        finally:
            self._log()
            self.close()
            self.caches.clear()
            if length is not None:
                vars(self.pipe).setdefault(LENGTH, length)
            self.pipe = None

    def described(
        self, scheduler: Any, timesteps: Any, obstacle: str, first: Any, data_as_velocity: bool = False
    ) -> RunInfo:
        """A loop over these time steps, which may end before the last of them. The arguments: as for `describe`."""
        found = vars(self.pipe).get(LENGTH)
        length = found if isinstance(found, int) and found > 0 else None
        run = describe(scheduler, timesteps, obstacle, first, length, data_as_velocity)
        return replace(run.part(0, min(length or run.steps, run.steps)), network=fingerprint(self.pipe))

    def summed_up(self, notes: Iterable[str], **found: Any) -> Summary:
        """The summary of the run with what else was found."""
        found = {"nfe": sum(self.evaluations), "cfg_nfe": sum(self.plain_evaluations), **found}
        return Summary(
            pipeline=self.name,
            evaluations=tuple(self.evaluations),
            seconds=self.ended - self.started,
            note="; ".join(note for note in dict.fromkeys(notes) if note),
            caches=self.cache_names,
            **found,
        )

    def reason(self) -> str:
        """Why nothing was saved, if that is known without a wait for the device."""
        return self.plain_because and f"everything was evaluated: {self.plain_because}"

    def _log(self) -> None:
        """One line per run."""
        if (reason := self.reason()) and not self.failed:
            LOG.warning("%s: %s", self.name, reason)
        else:
            spent, plain = sum(self.evaluations), sum(self.plain_evaluations)
            LOG.info("%s: %d network evaluations instead of %d", self.name, spent, plain)

    def notes_on_calls(self) -> Iterator[str]:
        if self.calls_outside:
            yield (
                f"{self.calls_outside} network calls came from another thread or task than the run and were evaluated; "
                "thg follows the thread that calls the pipeline"
            )
        elif not self.evaluations and not self.failed:
            yield "no network call was seen before the pipeline returned (a generator that it returns is not followed)"


# -- the schedulers of the pipeline, within a run


@contextmanager
def watched(run: PipelineRun) -> Iterator[None]:
    """Within a block, the schedulers of the run's pipeline get the outputs that `run.step` returns."""
    schedulers = [part for part in vars(run.pipe).values() if hasattr(part, "step") and hasattr(part, "set_timesteps")]
    before = [vars(scheduler).get("step") for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.step = _watched_step(scheduler, run)
    try:
        yield
    finally:
        for scheduler, step in zip(schedulers, before, strict=True):
            if step is not None:
                scheduler.step = step
            else:
                vars(scheduler).pop("step", None)


def _watched_step(scheduler: Any, run: PipelineRun) -> types.MethodType:
    """A method in place of a scheduler's `step`. Copies that the pipeline makes of the scheduler have it as well."""
    plain = scheduler.step
    names = tuple(inspect.signature(plain).parameters)

    @functools.wraps(type(scheduler).step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        own = plain if self is scheduler else types.MethodType(type(self).step, self)
        arguments = dict(zip(names, args, strict=False)) | kwargs
        output = arguments.pop(names[0], None)
        if not isinstance(output, Tensor) or run.pipe is None:  # a copy may outlive the run
            return own(*args, **kwargs)
        return own(run.step(self, output, arguments), **arguments)

    return types.MethodType(step, scheduler)
