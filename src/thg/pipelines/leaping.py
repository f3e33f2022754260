"""One call of a pipeline in which the whole network leaps.

Two interceptions: the networks' calls and `scheduler.step`. At a skipped step the networks' calls are answered with
their last outputs, and the scheduler gets a predicted output in place of the one that the pipeline has made from them.
Nothing depends on branches, guidance formulas or layouts.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.pipelines.calls import Call, at_least_float32, rows_of
from thg.pipelines.describe import obstacle_in
from thg.pipelines.run import BROKEN, PipelineRun
from thg.plans.leaps import Leaps, is_hopeless
from thg.plans.planners import Planned
from thg.plans.report import Summary, lost_in
from thg.plans.run import RunInfo
from thg.plans.tolerance import Tuned, predictable

# Networks that run beside the denoiser: not counted.
BESIDE = ("controlnet", "adapter", "projection", "connector", "language_model")


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call of the last evaluated step.

    shapes: of the tensors among its arguments. tensors: these, without keeping them alive. steady: whether each was the
    same object in the evaluated step before: a condition of the run.
    """

    module: Any
    output: Any
    shapes: tuple[Any, ...]
    tensors: tuple[weakref.ref[Tensor], ...]
    steady: tuple[bool, ...]

    @classmethod
    def made(cls, call: Call, before: SeenCall | None) -> SeenCall:
        """Makes a call. before: the same call of the evaluated step before."""
        found = list(_tensors((call.args, call.kwargs)))
        shapes = tuple(tuple(tensor.shape) for tensor in found)
        steady = [False] * len(found)
        if before is not None and before.module is call.module and before.shapes == shapes:
            steady = [old() is new for old, new in zip(before.tensors, found, strict=True)]
        references = tuple(weakref.ref(tensor) for tensor in found)
        return cls(call.module, call(), shapes, references, tuple(steady))

    def repeats(self, call: Call) -> bool:
        """Is this the same call at another time: the same network, shapes and conditions?"""
        found = list(_tensors((call.args, call.kwargs)))
        if call.module is not self.module or self.shapes != tuple(tuple(tensor.shape) for tensor in found):
            return False
        conditions = zip(self.tensors, found, self.steady, strict=True)
        return all(old() is new for old, new, steady in conditions if steady)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


@dataclass(eq=False)
class Loop:
    """The steps of one scheduler over its time steps.

    index: of the next step. time: of the last step. error, finite, miss, lost: known at the last step, on the device.
    """

    scheduler: Any
    timesteps: Any
    run: RunInfo
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


