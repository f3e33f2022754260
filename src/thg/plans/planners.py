"""Planners, which make a plan for a given run, and the grids that they choose from.

`m_max` and `look_before_you_leap` are the paper's (Eq. m_max and Algorithm 2), and `uniform` makes plans of the paper's
kind: the conditional branch runs at each step. `tapered` takes a budget for leaps of the whole network; the default,
`within`, a tolerance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from thg.errors import PlanError
from thg.plans.guide import Guide, GuideMaker, HareGuide
from thg.plans.leaps import Estimate, Leaps
from thg.plans.plan import PRESETS, Plan, Preset, Skips, preset
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import PRIOR, Shape, Tuned, grid, network_plan, predictable, shaped, within

DEFAULT_NFE = 0.5


class Planner(Protocol):
    """Makes the plan of a run. One whose plans let the whole network leap has the attribute skips = "network"."""

    def plan(self, run: RunInfo) -> Plan: ...


# -- grids


def m_max(tortoise: Sequence[float], hare: Sequence[float], rho: float, order: int) -> tuple[int, ...]:
    """How far the hare may leap from each step: max(1, floor((rho |c_T| / |c_H|)^(1/p))).

    tortoise, hare: the error constants |c_T| and |c_H| at each step (any common factor cancels).
    rho: allowed ratio of hare error to tortoise error. order: p, the order of the solver.
    """
    c_t, c_h = np.asarray(tortoise, dtype=np.float64), np.asarray(hare, dtype=np.float64)
    if c_t.shape != c_h.shape or c_t.ndim != 1 or not c_t.size:
        raise PlanError(f"tortoise and hare need one constant per step each, not shapes {c_t.shape} and {c_h.shape}")
    if not (np.isfinite(c_t).all() and np.isfinite(c_h).all() and (c_t >= 0).all() and (c_h >= 0).all()):
        raise PlanError("the error constants must be finite and not negative")
    if not (math.isfinite(rho) and rho > 0):
        raise PlanError(f"rho must be above 0, not {rho}; the paper uses about 1")
    if order < 1:
        raise PlanError(f"the order of the solver must be at least 1, not {order}")
    steps = len(c_t)
    with np.errstate(divide="ignore", invalid="ignore"):
        leap = (rho * c_t / c_h) ** (1 / order)
    leap = np.where(c_h == 0, steps, leap)  # without hare error a leap may reach the end
    return tuple(int(m) for m in np.clip(np.floor(leap + 1e-12), 1, steps))


def look_before_you_leap(leaps: Sequence[int]) -> tuple[int, ...]:
    """Algorithm 2: start at step 0 and always advance by the leap of the current step."""
    if not leaps:
        raise PlanError("Algorithm 2 needs the longest leap of each step; none were given")
    if min(leaps) < 1:
        raise PlanError(f"a leap must be at least 1 step, not {min(leaps)}")
    coarse, i = [], 0
    while i < len(leaps):
        coarse.append(i)
        i += leaps[i]
    return tuple(coarse)


def rho_for(
    tortoise: Sequence[float], hare: Sequence[float], evaluations: int, order: int, *, cutoff: int | None = None
) -> float:
    """The smallest rho with which Algorithm 2 comes closest to a number of evaluations without exceeding it.

    tortoise, hare, order: as in `m_max`. cutoff: evaluations from this step on do not count.
    """
    c_t, c_h = np.asarray(tortoise, dtype=np.float64), np.asarray(hare, dtype=np.float64)
    leaps = np.arange(1, len(c_t) + 1)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        changes = leaps**order * c_h / c_t  # the rho at which a leap grows to this length
    counts, end = {}, len(c_t) if cutoff is None else cutoff
    for rho in np.unique(changes[np.isfinite(changes) & (changes > 0)]) * (1 + 1e-9):
        grid = look_before_you_leap(m_max(tortoise, hare, float(rho), order))
        counts[float(rho)] = sum(i < end for i in grid)
    fitting = {rho: count for rho, count in counts.items() if count <= evaluations}
    if not fitting:
        raise PlanError(
            f"no rho leads to {evaluations} evaluations or fewer: some steps have no tortoise error to compare with"
        )
    return max(fitting, key=lambda rho: (fitting[rho], -rho))


def whole_steps(ideal: NDArray[np.float64], steps: int) -> tuple[int, ...]:
    """Increasing positions rounded down to distinct steps of a run, from 0, each moved as little as possible."""
    grid = [0]
    for k in range(1, len(ideal)):
        room_for_the_rest = steps - len(ideal) + k
        grid.append(min(max(math.floor(ideal[k]), grid[-1] + 1), room_for_the_rest))
    return tuple(grid)


def evaluations_for(nfe: float, steps: int) -> int:
    """How many unconditional evaluations a budget leaves: a count has to fit the run, a share gives one at least."""
    if isinstance(nfe, float):
        return min(steps, max(1, round(nfe * 2 * steps) - steps))
    if not steps + 1 <= nfe <= 2 * steps:
        raise PlanError(
            f"nfe={nfe!r} is {nfe} evaluations, but {steps} steps need {steps + 1} to {2 * steps} "
            f"(as a share: {(steps + 1) / (2 * steps):.2f} to 1.0)"
        )
    return nfe - steps


# -- planners


@dataclass(frozen=True)
class Uniform:
    """Evenly spread evaluations; made by `uniform`."""

    every: int | None = None
    nfe: float | None = None
    hare_order: int = 2
    corrector: float = 0.0
    shape: Shape | None = None

    def plan(self, run: RunInfo) -> Plan:
        if self.every is not None:
            coarse = tuple(range(0, run.steps, self.every))
        else:
            assert self.nfe is not None
            count = evaluations_for(self.nfe, run.steps)
            if self.shape is not None:
                coarse = grid(run, count, shaped(self.shape))
            else:
                coarse = tuple(i * run.steps // count for i in range(count))  # the last leap is as long as the others
        return Plan(run.steps, coarse, hare_order=self.hare_order, corrector=self.corrector)


def uniform(
    every: int | None = None,
    *,
    nfe: float | None = None,
    hare_order: int = 2,
    corrector: float = 0.0,
    shape: Shape | None = None,
) -> Uniform:
    """A planner that evaluates the guidance term at evenly spread steps.

    every: at each `every`-th step; 1 is plain CFG, exactly.
    nfe: instead of `every`, a budget of evaluations: a float is a share of plain CFG's, an int a count.
    hare_order, corrector: see `Plan`. shape: with a budget, as for `tapered`, if they should not be even.
    """
    if (every is None) == (nfe is None):
        raise PlanError("uniform takes exactly one of every=2 and nfe=0.65")
    if every is not None and (isinstance(every, bool) or not isinstance(every, int) or every < 1):
        raise PlanError(f"every must be a whole number from 1, not {every!r}")
    if nfe is not None:
        check_budget(nfe)
    if shape is not None and every is not None:
        raise PlanError("shape belongs to a budget: write thg.uniform(nfe=0.65, shape=(1, 2)), or every=2 without it")
    shaped(shape)  # validates it
    Plan(1, (0,), hare_order=hare_order, corrector=corrector)  # validates the arguments now, not in the first run
    return Uniform(every, nfe, hare_order, corrector, shape)


@dataclass(frozen=True)
class Tapered:
    """A budget for leaps of the whole network; made by `tapered`."""

    nfe: float = DEFAULT_NFE
    shape: Shape | None = None
    skips: ClassVar[Skips] = "network"

    def plan(self, run: RunInfo) -> Plan:
        count = evaluated_steps(self.nfe, run) if predictable(run) else run.steps
        return network_plan(run, count, shaped(self.shape))


def tapered(nfe: float = DEFAULT_NFE, *, shape: Shape | None = None) -> Tapered:
    """A budget of evaluations, placed as the default places them: short leaps at both ends of a run.

    At the start the output changes fast and there is little history to predict it from; at the end nothing corrects the
    last leap. Below about ten evaluated steps the result is another picture. If the scheduler adds noise or clips,
    everything is evaluated.

    nfe: a float is a share of the plain run's evaluations, an int a count.
    shape: additional density of evaluations at the start and at the end of a run, (1, 1.5) unless given; (0, 0) is
        even.
    """
    check_budget(nfe, least=0.0)
    shaped(shape)  # validates it
    return Tapered(nfe, shape)


def evaluated_steps(nfe: float, run: RunInfo) -> int:
    """At how many steps the network can run with this budget."""
    count = round(nfe * run.steps) if isinstance(nfe, float) else nfe // run.branches
    return min(run.steps, max(PRIOR.fewest, count))


def check_budget(nfe: float, least: float = 0.5) -> None:
    """Raises an error for a budget that is invalid for every run. least: the share that is needed in any case."""
    if isinstance(nfe, float) and not least < nfe <= 1:
        needed = "the conditional branch always runs" if least else "the network must run"
        raise PlanError(
            f"nfe={nfe!r} is a share of the plain run's evaluations and must lie above {least:g} ({needed}) and "
            "at most at 1.0; a count of evaluations is written as an int"
        )
    if not isinstance(nfe, float) and (isinstance(nfe, bool) or not isinstance(nfe, int) or nfe < 2):
        raise PlanError(f"nfe must be a share of the plain run's evaluations such as 0.5 or a count, not {nfe!r}")


@dataclass(frozen=True)
class Fixed:
    """Always the same plan; a run of another length is an error."""

    value: Plan

    @property
    def skips(self) -> Skips:
        return self.value.skips

    def plan(self, run: RunInfo) -> Plan:
        if self.value.steps == run.steps:
            return self.value
        distinct = len(set(run.positions))
        if self.value.steps == distinct:
            return self._on_repeated_calls(run)
        calls = "" if distinct == run.steps else f" with {distinct} steps"
        raise PlanError(
            f"the plan is for {self.value.steps} steps, but this run{calls} calls the network {run.steps} times; write "
            f"num_inference_steps={self.value.steps} in the pipeline's call, or "
            f"thg.enable(pipe, thg.tapered({self.value.nfe / self.value.cfg_nfe:.2f})), which fits any run"
        )

    def _on_repeated_calls(self, run: RunInfo) -> Plan:
        """For a sampler with several network calls per time step: each call follows the plan of its step."""
        coarse = frozenset(self.value.coarse)
        guided = [k for k, position in enumerate(run.positions) if self.value.guides(round(position))]
        return replace(
            self.value,
            steps=run.steps,
            coarse=tuple(k for k, position in enumerate(run.positions) if position in coarse),
            start=guided[0],
            cutoff=guided[-1] + 1,
        )


@dataclass(frozen=True)
class Planned:
    """Follows the plan that a planner makes."""

    planner: Planner

    @property
    def skips(self) -> Skips:
        """What the planner's plans skip."""
        return getattr(self.planner, "skips", "unconditional")

    def leaps(self, run: RunInfo, *, by_inputs_alone: bool = False) -> Leaps:
        """A run in which the whole network leaps.

        by_inputs_alone: what the network returns does not change which steps are evaluated, so that several ranks
        agree. Nor does it under a plan or a budget, which are followed to the letter.
        """
        plan = self.planner.plan(run)
        estimate = Estimate.of(plan, run, getattr(self.planner, "factor", 1.0))
        has_tolerance = getattr(self.planner, "error", None) is not None
        tuned = self.planner.said_of(run) if isinstance(self.planner, Tuned) else ""
        return Leaps(plan, run, estimate, gives_up=has_tolerance and not by_inputs_alone, tuned=tuned)

    def guide(self, run: RunInfo) -> Guide:
        """A run in which the guidance term leaps."""
        if isinstance(self.planner, Fixed):
            return HareGuide(self.planner.plan(run), run)
        return HareGuide(self.planner.plan(run), run, partial(self._from_step, run))

    def _from_step(self, run: RunInfo, first: int) -> Plan:
        """The plan of a run whose guidance begins at a later step."""
        rest = run.part(first, run.steps)
        return _with_budget_left(self.planner, first, rest.steps).plan(rest).placed(first, run.steps)


