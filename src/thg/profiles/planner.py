"""Planners that follow from a profile: the optimal grid for a tolerance or a budget, and the paper's Algorithm 2."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from thg.errors import PlanError, ProfileError
from thg.plans.fidelity import check_error
from thg.plans.plan import Plan
from thg.plans.planners import (
    CORRECTOR,
    SLOPE,
    affordable,
    check_budget,
    look_before_you_leap,
    m_max,
    rho_for,
    whole_steps,
)
from thg.plans.run import RunInfo
from thg.profiles.optimal import leap_costs, optimal_grid, optimal_grids
from thg.profiles.regridded import Regridded, far_from

if TYPE_CHECKING:
    from thg.profiles.profile import Profile

Method = Literal["optimal", "algorithm2"]

WORST = 3.0  # the error that 95 % of runs stay within, over the predicted root mean square: on both shipped models
LONGEST = 100  # the steps up to which dynamic programming takes a moment; longer runs are planned on a shorter grid


@dataclass(frozen=True, eq=False)
class ProfilePlanner:
    """Makes plans from a profile; made by `Profile.planner`."""

    profile: Profile
    error: float | None
    nfe: float | None
    rho: float | None
    method: Method
    hare_order: int
    corrector: float
    cutoff: int | None
    boost: float

    @classmethod
    def checked(
        cls,
        profile: Profile,
        error: float | None,
        nfe: float | None,
        rho: float | None,
        method: Method | None,
        hare_order: int | None,
        corrector: float | None,
        cutoff: int | None,
        boost: float,
    ) -> ProfilePlanner:
        if sum(wish is not None for wish in (error, nfe, rho)) != 1:
            raise PlanError("planner takes one of a tolerance, error=0.01, a budget, nfe=0.65, and rho=1.1")
        if method is None:
            method = "algorithm2" if rho is not None or cutoff is not None or boost != 1 else "optimal"
        if method not in ("optimal", "algorithm2"):
            raise PlanError(f"method must be 'optimal' or 'algorithm2', not {method!r}")
        if method == "optimal" and (rho is not None or cutoff is not None or boost != 1):
            raise PlanError("rho, cutoff and boost belong to method='algorithm2'; method='optimal' takes nfe or error")
        if method == "algorithm2" and error is not None:
            raise PlanError("a tolerance is kept by method='optimal', without cutoff and boost; 'algorithm2' takes nfe")
        if hare_order is None:
            hare_order = 2 if rho is None else 1
        if corrector is None:
            corrector = CORRECTOR if rho is None else 0.0
        if error is not None:
            check_error(error)
            _ = profile.state_norm  # an error if it does not know it
        if nfe is not None:
            check_budget(nfe)
        if rho is not None and not (math.isfinite(rho) and rho > 0):
            raise PlanError(f"rho must be above 0, not {rho}; the paper uses about 1")
        Plan(profile.steps, (0,), cutoff, boost, hare_order, corrector)  # the same checks, now and not in the first run
        return cls(profile, error, nfe, rho, method, hare_order, corrector, cutoff, boost)

    def plan(self, run: RunInfo) -> Plan:
        _require_same_network(self.profile, run)
        if far := far_from(self.profile, run):
            warnings.warn(
                f"this run is far from what the profile was measured on ({far}); its plan is a guess. Calibrate at "
                "these settings, or use thg.tapered",
                stacklevel=2,
            )
        here = Regridded.of(self.profile, run)
        if here.hare_scale <= 0:  # guidance is off, or has no hare: nothing can be planned, and nothing will be used
            return Plan(run.steps, (0,), hare_order=self.hare_order)
        cutoff = None if self.cutoff is None else max(1, here.step_at(self.cutoff))
        if self.rho is not None:
            return self._as_plan(run, self._algorithm2(here, self.rho), cutoff)
        if self.error is not None:
            coarse = self._fewest(here, self.error, corrected=run.response is not None)
            return replace(self._as_plan(run, coarse, None), slope=SLOPE)
        assert self.nfe is not None
        evaluations = affordable(self.nfe, run.steps)
        if self.method == "optimal":
            return self._as_plan(run, self._optimal(here, evaluations), None)
        return self._as_plan(run, self._within(here, evaluations, cutoff or run.steps), cutoff)

    def _as_plan(self, run: RunInfo, coarse: tuple[int, ...], cutoff: int | None) -> Plan:
        return Plan(run.steps, coarse, cutoff, self.boost, self.hare_order, self.corrector)

    def _algorithm2(self, here: Regridded, rho: float) -> tuple[int, ...]:
        tortoise, hare = here.error_constants()
        return look_before_you_leap(m_max(tortoise.tolist(), hare.tolist(), rho, self.profile.about.order))

    def _within(self, here: Regridded, evaluations: int, cutoff: int) -> tuple[int, ...]:
        """Algorithm 2 with the rho whose grid comes closest to the budget from below, the smallest of them."""
        tortoise, hare = (constants.tolist() for constants in here.error_constants())
        try:
            rho = rho_for(tortoise, hare, evaluations, self.profile.about.order, cutoff=cutoff)
        except PlanError:
            return (0,)
        return self._algorithm2(here, rho)

    def _optimal(self, here: Regridded, evaluations: int) -> tuple[int, ...]:
        if here.steps > LONGEST:
            return self._optimal_stretched(here, evaluations)
        grid, _ = optimal_grid(
            here.gram,
            here.gain,
            evaluations,
            hare_order=self.hare_order,
            corrector=self.corrector,
            positions=here.positions,
        )
        return grid

    def _fewest(self, here: Regridded, error: float, *, corrected: bool) -> tuple[int, ...]:
        """The fewest evaluations with which the worst 5 % of runs are predicted to stay within the tolerance."""
        near = here if here.steps <= LONGEST else here.picked(LONGEST)
        allowed = (error * self.profile.state_norm / WORST) ** 2
        cost = leap_costs(
            near.gram,
            near.gain,
            hare_order=self.hare_order,
            corrector=self.corrector if corrected else 0.0,
            slope=SLOPE,
            positions=near.positions,
        )
        fitting = (grid for grid, square in optimal_grids(cost) if square <= allowed)
        grid = next(fitting, tuple(range(near.steps)))
        return grid if near is here else _stretched(grid, len(grid), here.steps)

    def _optimal_stretched(self, here: Regridded, evaluations: int) -> tuple[int, ...]:
        """A long run, planned on a grid of `LONGEST` steps and spread out with the same density."""
        grid = self._optimal(here.picked(LONGEST), max(1, round(evaluations * LONGEST / here.steps)))
        return _stretched(grid, evaluations, here.steps)


def _stretched(grid: tuple[int, ...], count: int, steps: int) -> tuple[int, ...]:
    """`count` steps of a longer run, with the density of a grid over `LONGEST` steps."""
    ends = np.array([*grid, LONGEST]) * steps / LONGEST
    places = np.interp(np.arange(count) * (len(grid) / count), np.arange(len(ends)), ends)
    return whole_steps(places, steps)


def same_network(fingerprint: str, network: str) -> bool:
    """Is this the network of a profile? For profiles of thg 0.1, which hashed settings, only the class is compared."""
    if ":" not in fingerprint:
        return fingerprint.rpartition("-")[0] == network.partition(":")[0]
    return fingerprint == network


def _require_same_network(profile: Profile, run: RunInfo) -> None:
    fingerprint = profile.about.network
    if run.network is not None and fingerprint and not same_network(fingerprint, run.network):
        raise ProfileError(
            f"this profile was measured on the network {fingerprint} of {profile.about.pipeline}, and this pipeline "
            f"has {run.network}; calibrate it: thg.calibrate(pipe, prompts)"
        )
