"""Baselines that guide only a part of the run: Selective Guidance and Guidance Interval.

Each is set to an exact number of network evaluations per sample (`nfe`), of which nfe - steps are unconditional.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from thg.errors import PlanError
from thg.plans.guide import Guide, HareGuide
from thg.plans.plan import Plan
from thg.plans.planners import evaluations_for
from thg.plans.run import Run, Term


@dataclass(frozen=True)
class SelectiveGuidance:
    """Guidance in the first part of the run only; the rest is conditional. The budget sets where it ends."""

    paper: ClassVar[str] = "Golnari et al., Selective Guidance, 2023: e = e_c + (w - 1) d for the first steps, then e_c"

    nfe: int

    def plan(self, run: Run) -> Plan:
        count = evaluations_for(self.nfe, run.steps)
        return Plan(run.steps, tuple(range(count)), cutoff=count, hare_order=1)

    def guide(self, run: Run) -> Guide:
        return HareGuide(self.plan(run), run)


@dataclass(frozen=True)
class GuidanceInterval:
    """Guidance within an interval of the noise levels; before and after it the run is conditional.

    `start` is the share of the run before the interval, and the budget sets its length. The default
    corresponds to the authors' upper level for Stable Diffusion XL (sigma 5.42) on its schedule.
    """

    paper: ClassVar[str] = (
        "Kynkaanniemi et al., Applying Guidance in a Limited Interval, 2024: w(sigma) = w inside, 1 outside"
    )

    nfe: int
    start: float = 0.17

    def guide(self, run: Run) -> Guide:
        count = evaluations_for(self.nfe, run.steps)
        if not 0 <= self.start < 1:
            raise PlanError(f"start must be a share of the run from 0 to below 1, not {self.start:g}")
        first = int(self.start * run.steps)
        if first + count > run.steps:
            raise PlanError(
                f"a guidance interval of {count} steps (nfe={self.nfe}) that starts at step {first} of {run.steps} "
                f"does not fit; write start={max(0, run.steps - count) / run.steps:.2f} or less"
            )
        return IntervalGuide(first, first + count)


class IntervalGuide:
    """Evaluates both branches at the steps first .. end - 1, without guidance elsewhere."""

    plan: Plan | None = None

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end

    def evaluates(self, step: int) -> bool:
        return self._first <= step < self._end

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        return None

    def predict(self, step: int, conditional: Term) -> Term | None:
        return None
