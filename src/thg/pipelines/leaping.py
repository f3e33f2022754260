"""One call of a pipeline in which the whole network leaps.

Two interceptions: the networks' calls and `scheduler.step`. At a skipped step the networks' calls are answered with
predicted outputs, and the scheduler gets a prediction in place of the output that the pipeline has made from them.
Nothing depends on branches, guidance formulas or layouts.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from thg.pipelines.calls import at_least_float32, copied, on_a_line, rows_of, tensors_of
from thg.pipelines.describe import further_arguments, obstacle_in
from thg.pipelines.run import Loop, PipelineRun
from thg.pipelines.substitute import original_class
from thg.plans.leaps import SAME_POSITION, Leaps, prediction_weights
from thg.plans.plan import Plan
from thg.plans.planners import Planned
from thg.plans.summary import Summary, lost_in
from thg.plans.tolerance import Tuned, predictable

# Networks that run beside the denoiser: not counted.
BESIDE = ("controlnet", "adapter")
FAR = 2.0  # an estimate of so many tolerances is remarked

Given = Tensor | float  # a value among the arguments of a call
Kept = tuple[weakref.ref[Tensor], int] | float  # the same, not kept alive; with the number of changes in place


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call of the last evaluated step.

    rows: of its output; 0 if the network is not counted. shapes: of the values among its arguments. given: these.
    steady: whether each was the same in the evaluated step before: a condition of the run. position: of its step.
    earlier: the call in its place in the evaluated step before.
    """

    network: Any
    output: Any
    rows: int
    shapes: tuple[Any, ...]
    given: tuple[Kept, ...]
    steady: tuple[bool, ...]
    position: float
    earlier: SeenCall | None = None

    @classmethod
    def of(
        cls, network: Any, given: list[Given], output: Any, rows: int, before: SeenCall | None, position: float
    ) -> SeenCall:
        """A call that was made. before: the one in its place in the evaluated step before."""
        shapes = _shapes(given)
        steady, earlier = [False] * len(given), None
        if before is not None and before.network is network and before.shapes == shapes:
            steady = list(map(_is_same, before.given, given))
            earlier = replace(before, earlier=None) if rows else None
        return cls(network, output, rows, shapes, tuple(map(_kept, given)), tuple(steady), position, earlier)

    def predicted(self, position: float, plan: Plan) -> Any:
        """Its output at another position, on the line of a leap: a pipeline may keep it, or mix it with a new one."""
        if not self.rows:  # residuals of a ControlNet, for a network that does not run
            return self.output
        if self.earlier is None or abs(self.position - self.earlier.position) < SAME_POSITION:
            return copied(self.output)
        weights = prediction_weights((self.earlier.position, self.position), position, plan.hare_order, plan.slope)
        return on_a_line(self.output, self.earlier.output, weights[0]) if len(weights) > 1 else copied(self.output)

    def repeated_by(self, network: Any, given: list[Given]) -> bool:
        """Is a call with these values the same one at another time: the same network, shapes and conditions?"""
        if network is not self.network or self.shapes != _shapes(given):
            return False
        values = zip(self.given, given, self.steady, strict=True)
        return all(_is_same(old, new) for old, new, steady in values if steady)


