"""The settings of the node, and the plan of a run that follows from them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .core.errors import PlanError
from .core.plans.plan import Plan
from .core.plans.run_info import RunInfo
from .core.plans.tolerance import DEFAULT_ERROR, PRIOR, network_plan, within

PRESETS = {"quality": 0.003, "balanced": DEFAULT_ERROR, "fast": 0.03, "off": 0.0}  # error
DEFAULT_PRESET = "balanced"
LONGEST_LIST, MOST_STEPS = 1000, 10_000  # characters; steps of a run
SAME_STEP = 0.01
STEPS = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9})(?:\s*:\s*([1-9]\d{0,8}))?)?")
EXAMPLE = 'write it like "0-4, 6, 9-28:3"'


@dataclass(frozen=True)
class Settings:
    """error: how far the final latents may be from those without the node, relative; 0 skips nothing.
    evaluations: instead of an error, the share of the calls to evaluate; 0: as many as the error needs.
    steps: instead of both, the sampler's steps to evaluate.
    start_percent, end_percent: outside, everything is evaluated.
    corrector: correct the errors of predictions, if the sampler allows it.
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
        """Does an error decide how many calls are evaluated, and not a number?"""
        return not (self.steps or self.evaluations)

    def plan(self, run: RunInfo, percent_to_sigma: Callable[[float], float], effort: float = 1.0) -> Plan:
        """The plan of a run whose `times` are noise levels; raises a PlanError with the reason if nothing is skipped.

        effort: factor on the evaluations that an error needs.
        """
        assert run.times is not None
        if run.adds_noise:
            raise PlanError("the sampler adds noise at each step, which no prediction can know")
        high, low = percent_to_sigma(self.start_percent), percent_to_sigma(self.end_percent)
        even = _even_part(run.positions)
        inside = [call for call, sigma in enumerate(run.times) if low <= sigma <= high and call in even]
        if not inside:
            raise PlanError(f"no call lies between {self.start_percent:.0%} and {self.end_percent:.0%} of the schedule")
        start, end = inside[0], inside[-1] + 1
        plan = self._inside(run.part(start, end), effort)
        coarse = (*range(start), *(start + call for call in plan.coarse), *range(end, run.steps))
        if len(coarse) == run.steps:
            raise PlanError(self._all(run))
        return replace(plan, steps=run.steps, coarse=coarse, cutoff=None)

    def _inside(self, run: RunInfo, effort: float) -> Plan:
        if self.steps:  # a step may call the denoiser more than once
            listed = [call for call, position in enumerate(run.positions) if int(position) in self.steps]
            if not listed:
                raise PlanError(f"none of the listed steps, {self.steps[0]} to {self.steps[-1]}, is in this run")
            plan = replace(network_plan(run, run.steps), coarse=tuple(sorted({0, *listed})))
        elif self.evaluations:
            plan = network_plan(run, max(PRIOR.fewest, round(self.evaluations * run.steps)))
        else:
            plan = within(self.error, effort=effort).plan(run) if self.error else network_plan(run, run.steps)
        return plan if self.corrector else replace(plan, corrector=0.0)

    def _all(self, run: RunInfo) -> str:
        """Why everything is evaluated."""
        if not (self.by_error and self.error):
            return "the settings ask for every evaluation"
        return f"an error of {self.error:g} needs all {run.steps} calls; use more steps"


def _even_part(positions: Sequence[float]) -> range:
    """The calls of a run that are one step apart; all of them if it has no such part.

    Multistep samplers of other packs (RES4LYF) begin with steps of several calls. Their states are no points of the
    run, and a line through their outputs leads away from it.
    """
    parts = [range(1)]
    for call, (before, now) in enumerate(itertools.pairwise(positions), start=1):
        follows = math.isclose(now - before, 1.0, abs_tol=SAME_STEP)
        parts.append(range(parts[-1].start if follows else call, call + 1))
    longest = max(parts, key=len)
    return longest if len(longest) > PRIOR.fewest else range(len(positions))


def step_list(text: str) -> tuple[int, ...]:
    """Steps such as "0-4, 6, 9-28:3" as numbers: from, to, and in strides of."""
    if len(text) > LONGEST_LIST:
        raise PlanError(f"the list of steps has {len(text)} characters, and at most {LONGEST_LIST} are read; {EXAMPLE}")
    steps: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        found = STEPS.fullmatch(part)
        if found is None:
            raise PlanError(f"{part!r} in the list of steps is not a step; {EXAMPLE}")
        first, last = int(found[1]), int(found[2] or found[1])
        if max(first, last) >= MOST_STEPS:
            raise PlanError(f"{part!r} in the list of steps goes beyond step {MOST_STEPS - 1}; {EXAMPLE}")
        if last < first:
            raise PlanError(f"{part!r} in the list of steps ends before it starts; {EXAMPLE}")
        steps.update(range(first, last + 1, int(found[3] or 1)))
    return tuple(sorted(steps))
