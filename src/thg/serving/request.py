"""One request inside an engine: what it asks for, its run, and the report of what it has cost.

An engine passes each step of its loop through `ServedRun.step`, or, if requests share a call of the network, through
`evaluates` and `used`. Every decision depends on the plan and on the request's
inputs alone, never on values of tensors, so all ranks of a server make the same ones.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

import thg
from thg.errors import PlanError
from thg.pipelines.describe import describe, obstacle_in
from thg.plans.leaps import Leaps
from thg.plans.plan import EVALUATED, SKIPPED
from thg.plans.planners import Planned, guide_maker
from thg.plans.run_info import RunInfo, Term
from thg.plans.tolerance import predictable

VARIABLE = "THG_SERVING"
KEY = "thg"  # of a request's extra parameters
OFF, ON_REQUEST = "off", "on request"
FORMS = '"1%" (a tolerance), 0.5 (a share of the evaluations) or "off"'

Output = Tensor | tuple[Tensor, ...]
Result = TypeVar("Result")


# -- what a server, or one of its requests, asks for


@dataclass(frozen=True)
class ServerSetting:
    """text: as it was written. default: for requests that ask for nothing; None: they run as they are."""

    text: str
    default: Planned | None

    def of_request(self, extra: Any) -> Planned | None:
        """What to do for a request with these extra parameters; None: nothing."""
        if not isinstance(extra, dict) or extra.get(KEY) is None:
            return self.default
        return planned(extra[KEY])


def server_setting() -> ServerSetting | None:
    """The setting of this process; None: thg is installed and not switched on."""
    text = os.environ.get(VARIABLE, "").strip()
    if text.lower() in ("", OFF, "0"):
        return None
    return ServerSetting(text, None if text.lower() == ON_REQUEST else planned(text))


def planned(value: Any) -> Planned | None:
    """The planner of a setting or of a request's parameter; None for "off", or JSON's false."""
    text = str(value).strip()
    if text.lower() in (OFF, "false"):
        return None
    try:
        choice = text if text.endswith("%") else float(text)
        maker = guide_maker(choice)
        if choice == 1.0:  # all evaluations; meant as "on", or as a percentage
            raise PlanError("nothing would be left out")
    except (ValueError, PlanError) as error:
        raise PlanError(f"{KEY}={value!r} is not a setting; write {FORMS}") from error
    assert isinstance(maker, Planned)
    return maker


# -- what it has cost


@dataclass(frozen=True)
class Report:
    """What a request has cost. evaluated: a mark for each step, ● where the network ran and ○ where it did not."""

    steps: int
    evaluations: int
    plain_evaluations: int
    evaluated: str
    estimated_error: float | None
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.evaluations} of {self.plain_evaluations} network evaluations"
        text += f" in {self.steps} steps {self.evaluated}"
        if self.estimated_error is not None:
            text += f", estimated difference {self.estimated_error:.2%}"
        return text + (f"; {self.note}" if self.note else "")


def count_request(evaluations: float, plain_evaluations: float) -> None:
    """Adds what a request has cost to the counters of the engine's metrics endpoint."""
    made, skipped = _counters()
    made.inc(evaluations)
    skipped.inc(plain_evaluations - evaluations)


@functools.cache
def _counters() -> tuple[Any, Any]:
    """The endpoint publishes what prometheus_client has registered; a process registers a name once."""
    from prometheus_client import Counter

    return (
        Counter("thg:network_evaluations", "Network evaluations that were made."),
        Counter("thg:network_evaluations_skipped", "Network evaluations that were predicted instead."),
    )


# -- a diffusers pipeline that an engine calls


def accelerated(pipe: Any, planned: Planned, call: Callable[[], Result]) -> tuple[Result, Report]:
    """The result of `call`, which calls the pipeline, and what it has cost. The pipeline is left as it was."""
    with thg.enabled(pipe, planned.planner):
        result = call()
        done = thg.summary(pipe)
    worst = max(done.estimated_error) if done.estimated_error and done.finite else None
    return result, Report(done.steps, done.nfe, done.cfg_nfe, done.strip(), worst, done.note)


# -- a loop of the engine's own