class LeapingRun(PipelineRun):
    """A run that evaluates the network at the steps of a plan."""

    def __init__(self, owner: Any, pipe: Any, planned: Planned) -> None:
        super().__init__(owner, pipe)
        self._planned = planned
        self._loops: list[Loop] = []
        self._calls: list[SeenCall] = []  # of the last evaluated step, in order
        self._scales: list[float | None] = []  # the pipeline's guidance scale at each step
        # the current step
        self._stepped = True  # a scheduler has made its step, and no network was called since
        self._evaluating = True
        self._broken = False  # a call has changed after others were answered without the network
        self._index = 0  # of the next call
        self._rows = 0  # of the networks' outputs
        for cache in self.caches:  # they act on the evaluated steps, in their own rhythm
            cache.empty()

    def close(self) -> None:
        self._calls.clear()
        for cache in self.caches:
            cache.empty()
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
        made = SeenCall.made(call, seen)
        self.ended = time.perf_counter()
        self._calls[index : index + 1] = [made]
        if not any(name in call.name for name in BESIDE):
            self._rows += rows_of(made.output)
        return made.output

    def _begin_step(self) -> None:
        self._stepped, self._broken, self._index, self._rows = False, False, 0, 0
        self._scales.append(_number(getattr(self.pipe, "guidance_scale", None)))
        active = self._active()
        self._evaluating = not active or any(loop.leaps.evaluates(loop.index) for loop in active)
        if _jumped(self._scales):
            self._break(at=0)

    def _active(self) -> list[Loop]:
        """The loops that are under way. None if everything has to be evaluated."""
        if self.plain_because:
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
        if self.pipe is None:  # a copy of the scheduler that has outlived the run
            return output
        if not self._evaluating and self._index < len(self._calls):  # calls are missing: guidance has ended
            self._break(at=self._index)
        if not self._stepped:
            self._count(len(output) if output.ndim else 1)
        self._stepped = True
        if self.plain_because:
            return output
        moment = arguments.get("timestep")
        loop = next((loop for loop in self._active() if loop.scheduler is scheduler), None)
        if loop is None:
            loop = self._begin_loop(scheduler, moment, arguments)
        elif _is_again(loop, moment):
            self.plain_because = "it makes several steps of its scheduler at one time"
        if self.plain_because or loop is None:
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
            self.plain_because = f"{type(scheduler).__name__} has no time steps"
            return None
        run = replace(
            self.described(scheduler, timesteps, obstacle_in(arguments), moment),
            guidance_scale=self._scales[-1] if self._scales else None,
            branches=max(1, self.plain_evaluations[-1]) if self.plain_evaluations else 1,
        )
        self._loops.append(Loop(scheduler, timesteps, run, self._planned.leaps(run)))
        return self._loops[-1]

    def _count(self, samples: int) -> None:
        """Counts the evaluations of a step."""
        if self._evaluating:
            branches = self._rows // samples if self._rows % samples == 0 else len(self._calls)
            self.evaluations.append(branches)
            self.plain_evaluations.append(max(branches, self._index) if self._broken else branches)
        else:
            self.evaluations.append(0)
            self.plain_evaluations.append(self.plain_evaluations[-1])

    # -- afterwards

    def reason(self) -> str:
        return next(self._reasons(), "")

    def summary(self) -> Summary:
        finite = all(loop.finite is None or bool(loop.finite) for loop in self._loops)
        return self.summed_up(
            self._notes(finite),
            steps=max(len(self.evaluations), sum(loop.run.steps for loop in self._loops[-1:])),
            plan=self._loops[-1].leaps.plan if self._loops and not self.plain_because else None,
            finished=not self.failed and all(loop.finished for loop in self._loops[-1:]),
            finite=finite,
            sections=max(1, len(self._loops)),
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
        if self.plain_because:
            yield f"everything was evaluated: {self.plain_because}"
        elif self.evaluations and not self._loops:
            yield "everything was evaluated: no step of the pipeline's scheduler was seen"
        for loop in self._loops[-1:]:
            if loop.run.adds_noise:
                yield f"everything was evaluated: {loop.run.no_response}, and noise cannot be predicted"
            elif loop.run.clips:
                yield (
                    f"everything was evaluated: {loop.run.no_response}, and what is clipped cannot be predicted; with "
                    "clip_sample=False in the scheduler's configuration it can"
                )
            elif loop.run.steps == 1 and len(self._loops) > 1:
                yield "everything was evaluated: the pipeline sets the state of its scheduler anew at each step"
            elif loop.leaps.plan.evaluations == loop.run.steps:
                yield f"everything was evaluated: {loop.run.steps} steps are too few to leave one out at this tolerance"

    def _notes(self, finite: bool) -> Iterator[str]:
        if not finite:
            yield BROKEN
        yield from self._reasons()
        if any(is_hopeless(loop.miss) for loop in self._loops):
            yield (
                "this result may be wrong: a prediction has missed by more than twice the output itself (an unstable "
                "scheduler, conditions that contradict each other, or too few evaluated steps)"
            )
        for loop in self._loops[-1:]:
            if loop.run.response is None and predictable(loop.run):
                yield f"predictions were not corrected: {loop.run.no_response}"
        if isinstance(self._planned.planner, Tuned):
            yield str(self._planned.planner)
        yield from self.notes_on_calls()


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
