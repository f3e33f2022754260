"""Guides: they decide, in one run, when the guidance term is evaluated and what is used otherwise.

The patch of a pipeline calls a `Guide`, which is created for each run and discarded after it. `HareGuide` follows a
`Plan`. The benchmark's baselines are other guides, so that only the decision differs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from thg.plans.leaps import Estimate, Leaps
from thg.plans.plan import Plan
from thg.plans.run_info import RunInfo, Term

if TYPE_CHECKING:
    from torch import Tensor


class Guide(Protocol):
    """The decisions of one run. The methods are called in order of the steps, `evaluates` first."""

    @property
    def plan(self) -> Plan | None:
        """The plan that is followed, if any."""

    def evaluates(self, step: int) -> bool:
        """Must the unconditional branch run at this step?"""

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        """Takes a newly evaluated guidance term d = e_c - e_u. Returns the term to use instead, or None to use it."""

    def predict(self, step: int, conditional: Term) -> Term | None:
        """The term to use if it was not evaluated. None: no guidance at this step."""


Evaluate: TypeAlias = "Callable[[Any, Any], tuple[Term, Term]]"


@runtime_checkable
class Visitor(Protocol):
    """A guide that also evaluates the network near each evaluated step (calibration does)."""

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        """Called before the unconditional branch runs, with the network's input.

        evaluate(sample, time) gives e_c and d of the same network, with the same conditions, for another input.
        """


@runtime_checkable
class GuideMaker(Protocol):
    """Can be enabled on a pipeline: makes the guide of a run."""

    def guide(self, run: RunInfo) -> Guide: ...


class HareGuide:
    """Follows a plan: Algorithm 1 as a predictor at the denoiser, with the errors of leaps corrected afterwards.

    from_step: makes the plan to follow instead if the guidance begins at a later step.
    """

    def __init__(self, plan: Plan, run: RunInfo, from_step: Callable[[int], Plan] | None = None) -> None:
        self._from_step = from_step
        self._leaps = Leaps(plan, run, Estimate.of(plan, run))
        self._guided_at = -2  # the last step with guidance; before the run there was none

    @property
    def plan(self) -> Plan:
        return self._leaps.plan

    def evaluates(self, step: int) -> bool:
        if self._from_step is not None:
            if step > 0:
                self._leaps.plan = self._from_step(step)
            self._from_step = None
        # the pipeline may switch guidance on late, or on again: then there are no recent terms to predict from
        return self.plan.guides(step) and (self.plan.evaluates(step) or self._guided_at < step - 1)

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        if self._guided_at < step - 1:  # guidance was off in between: terms before the gap are not used
            self._leaps.forget()
        self._guided_at = step
        used = self._leaps.observe(step, term)
        return None if used is term else used

    def predict(self, step: int, conditional: Term) -> Term | None:
        if not self.plan.guides(step):  # before the start, and from i_hi on: d = 0
            self._leaps.forget()
            return None
        self._guided_at = step
        return self._leaps.predict(step)

    def estimated_error(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The estimated difference from plain CFG, per row, relative to the norm of the state.

        sample: the state, as the last input of the network. None if it cannot be estimated: the guidance scale is
        unknown, there was no leap, or the plan changes the guidance itself (boost, cutoff).
        """
        return self._leaps.estimated_error(sample)
