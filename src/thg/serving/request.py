"""One request's run inside an engine: the network is evaluated at the steps of a plan and skipped at the others.

An engine passes each step of its loop through `ServedRun.step`. Every decision depends on the plan and on the request's
inputs alone, never on values of tensors, so all ranks of a server make the same ones. (`Leaps.evaluates` also stops
predicting after a hopeless miss. A rank may see that alone, or a step before the others, and would wait for them
forever; so it is not asked here.)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.pipelines.describe import describe, obstacle_in
from thg.plans.fidelity import predictable
from thg.plans.leaps import Leaps
from thg.plans.plan import EVALUATED, SKIPPED
from thg.plans.planners import Planned
from thg.plans.run import RunInfo, Term

Output = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Report:
    """What a request has cost. evaluated: 1 for each step at which the network ran, else 0."""

    steps: int
    evaluations: int
    plain_evaluations: int
    evaluated: tuple[int, ...]
    estimated_error: float | None
    note: str = ""

    @property
    def strip(self) -> str:
        """One mark per step: ● the network ran, ○ it did not."""
        return "".join(EVALUATED if ran else SKIPPED for ran in self.evaluated)

    def __str__(self) -> str:
        text = f"{self.evaluations} of {self.plain_evaluations} network evaluations in {self.steps} steps {self.strip}"
        if self.estimated_error is not None:
            text += f", estimated difference {self.estimated_error:.2%}"
        return text + (f"; {self.note}" if self.note else "")

    def as_dict(self) -> dict[str, Any]:
        """For an engine's metadata."""
        return {
            "steps": self.steps,
            "evaluations": self.evaluations,
            "plain_evaluations": self.plain_evaluations,
            "evaluated": self.strip,
            "estimated_error": self.estimated_error,
            "note": self.note,
        }


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
    obstacle = obstacle_in(step_arguments or {})
    return replace(describe(scheduler, timesteps, obstacle), branches=branches, guidance_scale=guidance_scale)


class ServedRun:
    """The steps of one request. It holds at most three outputs, and none after the last step."""

    def __init__(self, planned: Planned, run: RunInfo) -> None:
        self._run = run
        self._leaps: Leaps = planned.leaps(run)
        self._next = 0
        self._kind: Hashable = None  # what the output depends on beside time
        self._known = 0  # evaluations since it has changed
        self._like: Output = ()  # the last evaluated output, for its types
        self._evaluated: list[int] = []
        self._evaluations = self._plain_evaluations = 0
        self._error: Tensor | None = None
        self._plain_because = ""

    def step(
        self, index: int, evaluate: Callable[[], Output], *, model: object, branches: int, state: Tensor | None
    ) -> Output:
        """The output that the engine's scheduler gets at this step.

        evaluate: runs the network with all its branches. model: the network; another one (two experts) starts anew, as
        do another number of branches (guidance begins or ends) and another shape. state: the latents before the step;
        None if the engine does not show them, and then there is no estimate.
        """
        if index != self._next or index >= self._run.steps:
            self._plain_because = self._plain_because or f"step {index} came where step {self._next} was expected"
        self._next = index + 1
        kind = (id(model), branches, None if state is None else tuple(state.shape))
        if kind != self._kind:
            self._leaps.forget()
            self._known = 0
        self._kind = kind
        plan = self._leaps.plan
        runs = bool(self._plain_because) or plan.evaluates(index) or self._known < plan.hare_order
        self._known += runs
        self._evaluated.append(int(runs))
        self._evaluations += branches if runs else 0
        self._plain_evaluations += branches
        output = self._observed(index, evaluate()) if runs else self._predicted(index)
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

    def _predicted(self, index: int) -> Output:
        return _as(self._like, self._leaps.predict(index))

    def report(self) -> Report:
        """Waits for the device once, if something was skipped."""
        return Report(
            steps=len(self._evaluated),
            evaluations=self._evaluations,
            plain_evaluations=self._plain_evaluations,
            evaluated=tuple(self._evaluated),
            estimated_error=None if self._error is None else max(self._error.tolist()),
            note="; ".join(filter(None, self._notes())),
        )

    def _notes(self) -> tuple[str, ...]:
        if self._plain_because:
            return (f"everything was evaluated from there on: {self._plain_because}",)
        if not predictable(self._run):
            return (f"everything was evaluated: {self._run.no_response}",)
        if self._run.response is None:
            return (f"predictions were not corrected: {self._run.no_response}",)
        return ()


def _parts(output: Output) -> Term:
    return (output,) if isinstance(output, Tensor) else tuple(output)


def _precise_copy(part: Tensor) -> Tensor:
    """Half precision is too coarse for differences of outputs."""
    return part.detach().to(torch.promote_types(part.dtype, torch.float32), copy=True)


def _as(like: Output, term: Term) -> Output:
    """A term in the form and the types of an engine's output."""
    cast = tuple(part.to(old.dtype) for part, old in zip(term, _parts(like), strict=True))
    return cast[0] if isinstance(like, Tensor) else cast
