"""Planners that follow from a profile: the paper's Algorithm 2, and the optimal grid for a budget.

A profile is moved to the grid of the run by the noise level of each step (by the share of steps where the scheduler
does not tell), and to another guidance scale by the factor w-1 on the hare.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from thg.errors import PlanError, ProfileError
from thg.ode.solvers import lagrange_weights
from thg.plans.guide import Run
from thg.plans.plan import Plan
from thg.plans.planners import (
    DEFAULT_CORRECTOR,
    affordable,
    check_budget,
    look_before_you_leap,
    m_max,
    rho_for,
    whole_steps,
)
from thg.profiles.noise import noise_share, output_weight
from thg.profiles.optimal import optimal_grid

if TYPE_CHECKING:
    from thg.profiles.profile import Profile

Array = NDArray[np.float64]
Method = Literal["optimal", "algorithm2"]

FAR_STEPS = 2.5  # beyond this ratio of step counts, or of w-1, the measurement says little
FAR_SCALE = 2.0
FAR_NOISE = 0.1
LONGEST = 100  # the steps up to which dynamic programming takes a moment; longer runs are planned on a shorter grid
CUBIC = 4  # nodes of a cubic interpolation


# -- a profile on the grid of a run


@dataclass(frozen=True, eq=False)
class Regridded:
    """A profile at the steps of a run.

    places: of the run's steps on the profile's own grid (step index, may be fractional).
    noise: sigma / (alpha + sigma) at the run's steps and at its end. hare_scale: w - 1 of the run.
    """

    profile: Profile
    places: Array
    noise: Array
    positions: Array
    hare_scale: float

    @classmethod
    def of(cls, profile: Profile, run: Run) -> Regridded:
        own = profile.noise[:-1]
        positions = np.asarray(run.positions, dtype=np.float64)
        if run.log_snr is not None:
            noise = noise_share(run.log_snr)
            places = np.interp(-noise, -own, np.arange(profile.steps, dtype=np.float64))
        else:
            places = np.minimum(positions * profile.steps / (positions[-1] + 1), profile.steps - 1)
            noise = np.interp(places, np.arange(profile.steps), own)
        w = profile.about.guidance_scale if run.guidance_scale is None else run.guidance_scale
        end = profile.noise[-1] if run.end_log_snr is None else noise_share(run.end_log_snr)
        return cls(profile, places, np.append(noise, end), positions, w - 1)

    @property
    def steps(self) -> int:
        return len(self.places)

    def error_constants(self) -> tuple[Array, Array]:
        """|c_T| and |c_H| at each step, up to a common factor."""
        measured = np.arange(self.profile.steps - 1)
        tortoise = np.interp(self.places, measured, self.profile.tortoise.mean)
        return tortoise, self.hare_scale * np.interp(self.places, measured, self.profile.hare.mean)

    @cached_property
    def gram(self) -> Array:
        """Inner products of the guidance terms at the run's steps, mean over samples."""
        weights = np.array([_cubic(place, self.profile.steps) for place in self.places])
        return np.asarray(weights @ (self.profile.gram / self.profile.samples) @ weights.T)

    @cached_property
    def gain(self) -> Array:
        """Gain from an error in d at each step to the final latents: (w-1) b_k S_k."""
        kind = self.profile.about.prediction
        response = [
            output_weight(kind, start, end) for start, end in zip(self.noise, self.noise[1:], strict=False)
        ]  # b_k
        return self.hare_scale * np.abs(response) * self.survival()

    def survival(self) -> Array:
        """S_k: the share of an error in the state after step k that survives to the end. 1 if it was not measured."""
        measured = self.profile.sensitivity
        if measured is None:
            return np.ones(self.steps)
        with np.errstate(divide="ignore"):
            curve = np.log(np.maximum(measured.mean, 1e-12))
        return np.exp(np.interp(self.places, self.profile.anchors, curve))

    def step_at(self, place: float) -> int:
        """The first step of the run at or beyond a step of the profile's own grid."""
        return int(np.searchsorted(self.places, place - 1e-9))