@dataclass(eq=False, kw_only=True)
class LeapingLoop(Loop):
    """The steps of one scheduler over its time steps.

    index: of the next step. time: of the last one. begun: the steps that the networks' calls had begun at that
    one. lost: known after the last step, on the device.
    """

    scheduler: Any
    timesteps: Any
    leaps: Leaps
    time: Any = None
    begun: int = -1
    shape: torch.Size | None = None
    lost: tuple[list[int], Tensor] | None = None

    def observe(self, output: Tensor, state: Any) -> Tensor:
        """The output to use in an evaluated step."""
        if output.shape != self.shape:
            self.leaps.forget()
        self.shape = output.shape
        own = at_least_float32(output) if output.dtype != torch.float32 else output.clone()
        leaping = (own if self.run.velocity is None else self.run.leaping(self.index, own, state),)
        used = self.leaps.observe(self.index, leaping)
        return output if used is leaping else self._landed(used[0], output, state)

    def predict(self, output: Tensor, state: Any) -> Tensor:
        """The output to use in a step without an evaluation."""
        return self._landed(self.leaps.predict(self.index)[0], output, state)

    def _landed(self, leapt: Tensor, output: Tensor, state: Any) -> Tensor:
        landed = leapt if self.run.velocity is None else self.run.landed(self.index, leapt, state)
        return landed.to(output.dtype)

    def advance(self, time: Any, used: Tensor, sample: Any) -> None:
        self.index, self.time = self.index + 1, time
        self.finished = self.index == self.run.steps
        if self.finished:
            self.finite = torch.isfinite(used).all()  # NaN spreads to all later states
            self.error = self.leaps.estimated_error(sample) if isinstance(sample, Tensor) else None
            self.lost = self.leaps.lost()
            self.leaps.forget()