def run_of(
    scheduler: Any,
    timesteps: Any,
    *,
    branches: int,
    guidance_scale: float | None = None,
    step_arguments: dict[str, Any] | None = None,
) -> RunInfo:
    """The run of a request, from the engine's scheduler, whose time steps are set.

    step_arguments: further arguments of the scheduler's step.
    """
    run = describe(scheduler, timesteps, obstacle_in(step_arguments or {}))
    return replace(run, branches=branches, guidance_scale=guidance_scale)


class ServedRun:
    """The steps of one request. It holds at most three outputs, and none after the last step."""

    def __init__(self, planned: Planned, run: RunInfo) -> None:
        self._run = run
        self._leaps: Leaps = planned.leaps(run, by_inputs_alone=True)
        self._next = 0
        self._kind: Hashable = None  # what the output depends on beside time
        self._like: Output = ()  # the last evaluated output, for its types
        self._evaluated = ""
        self._evaluations = self._plain_evaluations = 0
        self._error: Tensor | None = None
        self._plain_because = ""

    def step(
        self, index: int, evaluate: Callable[[], Output], *, model: object, branches: int, state: Tensor | None
    ) -> Output:
        """The output that the engine's scheduler gets at this step.

        evaluate: runs the network with all its branches. The rest is what `evaluates` gets.
        """
        runs = self.evaluates(index, model=model, branches=branches, state=state)
        return self.used(index, evaluate() if runs else None, state)

    def evaluates(self, index: int, *, model: object, branches: int, state: Tensor | None) -> bool:
        """A step begins: must the network run?

        model: the network; another one (two experts) starts anew, as do another number of branches (guidance begins or
        ends) and another shape. state: the latents before the step; None if the engine does not show them, and then
        there is no estimate.
        """
        if index != self._next or index >= self._run.steps:
            self._plain_because = self._plain_because or f"step {index} came where step {self._next} was expected"
        self._next = index + 1
        kind = (id(model), branches, None if state is None else tuple(state.shape))
        if kind != self._kind:
            self._leaps.forget()
        self._kind = kind
        runs = bool(self._plain_because) or self._leaps.evaluates(index)
        self._evaluated += EVALUATED if runs else SKIPPED
        self._evaluations += branches if runs else 0
        self._plain_evaluations += branches
        return runs

    def used(self, index: int, evaluated: Output | None, state: Tensor | None) -> Output:
        """The output that the engine's scheduler gets. evaluated: the network's, if it has run."""
        output = _as(self._like, self._leaps.predict(index)) if evaluated is None else self._observed(index, evaluated)
        if index == self._run.steps - 1:
            if state is not None and state.shape == _parts(output)[0].shape:  # else it holds more than the latents
                self._error = self._leaps.estimated_error(state)
            self._leaps.forget()
            self._like = ()
        return output

    def _observed(self, index: int, output: Output) -> Output:
        if self._plain_because:
            return output
        self._like = output
        copied = tuple(_precise_copy(part) for part in _parts(output))
        used = self._leaps.observe(index, copied)
        return output if used is copied else _as(output, used)

    def report(self) -> Report:
        """Waits for the device once, if something was skipped."""
        error = None if self._error is None else float(self._error.max())
        finite = error is None or math.isfinite(error)
        return Report(
            steps=len(self._evaluated),
            evaluations=self._evaluations,
            plain_evaluations=self._plain_evaluations,
            evaluated=self._evaluated,
            estimated_error=error if finite else None,
            note="; ".join(self._notes(finite)),
        )

    def _notes(self, finite: bool) -> Iterator[str]:
        if not finite:
            yield "NaN or infinity in the network's outputs: this result is broken"
        if self._plain_because:
            yield f"everything was evaluated from there on: {self._plain_because}"
        elif not predictable(self._run):
            yield f"everything was evaluated: {self._run.no_response}"
        elif self._run.response is None:
            yield f"predictions were not corrected: {self._run.no_response}"
        if doubt := self._leaps.doubt():
            yield f'{doubt}; compare with "{KEY}": "{OFF}"'


def _parts(output: Output) -> Term:
    return (output,) if isinstance(output, Tensor) else tuple(output)


def _precise_copy(part: Tensor) -> Tensor:
    """Half precision is too coarse for differences of outputs."""
    return part.detach().to(torch.promote_types(part.dtype, torch.float32), copy=True)


def _as(like: Output, term: Term) -> Output:
    """A term in the form and the types of an engine's output."""
    cast = tuple(part.to(old.dtype) for part, old in zip(term, _parts(like), strict=True))
    return cast[0] if isinstance(like, Tensor) else cast
