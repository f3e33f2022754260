"""One call of a pipeline in which the whole network leaps.

Two interceptions: the networks' calls and `scheduler.step`. A step is what happens between two calls of
`scheduler.step`. At a skipped step the networks' calls are answered with their last outputs, and the scheduler gets a
predicted output in place of the one that the pipeline has made from them. Nothing depends on branches, guidance
formulas or layouts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.adapter.caches import Caches, caches_in
from thg.adapter.call import Call
from thg.adapter.describe import describe
from thg.adapter.identity import fingerprint
from thg.adapter.observe import NOISE_ARGUMENTS, watched
from thg.adapter.outputs import at_least_float32, rows_of
from thg.adapter.patch import current
from thg.adapter.stated import LENGTH
from thg.pipelines.watch import SeenCall
from thg.plans.fidelity import predictable
from thg.plans.leaps import Leaps
from thg.plans.planners import Planned
from thg.plans.report import Summary, lost_in
from thg.plans.response import ADDS_NOISE
from thg.plans.run import Run
from thg.plans.tuned import Tuned

LOG = logging.getLogger("thg")
HOPELESS = 2.0  # relative miss of a prediction, from which on a result is doubtful
BESIDE = ("controlnet", "adapter", "projection", "connector")  # networks that run beside the denoiser: not counted


@dataclass(eq=False)
class Loop:
    """The steps of one scheduler over its time steps.

    index: of the next step. time: of the last step. error, finite, miss, lost: known at the last step, on the device.
    """

    scheduler: Any
    timesteps: Any
    run: Run
    leaps: Leaps
    index: int = 0
    time: Any = None
    shape: torch.Size | None = None
    error: Tensor | None = None
    finite: Tensor | None = None
    miss: Tensor | None = None
    lost: tuple[list[int], Tensor] | None = None

    @property
    def finished(self) -> bool:
        return self.index == self.run.steps

    @property
    def superseded(self) -> bool:
        """Has the pipeline set new time steps?"""
        return self.scheduler.timesteps is not self.timesteps

    def observe(self, output: Tensor) -> Tensor:
        """The output to use in an evaluated step."""
        if output.shape != self.shape:
            self.leaps.forget()
        self.shape = output.shape
        copied = (at_least_float32(output) if output.dtype != torch.float32 else output.clone(),)
        used = self.leaps.observe(self.index, copied)
        return output if used is copied else used[0].to(output.dtype)

    def predict(self, output: Tensor) -> Tensor:
        """The output to use in a step without an evaluation."""
        return self.leaps.predict(self.index)[0].to(output.dtype)

    def advance(self, time: Any, used: Tensor, sample: Any) -> None:
        self.index, self.time = self.index + 1, time
        if self.finished:
            self.finite = torch.isfinite(used).all()  # NaN spreads to all later states
            self.error = self.leaps.estimated_error(sample) if isinstance(sample, Tensor) else None
            self.miss, self.lost = self.leaps.largest_miss(), self.leaps.lost()
            self.leaps.forget()


class LeapingRun:
    """The state of one call of a pipeline; its tensors are dropped when the call ends, its summary remains."""

    def __init__(self, owner: Any, pipe: Any, planned: Planned) -> None:
        self.owner, self.name = owner, type(pipe).__name__
        self.context = ""  # the pipeline's cache context
        self.calls_outside = 0  # network calls from other threads or tasks while the run was open
        self.thread = threading.get_ident()
        self._pipe: Any = pipe
        self._planned = planned
        self._loops: list[Loop] = []
        self._plain_because = ""  # why everything is evaluated from now on
        self._calls: list[SeenCall] = []  # of the last evaluated step, in order
        self._caches: dict[
            Any, Caches
        ] = {}  # inside the networks; they act on the evaluated steps, in their own rhythm
        self._cache_names: tuple[str, ...] = ()
        self._scales: list[Any] = []  # the pipeline's guidance scale at each step
        # the current step
        self._stepped = True  # a scheduler has made its step, and no network was called since
        self._evaluating = True
        self._broken = False  # a call has changed after others were answered without the network
        self._index = 0  # of the next call
        self._rows = 0  # of the networks' outputs
        # for the summary
        self._evaluations: list[int] = []  # per sample, of each step
        self._plain_evaluations: list[int] = []  # of the plain run
        self._failed = False
        self._started = self._ended = time.perf_counter()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context for the pipeline's call. It frees all tensors; the summary remains available."""
        token = current.set(self)
        length = vars(self._pipe).pop(LENGTH, None)  # of an earlier run
        try:
            with watched(self._pipe, self.step):
                yield
        except BaseException:
            self._failed = True
            raise
        finally:
            current.reset(token)
            self._log()
            if length is not None:
                vars(self._pipe).setdefault(LENGTH, length)
            self._pipe = None
            self._calls.clear()
            self._cache_names = tuple(dict.fromkeys(cache.name for found in self._caches.values() for cache in found))
            for caches in self._caches.values():
                caches.empty()
            self._caches.clear()
            for loop in self._loops:
                loop.leaps.forget()
                loop.scheduler = loop.timesteps = loop.time = None

    # -- a network's call

    def answer(self, call: Call) -> Any:
        """Answers a call of one of the pipeline's networks."""
        if self._stepped:
            self._begin_step()
        index, self._index = self._index, self._index + 1
        if self._evaluating:  # calls that came before the loop are not repeated
            known = (k for k in range(index, len(self._calls)) if self._calls[k].repeats(call))
            del self._calls[index : next(known, index)]
        seen = self._calls[index] if index < len(self._calls) else None
        if seen is None or not seen.repeats(call):
            self._break(at=index)
        if not self._evaluating:
            assert seen is not None
            return seen.output
        if call.module not in self._caches:  # what an earlier run has left in them is not used
            self._caches[call.module] = caches_in(call.module)
        made = SeenCall.of(call, call, seen)
        self._ended = time.perf_counter()
        self._calls[index : index + 1] = [made]
        if not any(name in call.name for name in BESIDE):
            self._rows += rows_of(made.output)
        return made.output

    def _begin_step(self) -> None:
        self._stepped, self._broken, self._index, self._rows = False, False, 0, 0
        self._scales.append(_number(getattr(self._pipe, "guidance_scale", None)))
        active = self._active()
        self._evaluating = not active or any(loop.leaps.evaluates(loop.index) for loop in active)
        if _jumped(self._scales):
            self._break(at=0)

    def _active(self) -> list[Loop]:
        """The loops that are under way. None if everything has to be evaluated."""
        if self._plain_because:
            return []
        return [loop for loop in self._loops if not loop.finished and not loop.superseded]

    def _break(self, at: int) -> None:
        """The outputs change for another reason than time: evaluates from this call on, and starts anew."""
        for loop in self._active():
            loop.leaps.forget()
        self._broken = not self._evaluating and at > 0
        self._evaluating = True
        del self._calls[at:]

    # -- a step of a scheduler

    def step(self, scheduler: Any, output: Tensor, arguments: dict[str, Any]) -> Tensor:
        """The output that a scheduler gets in place of the pipeline's."""
        if self._pipe is None:  # a copy of the scheduler that has outlived the run
            return output
        if not self._evaluating and self._index < len(self._calls):  # calls are missing: guidance has ended
            self._break(at=self._index)
        if not self._stepped:
            self._count(len(output) if output.ndim else 1)
        self._stepped = True
        if self._plain_because:
            return output
        moment = arguments.get("timestep")
        loop = next((loop for loop in self._active() if loop.scheduler is scheduler), None)
        if loop is None:
            loop = self._begin_loop(scheduler, moment, arguments)
        elif _is_again(loop, moment):
            self._plain_because = "it makes several steps of its scheduler at one time"
        if self._plain_because or loop is None:
            return output
        used = output
        if self._evaluating and not self._broken:
            used = loop.observe(output)
        elif not self._evaluating and output.shape == loop.shape:
            used = loop.predict(output)
        loop.advance(moment, used, arguments.get("sample"))
        return used

    def _begin_loop(self, scheduler: Any, moment: Any, arguments: dict[str, Any]) -> Loop | None:
        """Plans the steps of a scheduler. Waits for the device once; nothing else in a run does."""
        timesteps = getattr(scheduler, "timesteps", None)
        if timesteps is None or len(timesteps) == 0:
            self._plain_because = f"{type(scheduler).__name__} has no time steps"
            return None
        noise = next((name for name in NOISE_ARGUMENTS if arguments.get(name)), "")
        obstacle = f"the scheduler {ADDS_NOISE} at every step ({noise} above 0)" if noise else ""
        run = describe(scheduler, timesteps, obstacle, moment)
        length = vars(self._pipe).get(LENGTH)
        if isinstance(length, int) and 0 < length < run.steps:
            run = run.part(0, length)
        run = replace(
            run,
            guidance_scale=self._scales[-1] if self._scales else None,
            network=fingerprint(self._pipe),
            branches=max(1, self._plain_evaluations[-1]) if self._plain_evaluations else 1,
        )
        self._loops.append(Loop(scheduler, timesteps, run, self._planned.leaps(run)))
        return self._loops[-1]

    def _count(self, samples: int) -> None:
        """Counts the evaluations of a step."""
        if self._evaluating:
            branches = self._rows // samples if self._rows % samples == 0 else len(self._calls)
            self._evaluations.append(branches)
            self._plain_evaluations.append(max(branches, self._index) if self._broken else branches)
        else:
            self._evaluations.append(0)
            self._plain_evaluations.append(self._plain_evaluations[-1])

    # -- afterwards

    def _log(self) -> None:
        """One line per run; nothing here waits for the device."""
        reason = next(iter(self._reasons()), "")
        spent, plain = sum(self._evaluations), sum(self._plain_evaluations)
        if reason and not self._failed:
            LOG.warning("%s: %s", self.name, reason)
        else:
            LOG.info("%s: %d network evaluations instead of %d", self.name, spent, plain)

    def summary(self) -> Summary:
        finite = all(loop.finite is None or bool(loop.finite) for loop in self._loops)
        return Summary(
            pipeline=self.name,
            steps=max(len(self._evaluations), sum(loop.run.steps for loop in self._loops[-1:])),
            nfe=sum(self._evaluations),
            cfg_nfe=sum(self._plain_evaluations),
            evaluations=tuple(self._evaluations),
            seconds=self._ended - self._started,
            plan=self._loops[-1].leaps.plan if self._loops and not self._plain_because else None,
            finished=not self._failed and all(loop.finished for loop in self._loops[-1:]),
            note="; ".join(filter(None, self._notes(finite))),
            finite=finite,
            sections=max(1, len(self._loops)),
            caches=self._cache_names,
            estimated_error=self._estimated_error(),
            lost=lost_in(self._loops[-1].lost) if self._loops else (),
        )

    def _estimated_error(self) -> tuple[float, ...] | None:
        """Of all loops together, per sample."""
        errors = [loop.error for loop in self._loops if loop.error is not None]
        if not errors or any(error.shape != errors[0].shape for error in errors):
            return None
        return tuple(torch.stack(errors).square().sum(0).sqrt().tolist())

    def _reasons(self) -> Iterator[str]:
        """Why nothing was saved."""
        if self._plain_because:
            yield f"everything was evaluated: {self._plain_because}"
        elif self._evaluations and not self._loops:
            yield "everything was evaluated: no step of the pipeline's scheduler was seen"
        for loop in self._loops[-1:]:
            if loop.run.adds_noise:
                yield f"everything was evaluated: {loop.run.no_response}, and noise cannot be predicted"
            elif loop.run.clips:
                yield (
                    f"everything was evaluated: {loop.run.no_response}, and what is clipped cannot be predicted; with "
                    "clip_sample=False in the scheduler's configuration it can"
                )
            elif loop.leaps.plan.evaluations == loop.run.steps:
                yield f"everything was evaluated: {loop.run.steps} steps are too few to leave one out at this tolerance"

    def _notes(self, finite: bool) -> Iterator[str]:
        if not finite:
            yield "NaN or infinity in the last output: this result is broken. In half precision, try float32"
        yield from self._reasons()
        if any(loop.miss is not None and bool(loop.miss > HOPELESS) for loop in self._loops):
            yield (
                "this result may be wrong: a prediction has missed by more than twice the output itself (an unstable "
                "scheduler, conditions that contradict each other, or too few evaluated steps)"
            )
        for loop in self._loops[-1:]:
            if loop.run.response is None and predictable(loop.run):
                yield f"predictions were not corrected: {loop.run.no_response}"
        if isinstance(self._planned.planner, Tuned):
            yield str(self._planned.planner)
        if self.calls_outside:
            yield (
                f"{self.calls_outside} network calls came from another thread or task than the run and were evaluated; "
                "thg follows the thread that calls the pipeline"
            )
        if not self._evaluations and not self._failed:
            yield "no network call was seen before the pipeline returned (a generator that it returns is not followed)"


def _is_again(loop: Loop, moment: Any) -> bool:
    """Is this another step at the time of the last one?"""
    if isinstance(moment, Tensor):
        return moment is loop.time
    times = loop.run.times
    return moment is not None and moment == loop.time and times is not None and times[loop.index] != moment


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _jumped(scales: list[float | None]) -> bool:
    """Has a guidance scale changed that was constant so far? One that changes at each step is part of the output."""
    return len(scales) > 2 and scales[-1] != scales[-2] and len(set(scales[:-1])) == 1