def _cubic(place: float, size: int) -> Array:
    """Weights on the profile's steps that interpolate at a place between them, by a cubic through the nearest four."""
    count = min(CUBIC, size)
    first = min(max(math.floor(place) - count // 2 + 1, 0), size - count)
    nodes = list(range(first, first + count))
    row = np.zeros(size)
    row[nodes] = lagrange_weights([float(n) for n in nodes], place)
    return row


def far_from(profile: Profile, run: Run) -> str:
    """How a run differs too much from the measured one, in words; empty if it does not."""
    distinct = len(set(run.positions))
    w = profile.about.guidance_scale if run.guidance_scale is None else run.guidance_scale
    places = Regridded.of(profile, run).places
    measured = float(places.max() - places.min()) + 1  # steps between the same noise levels
    steps, scale = distinct / measured, (w - 1) / (profile.about.guidance_scale - 1)
    far = []
    if not 1 / FAR_STEPS <= steps <= FAR_STEPS:
        far.append(f"{distinct} steps against {measured:.0f}")
    if not 1 / FAR_SCALE <= scale <= FAR_SCALE:
        far.append(f"guidance_scale {w:g} against {profile.about.guidance_scale:g}")
    if run.log_snr is not None:
        noise, own = noise_share(run.log_snr), profile.noise[:-1]
        if noise.max() > own.max() + FAR_NOISE or noise.min() < own.min() - FAR_NOISE:
            far.append("noise levels outside the measured range")
    return "; ".join(far)


# -- the planner


@dataclass(frozen=True, eq=False)
class ProfilePlanner:
    """Makes plans from a profile; made by `Profile.planner`."""

    profile: Profile
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
        nfe: float | None,
        rho: float | None,
        method: Method | None,
        hare_order: int | None,
        corrector: float | None,
        cutoff: int | None,
        boost: float,
    ) -> ProfilePlanner:
        if (nfe is None) == (rho is None):
            raise PlanError("planner takes either a budget, nfe=0.65, or rho=1.1, and one of them")
        if method is None:
            method = "algorithm2" if nfe is None or cutoff is not None or boost != 1 else "optimal"
        if method not in ("optimal", "algorithm2"):
            raise PlanError(f"method must be 'optimal' or 'algorithm2', not {method!r}")
        if method == "optimal" and (rho is not None or cutoff is not None or boost != 1):
            raise PlanError("rho, cutoff and boost belong to method='algorithm2'; method='optimal' takes nfe alone")
        if hare_order is None:
            hare_order = 1 if nfe is None else 2
        if corrector is None:
            corrector = 0.0 if nfe is None else DEFAULT_CORRECTOR
        if nfe is not None:
            check_budget(nfe)
        if rho is not None and not (math.isfinite(rho) and rho > 0):
            raise PlanError(f"rho must be above 0, not {rho}; the paper uses about 1")
        Plan(profile.steps, (0,), cutoff, boost, hare_order, corrector)  # the same checks, now and not in the first run
        return cls(profile, nfe, rho, method, hare_order, corrector, cutoff, boost)

    def plan(self, run: Run) -> Plan:
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
        assert self.nfe is not None
        evaluations = affordable(self.nfe, run.steps)
        if self.method == "optimal":
            return self._as_plan(run, self._optimal(here, evaluations), None)
        return self._as_plan(run, self._within(here, evaluations, cutoff or run.steps), cutoff)

    def _as_plan(self, run: Run, coarse: tuple[int, ...], cutoff: int | None) -> Plan:
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

    def _optimal_stretched(self, here: Regridded, evaluations: int) -> tuple[int, ...]:
        """A long run, planned on a grid of `LONGEST` steps and spread out with the same density."""
        picked = np.linspace(0, here.steps - 1, LONGEST)
        noise = np.interp(picked, np.arange(here.steps + 1), here.noise)
        short = Regridded(
            here.profile,
            np.interp(picked, np.arange(here.steps), here.places),
            np.append(noise, here.noise[-1]),
            np.arange(LONGEST, dtype=np.float64),
            here.hare_scale,
        )
        grid = self._optimal(short, max(1, round(evaluations * LONGEST / here.steps)))
        ends = np.array([*grid, LONGEST]) * here.steps / LONGEST
        places = np.interp(np.arange(evaluations) * (len(grid) / evaluations), np.arange(len(ends)), ends)
        return whole_steps(places, here.steps)


def same_network(fingerprint: str, network: str) -> bool:
    """Is a network the one that a profile knows? Of profiles of thg 0.1, which hashed settings, the class counts."""
    if ":" not in fingerprint:
        return fingerprint.rpartition("-")[0] == network.partition(":")[0]
    return fingerprint == network


def _require_same_network(profile: Profile, run: Run) -> None:
    fingerprint = profile.about.network
    if run.network is not None and fingerprint and not same_network(fingerprint, run.network):
        raise ProfileError(
            f"this profile was measured on the network {fingerprint} of {profile.about.pipeline}, and this pipeline "
            f"has {run.network}; calibrate it: thg.calibrate(pipe, prompts)"
        )
