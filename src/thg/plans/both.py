"""Leaps of both branches: between the steps at which the network runs, its conditional output is predicted as well.

Skipping unconditional passes alone gives at most a factor of two. Here the tortoise leaps as well: its output is
extrapolated linearly from the last two evaluations, like the hare's, and the sampler makes all its steps. Unlike fewer
steps, this keeps the sampler's grid, and therefore the picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thg.errors import PlanError
from thg.plans import hare
from thg.plans.guide import Guide, HareGuide, Run, Term
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Planned, Planner, guide_maker

DEFAULT_EVERY = 4
ENDS = (4, 3)  # steps at the start and the end of a run that are always evaluated: the output changes fastest there


@dataclass(frozen=True)
class LeapBoth:
    """Made by `leap_both`."""

    planner: Planner
    every: int = DEFAULT_EVERY

    def guide(self, run: Run) -> Guide:
        if run.adds_noise:
            raise PlanError(
                "leap_both predicts the conditional output, and this scheduler adds noise, which cannot be predicted: "
                "pass the plan alone, or use a scheduler without noise (DDIM, Euler, DPM++ 2M)"
            )
        return BothGuide(self.planner.plan(run), run, self.every)


def leap_both(plan: Choice = None, every: int = DEFAULT_EVERY) -> LeapBoth:
    """Both branches leap: for more than twice the speed without a cache in the network.

    plan: for the unconditional branch, as for `enable`; at its evaluations both branches run.
    every: in between, the conditional branch runs at each `every`-th step, and at the ends of the run. 1 is the plan
        alone.
    """
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise PlanError(f"every must be a whole number from 1 on, not {every!r}: leap_both(every={DEFAULT_EVERY})")
    maker = guide_maker(plan)
    if not isinstance(maker, Planned):
        raise PlanError(f"leap_both takes a plan or a planner, not {plan!r}; for example leap_both(thg.tapered(0.65))")
    return LeapBoth(maker.planner, every)


class BothGuide(HareGuide):
    """Follows a plan, and predicts the conditional output between the steps at which the network runs."""

    def __init__(self, plan: Plan, run: Run, every: int) -> None:
        super().__init__(plan, run)
        self._estimate = None  # it would cover the leaps of the guidance term only
        self._every = every
        self._between = range(ENDS[0], run.steps - ENDS[1])
        self._ran = -1  # the last step at which the network was asked to run
        self._outputs = hare.History()  # of the conditional branch

    def conditional(self, step: int) -> Term | None:
        """The predicted conditional output e_c at this step; None if the network must run."""
        runs = step not in self._between or step % self._every == 0 or len(self._outputs) < hare.MEMORY
        if runs or self.evaluates(step):
            self._ran = step
            return None
        return self._outputs.predict(self._at[step], order=hare.MEMORY)

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        self._remember(step, conditional)
        return super().observe(step, conditional, term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        self._remember(step, conditional)
        return super().predict(step, conditional)

    def _remember(self, step: int, conditional: Term) -> None:
        if self._ran == step:  # otherwise it was predicted
            self._outputs.add(self._at[step], tuple(_kept(part) for part in conditional))


def _kept(output: torch.Tensor) -> torch.Tensor:
    """A copy in at least float32: the pipeline may modify its tensor, and differences need the precision."""
    return output.to(torch.promote_types(output.dtype, torch.float32), copy=True)
