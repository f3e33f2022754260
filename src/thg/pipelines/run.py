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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.pipelines.caches import caches_in
from thg.pipelines.describe import describe
from thg.pipelines.identity import fingerprint
from thg.plans.run_info import RunInfo
from thg.plans.summary import Summary

LOG = logging.getLogger("thg")
BROKEN = "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
_RUN = "_thg_run"
SCALES = ("true_cfg_scale", "true_cfg", "guidance_scale")  # among the arguments of a pipeline's call
LENGTH = "_num_timesteps"  # where pipelines keep the number of steps of their loop


@dataclass(eq=False)
class Loop:
    """The steps over the time steps of a scheduler.

    index: how many were begun. finished: all of them. finite: whether the last output was; error: the estimated
    difference from the plain run. Both are known after the last step, on the device.
    """

    run: RunInfo
    index: int = 0
    finished: bool = False
    finite: Tensor | None = None
    error: Tensor | None = None


class PipelineRun(ABC):
    """The state of one call of a pipeline; its tensors are dropped when the call ends, its summary remains.

    loops: over the time steps of schedulers, in order; a pipeline may set them several times. calls_outside: network
    calls from other threads or tasks meanwhile.
    """

    loops: Sequence[Loop]

    def __init__(self, owner: Any, pipe: Any, arguments: Mapping[str, Any]) -> None:
        """arguments: of the pipeline's call."""
        self.owner, self.name, self.pipe = owner, type(pipe).__name__, pipe
        self.thread = threading.get_ident()
        self.calls_outside = 0
        self.caches = [cache for network in owner.networks for cache in caches_in(network)]
        self.cache_names = tuple(sorted({name for name, _ in self.caches}))
        given = next((arguments[name] for name in SCALES if arguments.get(name) is not None), None)
        self._stated_scale = float(given) if isinstance(given, int | float) else None
        self.plain_because = ""  # why everything is evaluated from now on
        self.evaluations: list[int] = []  # of each step, per sample
        self.plain_evaluations: list[int] = []  # of the plain run
        self.failed = False
        self._watched: list[tuple[Any, Any]] = []  # schedulers, and what they had in place of their class's `step`
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
            self.watch()
            yield
        except BaseException:
            self.failed = True
            raise
        finally:
            self._unwatch()
            self.close()
            self._log()
            self.caches.clear()
            if length is not None:
                vars(self.pipe).setdefault(LENGTH, length)
            self.pipe = None

    def watch(self) -> None:
        """From now on the pipeline's schedulers get what `step` returns, also those made since the last time."""
        for part in list(vars(self.pipe).values()):
            if (
                hasattr(part, "step")
                and hasattr(part, "set_timesteps")
                and not any(part is one for one, _ in self._watched)
            ):
                before = vars(part).get("step")
                if _run_of(before) is self:  # a copy of one that is watched
                    before = None
                else:
                    part.step = _watched_step(part, self)
                self._watched.append((part, before))

    def _unwatch(self) -> None:
        self.watch()  # a copy is left without a `step` of its own
        for scheduler, step in self._watched:
            if step is not None:
                scheduler.step = step
            else:
                vars(scheduler).pop("step", None)
        self._watched.clear()

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
        last = self.loops[-1:]
        return Summary(
            pipeline=self.name,
            steps=max(len(self.evaluations), sum(loop.run.steps for loop in last)),
            nfe=sum(self.evaluations),
            cfg_nfe=sum(self.plain_evaluations),
            evaluations=tuple(self.evaluations),
            seconds=self.ended - self.started,
            finished=not self.failed and (bool(self.plain_because) or all(loop.finished for loop in last)),
            note="; ".join(note for note in dict.fromkeys(self._with_doubts(notes)) if note),
            finite=self.finite,
            sections=max(1, len(self.loops)),
            caches=self.cache_names,
            estimated_error=self._estimated_error(),
            **found,
        )

    @property
    def finite(self) -> bool:
        return all(loop.finite is None or bool(loop.finite) for loop in self.loops)

    def _estimated_error(self) -> tuple[float, ...] | None:
        """Of all loops together, per sample."""
        errors = [loop.error for loop in self.loops if loop.error is not None]
        if not errors or any(error.shape != errors[0].shape for error in errors):
            return None
        return tuple(torch.stack(errors).square().sum(0).sqrt().tolist())

    def _with_doubts(self, notes: Iterable[str]) -> Iterator[str]:
        """The notes between what is true of all runs."""
        if not self.finite:
            yield BROKEN
        yield from notes
        yield from self._notes_on_calls()

    @property
    def has_leapt(self) -> bool:
        return sum(self.evaluations) < sum(self.plain_evaluations)

    def reason(self) -> str:
        """Why nothing was saved, if that is known without a wait for the device."""
        evaluated = "the rest" if self.has_leapt else "everything"
        return self.plain_because and f"{evaluated} was evaluated: {self.plain_because}"

    def _log(self) -> None:
        """One line per run."""
        spent, plain = sum(self.evaluations), sum(self.plain_evaluations)
        if self.failed:
            LOG.info("%s: stopped after %d network evaluations", self.name, spent)
        elif reason := self.reason():
            LOG.warning("%s: %s", self.name, reason)
        else:
            LOG.info("%s: %d network evaluations instead of %d", self.name, spent, plain)

    def _notes_on_calls(self) -> Iterator[str]:
        if self.calls_outside:
            yield (
                f"{self.calls_outside} network calls came from another thread or task than the run and were evaluated; "
                "thg follows the thread that calls the pipeline"
            )
        elif not self.evaluations and not self.failed:
            yield (
                "no network call was seen before the pipeline returned (thg follows neither a generator that it "
                "returns nor calls of a network's `forward`)"
            )


# -- the schedulers of the pipeline, within a run


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

    vars(step)[_RUN] = run
    return types.MethodType(step, scheduler)


def _run_of(step: Any) -> PipelineRun | None:
    """The run that such a method belongs to."""
    return getattr(step, _RUN, None)
