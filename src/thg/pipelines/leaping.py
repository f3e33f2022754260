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

from thg.pipelines.calls import at_least_float32, rows_of, tensors_of
from thg.pipelines.describe import obstacle_in
from thg.pipelines.run import BROKEN, PipelineRun
from thg.pipelines.substitute import original_class
from thg.plans.leaps import Leaps
from thg.plans.planners import Planned
from thg.plans.report import Summary, lost_in
from thg.plans.run import RunInfo
from thg.plans.tolerance import Tuned, predictable

# Networks that run beside the denoiser: not counted.
BESIDE = ("controlnet", "adapter", "projection", "connector", "language_model")


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call of the last evaluated step.

    rows: of its output; 0 if the network is not counted. shapes: of the tensors among its arguments. tensors: these,
    without keeping them alive. steady: whether each was the same object in the evaluated step before: a condition of
    the run.
    """

    network: Any
    output: Any
    rows: int
    shapes: tuple[Any, ...]
    tensors: tuple[weakref.ref[Tensor], ...]
    steady: tuple[bool, ...]

    @classmethod
    def of(cls, network: Any, given: list[Tensor], output: Any, rows: int, before: SeenCall | None) -> SeenCall:
        """A call that was made. before: the one in its place in the evaluated step before."""
        shapes = tuple(tensor.shape for tensor in given)
        steady = [False] * len(given)
        if before is not None and before.network is network and before.shapes == shapes:
            steady = [old() is new for old, new in zip(before.tensors, given, strict=True)]
        return cls(network, output, rows, shapes, tuple(map(weakref.ref, given)), tuple(steady))

    def repeated_by(self, network: Any, given: list[Tensor]) -> bool:
        """Is a call with these tensors the same one at another time: the same network, shapes and conditions?"""
        if network is not self.network or self.shapes != tuple(tensor.shape for tensor in given):
            return False
        conditions = zip(self.tensors, given, self.steady, strict=True)
        return all(old() is new for old, new, steady in conditions if steady)


@dataclass(eq=False)
class Loop:
    """The steps of one scheduler over its time steps.

    index: of the next step. time: of the last step. error, finite, lost: known at the last step, on the device.
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
    lost: tuple[list[int], Tensor] | None = None

    @property
    def finished(self) -> bool:
        return self.index == self.run.steps

    def observe(self, output: Tensor, state: Any) -> Tensor:
        """The output to use in an evaluated step."""
        if output.shape != self.shape:
            self.leaps.forget()
        self.shape = output.shape
        copied = at_least_float32(output) if output.dtype != torch.float32 else output.clone()
        leaping = (copied if self.run.velocity is None else self.run.leaping(self.index, copied, state),)
        used = self.leaps.observe(self.index, leaping)
        return output if used is leaping else self._landed(used[0], state).to(output.dtype)

    def predict(self, output: Tensor, state: Any) -> Tensor:
        """The output to use in a step without an evaluation."""
        return self._landed(self.leaps.predict(self.index)[0], state).to(output.dtype)

    def _landed(self, leapt: Tensor, state: Any) -> Tensor:
        return leapt if self.run.velocity is None else self.run.landed(self.index, leapt, state)

    def advance(self, time: Any, used: Tensor, sample: Any) -> None:
        self.index, self.time = self.index + 1, time
        if self.finished:
            self.finite = torch.isfinite(used).all()  # NaN spreads to all later states
            self.error = self.leaps.estimated_error(sample) if isinstance(sample, Tensor) else None
            self.lost = self.leaps.lost()
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
        for _, empty in self.caches:  # they act on the evaluated steps, in their own rhythm
            empty()

    def close(self) -> None:
        self._calls.clear()
        for _, empty in self.caches:
            empty()
        for loop in self._loops:
            loop.leaps.forget()
            loop.scheduler = loop.timesteps = loop.time = None

    # -- a network's call

    def answer(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        if self._stepped:
            self._begin_step()
        index, self._index = self._index, self._index + 1
        given = tensors_of((args, kwargs))
        for k in range(index, len(self._calls) if self._evaluating else index):
            if self._calls[k].repeated_by(network, given):
                del self._calls[index:k]  # calls that came before the loop are not repeated
                break
        before = self._calls[index] if index < len(self._calls) else None
        repeated = before is not None and before.repeated_by(network, given)
        if not repeated:
            self._break(at=index)
        if before is not None and not self._evaluating:
            return before.output
        output = original_class(network).__call__(network, *args, **kwargs)
        self.ended = time.perf_counter()
        if before is not None and repeated:
            rows = before.rows
        else:
            rows = 0 if any(beside in name for beside in BESIDE) else rows_of(output)
        self._calls[index : index + 1] = [SeenCall.of(network, given, output, rows, before)]
        self._rows += rows
        return output

    def _begin_step(self) -> None:
        self._stepped, self._broken, self._index, self._rows = False, False, 0, 0
        self._scales.append(_number(getattr(self.pipe, "guidance_scale", None)))
        active = self._active()
        self._evaluating = not active or any(loop.leaps.evaluates(loop.index) for loop in active)
        if _jumped(self._scales):
            self._break(at=0)

    def _active(self) -> list[Loop]:
        """The loops that are under way, over time steps that were not set anew; none if everything is evaluated."""
        under_way = [loop for loop in self._loops if not loop.finished and loop.scheduler.timesteps is loop.timesteps]
        return [] if self.plain_because else under_way

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
            loop = self._begin_loop(scheduler, moment, arguments, output)
        elif _is_again(loop, moment):
            self.plain_because = "it makes several steps of its scheduler at one time"
        if self.plain_because or loop is None:
            return output
        used, state = output, arguments.get("sample")
        if self._evaluating and not self._broken:
            used = loop.observe(output, state)
        elif not self._evaluating and output.shape == loop.shape:
            used = loop.predict(output, state)
        loop.advance(moment, used, state)
        return used

    def _begin_loop(self, scheduler: Any, moment: Any, arguments: dict[str, Any], output: Tensor) -> Loop | None:
        """Plans the steps of a scheduler. Waits for the device once; nothing else in a run does."""
        timesteps, sample = getattr(scheduler, "timesteps", None), arguments.get("sample")
        if timesteps is None or len(timesteps) == 0:
            self.plain_because = f"{type(scheduler).__name__} has no time steps"
            return None
        if isinstance(sample, Tensor) and not sample.is_floating_point():
            self.plain_because = f"{type(scheduler).__name__} draws tokens, which cannot be predicted"
            return None
        alike = getattr(sample, "shape", None) == output.shape
        run = replace(
            self.described(scheduler, timesteps, obstacle_in(arguments), moment, data_as_velocity=alike),
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
        yield from filter(None, (loop.leaps.doubt() for loop in self._loops))
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