def _with_budget_left(planner: Planner, spent: int, steps: int) -> Planner:
    """The planner for these steps after some without guidance: a count of evaluations is smaller, and always fits."""
    count = getattr(planner, "nfe", None)
    if not isinstance(count, int) or not is_dataclass(planner):
        return planner
    left = min(max(count - spent, steps + 1), 2 * steps)
    return cast(Planner, replace(planner, nfe=left))


Choice = str | float | Plan | Preset | Planner | GuideMaker | None  # what a user may pass to `enable`


SHORT_FORMS = (
    f'a tolerance such as "1%", a share of the evaluations such as 0.5, or a preset ({", ".join(sorted(PRESETS))})'
)
LEAST_SHARE = 0.1  # below it a number is a tolerance written as one: no budget as small gives the same picture


def guide_maker(choice: Choice) -> Planned | GuideMaker:
    """A user's choice as a guide maker. None is the default, `within()`; 0.5 is `tapered(0.5)`, "1%" `within(0.01)`."""
    if choice is None:
        return Planned(within())
    if isinstance(choice, float):
        if 0 < choice < LEAST_SHARE:
            raise PlanError(
                f"{choice!r} is a budget, of {choice:.0%} of the evaluations; a tolerance is written "
                f'"{100 * choice:g}%", and this budget thg.tapered({choice!r})'
            )
        return Planned(tapered(choice))
    if isinstance(choice, str):
        tolerance = re.fullmatch(r"(\d*\.?\d+) ?%", choice)
        if tolerance:
            return Planned(within(float(tolerance[1]) / 100))
        if choice not in PRESETS:
            raise PlanError(f"{choice!r} is not {SHORT_FORMS}")
        choice = preset(choice)
    if isinstance(choice, Preset):
        choice = choice.plan()
    if isinstance(choice, Plan):
        return Planned(Fixed(choice))
    if not isinstance(choice, type):
        if callable(getattr(choice, "guide", None)):
            return cast(GuideMaker, choice)
        if callable(getattr(choice, "plan", None)):
            return Planned(cast(Planner, choice))
    count = f"; a count of evaluations is thg.tapered({choice})" if str(choice).isdigit() else ""
    raise PlanError(f"expected a plan, a planner such as thg.within(0.01), {SHORT_FORMS}, not {choice!r}{count}")