class LeapingRun(PipelineRun):
    """A run that evaluates the network at the steps of a plan."""

    def __init__(self, owner: Any, pipe: Any, planned: Planned, arguments: Mapping[str, Any]) -> None:
        super().__init__(owner, pipe, arguments)
        self._planned = planned
        self.loops: list[LeapingLoop] = []
        self._calls: list[SeenCall] = []  # of the last evaluated step, in order
        self._scales: list[float | None] = []  # the guidance scale at each step
        self._numbers: list[int] = []  # of calls in each completed step
        self._seen: dict[tuple[int, int, int], Kept] = {}  # values in this loop, by call, place and id
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # those of an earlier run
        self._breaks = 0
        # the current step
        self._stepped = True  # a scheduler has made its step, and no network was called since
        self._position, self._plan = 0.0, Plan(1, (0,))  # the first step comes before its loop is known
        self._evaluating = True
        self._broken = False  # a call has changed after others were answered without the network
        self._index = 0  # of the next call
        self._rows = self._plain_rows = 0  # of the networks' outputs, and with those that were predicted
        for _, empty in self.caches:  # they act on the evaluated steps, in their own rhythm
            empty()

    def close(self) -> None:
        if not self._stepped and not self.loops:  # calls, and no step that they belong to or that tells the samples
            self._count(samples=1)
        self._calls.clear()
        for _, empty in self.caches:
            empty()
        for loop in self.loops:
            loop.leaps.forget()
            loop.scheduler = loop.timesteps = loop.time = None
        self._timesteps = None

    # -- a network's call

    def answer(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        if not self.loops and self._timesteps is not (timesteps := getattr(self.pipe.scheduler, "timesteps", None)):
            self._timesteps, self._stepped = timesteps, True  # the loop begins: calls before it prepared its inputs
            self._calls.clear()
            self._scales.clear()
        given: list[Given] = [*tensors_of((args, kwargs)), *_numbers(kwargs)]
        if self._stepped:
            self._begin_step(given)
        index, self._index = self._index, self._index + 1
        for k in range(index, len(self._calls) if self._evaluating else index):
            if self._calls[k].repeated_by(network, given):
                del self._calls[index:k]  # calls that came before the loop are not repeated
                break
        before = self._calls[index] if index < len(self._calls) else None
        repeated = before is not None and before.repeated_by(network, given)
        if self._has_returned(index, given) or not repeated:
            self._break(at=index)
        if before is not None and not self._evaluating:
            self._plain_rows += before.rows
            return before.predicted(self._position, self._plan)
        output = original_class(network).__call__(network, *args, **kwargs)
        self.ended = time.perf_counter()
        if before is not None and repeated:
            rows = before.rows
        else:
            rows = 0 if any(beside in name for beside in BESIDE) else rows_of(output)
        kept = copied(output) if rows else output
        self._calls[index : index + 1] = [SeenCall.of(network, given, kept, rows, before, self._position)]
        self._rows, self._plain_rows = self._rows + rows, self._plain_rows + rows
        return output

    def _has_returned(self, index: int, given: list[Given]) -> bool:
        """Is one of these values another than in the step before, and was there earlier? Then conditions alternate."""
        before = self._calls[index].given if index < len(self._calls) else ()
        places = [(index, place, id(value)) for place, value in enumerate(given)]
        returned = any(
            not _is_same(old, new) and place in self._seen and _is_same(self._seen[place], new)
            for place, old, new in zip(places, before, given, strict=False)
        )
        self._seen.update(zip(places, map(_kept, given), strict=True))
        return returned

    def _begin_step(self, given: list[Given]) -> None:
        """given: to the first call of the step."""
        if self._scales:
            self._numbers.append(self._index)
        if _alternates(self._numbers):
            self.plain_because = "the number of its network calls changes from step to step"
        self._stepped, self._broken, self._index = False, False, 0
        self._rows = self._plain_rows = 0
        if not self.loops:
            self.watch()
        scale = getattr(self.pipe, "guidance_scale", None)
        scale = self._stated_scale if scale is None else scale
        self._scales.append(float(scale) if isinstance(scale, int | float) else None)
        if len(self._scales) == 1 and any(isinstance(value, Tensor) and value.requires_grad for value in given[:1]):
            self.plain_because = "its samples require gradients, which the answers to skipped calls do not have"
        active = self._active()
        if not active:
            self._seen.clear()
        self._position = active[0].run.positions[active[0].index] if active else 0.0
        self._plan = active[0].leaps.plan if active else self._plan
        self._evaluating = not active or any(loop.leaps.evaluates(loop.index) for loop in active)
        if _jumped(self._scales):
            self._break(at=0)

    def _active(self) -> list[LeapingLoop]:
        """The loops that are under way, over time steps that were not set anew; none if everything is evaluated."""
        under_way = [loop for loop in self.loops if not loop.finished and loop.scheduler.timesteps is loop.timesteps]
        return [] if self.plain_because else under_way

    def _break(self, at: int) -> None:
        """The outputs change for another reason than time: evaluates from this call on, and starts anew."""
        self._breaks += len(self._scales) > 1  # in the first step each call is new
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
        elif loop.begun == len(self._scales):
            self.plain_because = "thg sees no network call in a step (it was disabled, or `forward` is called)"
        if self.plain_because or loop is None:
            return output
        used, state = output, arguments.get("sample")
        if self._evaluating and not self._broken:
            used = loop.observe(output, state)
        elif not self._evaluating and output.shape == loop.shape:
            used = loop.predict(output, state)
        loop.begun = len(self._scales)
        loop.advance(moment, used, state)
        return used

    def _begin_loop(self, scheduler: Any, moment: Any, arguments: dict[str, Any], output: Tensor) -> LeapingLoop | None:
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
        if not run.adds_noise and (further := further_arguments(scheduler)):
            self.plain_because = (
                f"{type(scheduler).__name__} makes its steps from more than outputs ({', '.join(further)}), so that "
                "they cannot be predicted"
            )
            return None
        leaps = self._planned.leaps(run)
        self.loops.append(LeapingLoop(run=run, scheduler=scheduler, timesteps=timesteps, leaps=leaps))
        return self.loops[-1]

    def _count(self, samples: int) -> None:
        """Counts the evaluations of a step."""
        for counts, rows in (self.evaluations, self._rows), (self.plain_evaluations, self._plain_rows):
            counts.append(rows // samples if rows % samples == 0 else len(self._calls))

    # -- afterwards

    def reason(self) -> str:
        return next(self._reasons(), "")

    def summary(self) -> Summary:
        return self.summed_up(
            self._notes(),
            plan=self.loops[-1].leaps.plan if self.loops and not self.plain_because else None,
            lost=lost_in(self.loops[-1].lost) if self.loops else (),
            tuned=isinstance(self._planned.planner, Tuned),
        )

    def _reasons(self) -> Iterator[str]:
        """Why nothing was saved."""
        if self.plain_because:
            yield super().reason()
        elif self.evaluations and not self.loops and not self.failed:
            yield (
                "everything was evaluated: no step of the pipeline's scheduler was seen (thg follows schedulers that "
                "are in an attribute of the pipeline, as pipe.scheduler is)"
            )
        for loop in self.loops[-1:]:
            if loop.run.adds_noise:
                yield f"everything was evaluated: {loop.run.no_response}, and noise cannot be predicted"
            elif loop.run.clips:
                yield (
                    f"everything was evaluated: {loop.run.no_response}, and what is clipped cannot be predicted; with "
                    "clip_sample=False in the scheduler's configuration it can"
                )
            elif loop.run.steps == 1 and len(self.loops) > 1:
                yield "everything was evaluated: the pipeline sets the state of its scheduler anew at each step"
            elif not self.has_leapt and self._breaks > loop.run.steps // 2:
                yield (
                    "everything was evaluated: its networks, their calls, their conditions or the guidance scale "
                    "change from step to step"
                )
            elif loop.leaps.plan.evaluations == loop.run.steps:
                number = "one step is" if loop.run.steps == 1 else f"{loop.run.steps} steps are"
                few = f"{number} too few to leave one out at this tolerance"
                if loop.run.order > 2:
                    few += f" with a solver of order {loop.run.order} (DPM++ 2M, UniPC, Euler and DDIM need fewer)"
                tolerance = getattr(self._planned.planner, "error", None) is not None
                yield f"everything was evaluated: {few if tolerance else 'the plan leaves out no step'}"

    def _notes(self) -> Iterator[str]:
        yield from self._reasons()
        yield from filter(None, (loop.leaps.doubt() for loop in self.loops))
        for loop in self.loops[-1:]:
            if loop.run.response is None and predictable(loop.run):
                yield f"predictions were not corrected: {loop.run.no_response}"
        tolerance = getattr(self._planned.planner, "error", None)
        if tolerance is not None and max(self._estimated_error() or (0.0,)) > FAR * tolerance:
            yield (
                f"the estimate is far above the tolerance of {tolerance:.1%}: the outputs change more from step to "
                "step than usual; thg.tune(pipe, prompts) finds out how many evaluations this needs"
            )
        if isinstance(self._planned.planner, Tuned):
            yield self.loops[-1].leaps.tuned if self.loops else str(self._planned.planner)


def _is_again(loop: LeapingLoop, moment: Any) -> bool:
    """Is this another step at the time of the last one?"""
    if isinstance(moment, Tensor):
        return moment is loop.time
    times = loop.run.times
    return moment is not None and moment == loop.time and times is not None and times[loop.index] != moment


def _numbers(kwargs: dict[str, Any]) -> Iterator[float]:
    """The strengths and scales among the arguments of a call, alone, in a list or by name."""
    for value in kwargs.values():
        several = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        yield from (one for one in several if isinstance(one, float))


def _shapes(given: list[Given]) -> tuple[Any, ...]:
    return tuple(value.shape if isinstance(value, Tensor) else None for value in given)


def _kept(value: Given) -> Kept:
    return (weakref.ref(value), _changes(value)) if isinstance(value, Tensor) else value


def _changes(value: Tensor) -> int:
    """How often a tensor was changed in place, if it counts that."""
    return 0 if value.is_inference() else value._version


def _is_same(old: Kept, new: Given) -> bool:
    if not isinstance(old, tuple):
        return old == new
    tensor, changes = old
    return tensor() is new and changes == _changes(new)


def _alternates(numbers: list[int]) -> bool:
    """Has the number of calls changed at each of the last three steps, or at both since the first?

    Once is guidance that begins or ends, and twice is something that happens in a single step.
    """
    return len(numbers) > 2 and all(old != new for old, new in pairwise(numbers[-4:]))


def _jumped(scales: list[float | None]) -> bool:
    """Has a guidance scale changed that was constant? One that changes at each step is part of the output."""
    return len(scales) > 2 and scales[-1] != scales[-2] == scales[-3]
