"""The settings of the node, and the plan of a run that follows from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from .core.errors import PlanError
from .core.plans.fidelity import CORRECTOR, DEFAULT_ERROR, within
from .core.plans.guide import Run
from .core.plans.plan import Plan
from .core.plans.planners import tapered

LEAST = 0.501  # share: the conditional branch always runs, and the unconditional one at least once


@dataclass(frozen=True)
class Settings:
    """error: how far the final latents may be from those of plain guidance, relative; 0 is plain guidance.
    evaluations: instead of an error, the share of plain guidance's evaluations; 0: as many as the error needs.
    steps: instead of both, the sampler's steps at which both branches run.
    start_percent, end_percent: outside, guidance is plain.
    corrector: correct the errors of leaps, if the sampler allows it.
    """

    error: float = DEFAULT_ERROR
    evaluations: float = 0.0
    steps: tuple[int, ...] = ()
    start_percent: float = 0.0
    end_percent: float = 1.0
    corrector: bool = True
    verbose: bool = False

    @property
    def by_error(self) -> bool:
        """Is it the error that determines the plan?"""
        return bool(self.error) and not self.evaluations and not self.steps

    def plan(self, run: Run, percent_to_sigma: Callable[[float], float]) -> Plan:
        """The plan of a run whose `times` are noise levels."""
        assert run.times is not None
        high, low = percent_to_sigma(self.start_percent), percent_to_sigma(self.end_percent)
        inside = [k for k, sigma in enumerate(run.times) if low <= sigma <= high]
        if not inside:
            return Plan(run.steps, tuple(range(run.steps)))
        start, end = inside[0], inside[-1] + 1
        plan = self._inside(run.part(start, end))
        coarse = (*range(start), *(start + k for k in plan.coarse), *range(end, run.steps))
        return replace(plan, steps=run.steps, coarse=coarse, cutoff=run.steps)

    def _inside(self, run: Run) -> Plan:
        if self.steps:  # a step may call the denoiser more than once
            listed = (k for k, position in enumerate(run.positions) if int(position) in self.steps)
            plan = Plan(run.steps, tuple(sorted({0, *listed})), corrector=CORRECTOR)
        elif self.evaluations:
            plan = tapered(max(self.evaluations, LEAST)).plan(run)
        else:
            plan = within(self.error).plan(run) if self.error else Plan(run.steps, tuple(range(run.steps)))
        if run.adds_noise:  # terms with different noise cannot be extrapolated: the last one is held
            plan = replace(plan, hare_order=1)
        return plan if self.corrector else replace(plan, corrector=0.0)


def step_list(text: str) -> tuple[int, ...]:
    """Steps such as "0-4, 6, 9-28:3" as numbers: from, to, and in strides of."""
    steps: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+)(?:\s*:\s*([1-9]\d*))?)?", part)
        if found is None:
            raise PlanError(f'{part!r} in the list of steps is not a step; write it like "0-4, 6, 9-28:3"')
        first = int(found[1])
        steps.update(range(first, int(found[2] or first) + 1, int(found[3] or 1)))
    return tuple(sorted(steps))
