"""Planners that follow from a profile: the optimal grid for a tolerance or a budget, and the paper's Algorithm 2.

A profile is interpolated over the noise level of each step of a run (over the share of steps if that is unknown).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from thg.errors import PlanError, ProfileError
from thg.ode.outputs import Array, Node, Prediction, express
from thg.plans.leaps import lagrange_weights
from thg.plans.plan import Plan, Skips
from thg.plans.planners import (
    check_budget,
    evaluated_steps,
    evaluations_for,
    look_before_you_leap,
    m_max,
    rho_for,
    whole_steps,
)
from thg.plans.response import Response
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import PRIOR, check_error, leap_weights, predictable

if TYPE_CHECKING:
    from thg.profiles.profile import Profile

Indices = NDArray[np.intp]
GridMethod = Literal["optimal", "algorithm2"]

WORST = 7.0  # the error that 95 % of runs stay within, over the predicted root mean square
SMALLEST_SIZE = 1e-6  # of a leap's error, of the largest one
TINY = 1e-300
LONGEST = 100  # the steps up to which dynamic programming takes a moment; longer runs are planned on a shorter grid
FAR_STEPS = 2.5  # beyond this ratio of step counts, or of w-1, the measurement says little
FAR_SCALE = 2.0
FAR_NOISE = 0.1
CUBIC = 4  # nodes of a cubic interpolation


@dataclass(frozen=True, eq=False)
class ProfilePlanner:
    """Makes plans from a profile; made by `Profile.planner`."""

    profile: Profile
    error: float | None
    nfe: float | None
    rho: float | None
    method: GridMethod
    hare_order: int
    corrector: float
    cutoff: int | None
    boost: float

    def __post_init__(self) -> None:
        optimal, paper = self.method == "optimal", self.rho is not None or self.cutoff is not None or self.boost != 1
        if sum(wish is not None for wish in (self.error, self.nfe, self.rho)) != 1:
            raise PlanError("planner takes one of a tolerance, error=0.01, a budget, nfe=0.5, and rho=1.1")
        if not optimal and self.method != "algorithm2":
            raise PlanError(f"method must be 'optimal' or 'algorithm2', not {self.method!r}")
        if optimal and paper:
            raise PlanError("rho, cutoff and boost belong to method='algorithm2'; method='optimal' takes nfe or error")
        if not optimal and self.error is not None:
            raise PlanError("a tolerance is kept by method='optimal', without cutoff and boost; 'algorithm2' takes nfe")
        if self.error is not None:
            check_error(self.error)
        if self.nfe is not None:
            check_budget(self.nfe, least=0.0 if optimal else 0.5)
        if self.rho is not None and not (math.isfinite(self.rho) and self.rho > 0):
            raise PlanError(f"rho must be above 0, not {self.rho}; the paper uses about 1")
        # the checks of a plan, and whether all was measured: now, and not in the first run
        Plan(self.profile.steps, (0,), self.cutoff, self.boost, self.hare_order, self.corrector)
        _ = self.profile.outputs if optimal else self.profile.algorithm3

    @property
    def skips(self) -> Skips:
        return "network" if self.method == "optimal" else "unconditional"

    def plan(self, run: RunInfo) -> Plan:
        require_same_network(self.profile, run)
        if far := far_from(self.profile, run):
            warnings.warn(
                f"this run is far from what the profile was measured on ({far}); its plan is a guess. Calibrate at "
                "these settings, or use thg.tapered",
                stacklevel=2,
            )
        on_grid = ProfileOnGrid.of(self.profile, run)
        return self._optimal(on_grid, run) if self.method == "optimal" else self._algorithm2(on_grid, run)

    # -- the whole network leaps

    def _optimal(self, on_grid: ProfileOnGrid, run: RunInfo) -> Plan:
        """The grid with the least predicted error for a budget, or the smallest one that keeps the tolerance."""
        near = on_grid if on_grid.steps <= LONGEST else on_grid.picked(LONGEST)
        budget = run.steps if self.nfe is None else evaluated_steps(self.nfe, run)
        wanted = round(budget * near.steps / on_grid.steps)
        allowed = 0.0 if self.error is None else (self.error * self.profile.state_norm / WORST) ** 2
        grid = tuple(range(near.steps))
        if predictable(run):
            squares, weights = self._costs(near, corrected=run.response is not None)
            for grid, _ in islice(optimal_grids(weights), PRIOR.fewest - 1, None):
                if len(grid) >= wanted or _total(squares, grid) <= allowed:
                    break
        if near is not on_grid:
            count = len(grid) if self.nfe is None else budget
            grid = _stretched(grid, run.steps if len(grid) == near.steps else count, run.steps)
        corrector, order = self.corrector, self.hare_order
        return Plan(run.steps, grid, hare_order=order, corrector=corrector, slope=PRIOR.slope, skips="network")

    def _costs(self, on_grid: ProfileOnGrid, *, corrected: bool) -> tuple[Array, Array]:
        """The predicted square error of each leap, and the weights whose total the grid minimises.

        Errors of neighbouring leaps are alike, so their sizes add up rather than their squares. A leap also disturbs
        the next ones, which the prediction does not know and the default's weights do: the geometric mean of both.
        """
        squares = leap_costs(
            on_grid.gram,
            on_grid.gain,
            hare_order=self.hare_order,
            corrector=self.corrector if corrected else 0.0,
            slope=PRIOR.slope,
            positions=np.array(on_grid.run.positions),
        )
        possible = np.isfinite(squares)
        sizes = np.sqrt(np.where(possible, squares, 0.0))
        sizes += max(SMALLEST_SIZE * sizes.max(), TINY)  # outputs may be constant
        weights = np.where(possible, np.sqrt(sizes * leap_weights(on_grid.run)), np.inf)
        if self.hare_order == 2:
            weights[0, 0, 2:] = np.inf  # a line needs two evaluations
        weights[:, : on_grid.steps - 1, on_grid.steps] = np.inf  # nothing corrects a leap over the last step
        return squares, weights

    # -- the paper's

    def _algorithm2(self, on_grid: ProfileOnGrid, run: RunInfo) -> Plan:
        if on_grid.hare_scale <= 0:  # guidance is off, or has no hare: nothing can be planned, and nothing will be used
            return Plan(run.steps, (0,), hare_order=self.hare_order)
        cutoff = None if self.cutoff is None else max(1, on_grid.step_at(self.cutoff))
        tortoise, hare = (constants.tolist() for constants in on_grid.error_constants())
        order, rho = self.profile.about.order, self.rho
        if self.nfe is not None:  # the smallest rho whose grid comes closest to the budget from below
            evaluations = evaluations_for(self.nfe, run.steps)
            try:
                rho = rho_for(tortoise, hare, evaluations, order, cutoff=cutoff or run.steps)
            except PlanError:
                return Plan(run.steps, (0,), cutoff, self.boost, self.hare_order, self.corrector)
        assert rho is not None
        coarse = look_before_you_leap(m_max(tortoise, hare, rho, order))
        return Plan(run.steps, coarse, cutoff, self.boost, self.hare_order, self.corrector)


def _total(costs: Array, grid: tuple[int, ...]) -> float:
    """Of the leaps of a grid."""
    leaps = zip((-1, *grid), grid, (*grid[1:], costs.shape[1]), strict=False)
    return float(sum(costs[i + 1, j, end] for i, j, end in leaps))


def _stretched(grid: tuple[int, ...], count: int, steps: int) -> tuple[int, ...]:
    """`count` steps of a longer run, with the density of a grid over `LONGEST` steps."""
    ends = np.array([*grid, LONGEST]) * steps / LONGEST
    starts = np.interp(np.arange(count) * (len(grid) / count), np.arange(len(ends)), ends)
    return whole_steps(starts, steps)


def same_network(fingerprint: str, network: str) -> bool:
    """Is this the network of a profile? For profiles of thg 0.1, which hashed settings, only the class is compared."""
    if ":" not in fingerprint:
        return fingerprint.rpartition("-")[0] == network.partition(":")[0]
    return fingerprint == network


def require_same_network(profile: Profile, run: RunInfo) -> None:
    """Raises an error for a profile of another network."""
    fingerprint = profile.about.network
    if run.network is not None and fingerprint and not same_network(fingerprint, run.network):
        raise ProfileError(
            f"this profile was measured on the network {fingerprint} of {profile.about.pipeline}, and this pipeline "
            f"has {run.network}; calibrate it: thg.calibrate(pipe, prompts)"
        )


# -- noise levels: one bounded number for every kind of model


def noise_share(log_snr: object) -> Array:
    """sigma / (alpha + sigma): in [0, 1] for every model, and the time of a flow model."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(np.asarray(log_snr, dtype=np.float64) / 2)))


def state_at(prediction: Prediction, share: float) -> Node:
    """alpha and sigma of the state that the network sees: unit variance, or the straight path of a flow model."""
    share = min(max(float(share), 1e-6), 1 - 1e-6)
    size = 1.0 if prediction == "flow" else math.hypot(share, 1 - share)
    return Node(0.0, share, (1 - share) / size, share / size)


def output_weight(prediction: Prediction, start: float, end: float) -> float:
    """b of the first-order step x_s = a x_t + b output, between two noise levels."""
    target = state_at(prediction, end)
    return express(state_at(prediction, start), prediction, (target.alpha, target.sigma))[1]


def output_weights(prediction: Prediction, starts: Array, ends: Array) -> Array:
    """|b| of several steps."""
    return np.array([abs(output_weight(prediction, *pair)) for pair in zip(starts, ends, strict=True)])


# -- a profile at the steps of a run


@dataclass(frozen=True, eq=False)
class ProfileOnGrid:
    """A profile at the steps of a run.

    run: with the profile's guidance scale and noise levels, if its own are unknown.
    grid_positions: of its steps on the profile's own grid (step index, may be fractional).
    noise: sigma / (alpha + sigma) at its steps and at its end.
    """

    profile: Profile
    run: RunInfo
    grid_positions: Array
    noise: Array

    @classmethod
    def of(cls, profile: Profile, run: RunInfo) -> ProfileOnGrid:
        levels = profile.noise[:-1]
        positions = np.asarray(run.positions, dtype=np.float64)
        if run.log_snr is not None:
            noise = noise_share(run.log_snr)
            at = np.interp(-noise, -levels, np.arange(profile.steps, dtype=np.float64))
        else:
            at = np.minimum(positions * profile.steps / (positions[-1] + 1), profile.steps - 1)
            noise = np.interp(at, np.arange(profile.steps), levels)
        w = profile.about.guidance_scale if run.guidance_scale is None else run.guidance_scale
        end = profile.noise[-1] if run.end_log_snr is None else noise_share(run.end_log_snr)
        noise = np.append(noise, end)
        return cls(profile, _with_levels(replace(run, guidance_scale=w), noise), at, noise)

    @property
    def steps(self) -> int:
        return len(self.grid_positions)

    @property
    def hare_scale(self) -> float:
        """w - 1."""
        assert self.run.guidance_scale is not None
        return self.run.guidance_scale - 1

    def error_constants(self) -> tuple[Array, Array]:
        """|c_T| and |c_H| at each step, up to a common factor."""
        measured, constants = np.arange(self.profile.steps - 1), self.profile.algorithm3
        tortoise = np.interp(self.grid_positions, measured, constants.tortoise.mean)
        return tortoise, self.hare_scale * np.interp(self.grid_positions, measured, constants.hare.mean)

    @cached_property
    def gram(self) -> Array:
        """Inner products of the outputs at the run's steps, mean over samples."""
        weights = np.array([_cubic(position, self.profile.steps) for position in self.grid_positions])
        return np.asarray(weights @ self.profile.outputs @ weights.T)

    @cached_property
    def gain(self) -> Array:
        """From an error in the output of each step to the final state: the solver's b_k, times what survives.

        With stronger guidance than the measured one, outputs change more: by the factor on the guidance term.
        """
        kind, measured = self.profile.about.prediction, self.profile.about.guidance_scale - 1
        stronger = max(1.0, self.hare_scale / measured) if measured > 0 else 1.0
        return stronger * output_weights(kind, self.noise[:-1], self.noise[1:]) * self.survival()

    def survival(self) -> Array:
        """The fraction of an error in the state after each step that remains at the end; 1 if it was not measured.

        Each anchor was measured on a few samples only, so the curve is smoothed: a parabola in its logarithm.
        """
        anchors, measured = self.profile.anchors, self.profile.survival
        if measured is None:
            return np.ones(self.steps)
        curve = np.polyfit(anchors, np.log(np.maximum(measured, 1e-12)), min(2, len(anchors) - 1))
        return np.asarray(np.exp(np.polyval(curve, np.clip(self.grid_positions, anchors[0], anchors[-1]))))

    def picked(self, count: int) -> ProfileOnGrid:
        """At fewer steps of the same run, evenly spread."""
        at = np.linspace(0, self.steps - 1, count)
        noise = np.interp(at, np.arange(self.steps + 1), self.noise)
        noise = np.append(noise, self.noise[-1])
        response = self.run.response
        if response is not None:
            response = Response.one_step(np.add.reduceat(np.abs(response.final), at.astype(int)).tolist())
        run = RunInfo(count, tuple(map(float, range(count))), self.run.guidance_scale, response=response)
        places = np.interp(at, np.arange(self.steps), self.grid_positions)
        return ProfileOnGrid(self.profile, _with_levels(run, noise), places, noise)

    def step_at(self, position: float) -> int:
        """The first step of the run at or beyond a step of the profile's own grid."""
        return int(np.searchsorted(self.grid_positions, position - 1e-9))


def _with_levels(run: RunInfo, noise: Array) -> RunInfo:
    with np.errstate(divide="ignore"):
        levels = 2 * (np.log1p(-noise) - np.log(noise))
    return replace(run, log_snr=tuple(levels[:-1]), end_log_snr=float(levels[-1]))


def _cubic(position: float, size: int) -> Array:
    """Weights on the profile's steps that interpolate between them, by a cubic through the nearest four."""
    count = min(CUBIC, size)
    first = min(max(math.floor(position) - count // 2 + 1, 0), size - count)
    nodes = list(range(first, first + count))
    row = np.zeros(size)
    row[nodes] = lagrange_weights([float(n) for n in nodes], position)
    return row


def far_from(profile: Profile, run: RunInfo) -> str:
    """How a run is too different from the measured one, in words; empty if it is not."""
    on_grid, scale = ProfileOnGrid.of(profile, run), profile.about.guidance_scale
    distinct = len(set(run.positions))
    measured = float(np.ptp(on_grid.grid_positions)) + 1  # steps between the same noise levels
    noise, levels = on_grid.noise[:-1], profile.noise[:-1]
    far = []
    if not 1 / FAR_STEPS <= distinct / measured <= FAR_STEPS:
        far.append(f"{distinct} steps against {measured:.0f}")
    if not (scale - 1) / FAR_SCALE <= on_grid.hare_scale <= FAR_SCALE * (scale - 1):
        far.append(f"guidance_scale {on_grid.run.guidance_scale:g} against {scale:g}")
    if noise.max() > levels.max() + FAR_NOISE or noise.min() < levels.min() - FAR_NOISE:
        far.append("noise levels outside the measured range")
    return "; ".join(far)


# -- the optimal grid: dynamic programming over the predicted error at the end of the run
#
# During a leap, each step k uses a prediction in place of d_k. The solver propagates the difference with the weight
# gain[k] (its own coefficient, times w-1, times the fraction of the error that remains at the end), so a leap adds the
# vector sum_k gain[k] (used_k - d_k) to the final latents. All terms are combinations of the d_i, so the mean square of
# that vector follows from their Gram matrix alone. The errors of different leaps are taken as independent: the cost of
# a grid is the sum of the squares, and the best grid of each size follows over the last two evaluations.


def optimal_grid(
    gram: Array,
    gain: Array,
    evaluations: int,
    *,
    hare_order: int,
    corrector: float = 0.0,
    slope: float = 1.0,
    positions: Array | None = None,
) -> tuple[tuple[int, ...], float]:
    """The grid with this many evaluations whose predicted final error is smallest, and that error (squared norm).

    gram: <d_i, d_k>, mean over samples. gain: what the final latents feel of an error in d at each step.
    hare_order, corrector, slope: of the plan. positions: of the steps on the fine grid, if not 0, 1, 2, ...
    """
    steps = len(gain)
    if not 1 <= evaluations <= steps:
        raise PlanError(f"a grid over {steps} steps has 1 to {steps} evaluations, not {evaluations}")
    cost = leap_costs(gram, gain, hare_order=hare_order, corrector=corrector, slope=slope, positions=positions)
    return next(islice(optimal_grids(cost), evaluations - 1, None))


def optimal_grids(cost: Array) -> Iterator[tuple[tuple[int, ...], float]]:
    """The optimal grids with 1, 2, ... evaluations up to all steps, each with its predicted error.

    cost: of each leap, from `leap_costs`.
    """
    steps = cost.shape[1]
    # best[i + 1, j]: least cost of the leaps up to j, with the last evaluations at i and j (i = -1: there is one)
    best = np.full((steps + 1, steps), np.inf)
    best[0, 0] = 0.0
    came_from: list[Indices] = []
    for _ in range(steps):
        finished = best + cost[:, :, steps]
        i, j = np.unravel_index(int(finished.argmin()), finished.shape)
        yield _traced(came_from, int(i) - 1, int(j)), float(finished[i, j])
        total = best[:, :, None] + cost[:, :, :steps]  # over (i, j, l), l the next evaluation
        came_from.append(total.argmin(axis=0))  # for each (j, l), the best i
        best = np.full_like(best, np.inf)
        best[1:] = total.min(axis=0)


def _traced(came_from: list[Indices], before: int, last: int) -> tuple[int, ...]:
    """The grid that ends with these two evaluations."""
    grid = [last]
    for choices in reversed(came_from):
        grid.append(before)
        last, before = before, int(choices[before, last]) - 1
    return tuple(reversed(grid))


def leap_costs(
    gram: Array,
    gain: Array,
    *,
    hare_order: int,
    corrector: float = 0.0,
    slope: float = 1.0,
    positions: Array | None = None,
) -> Array:
    """The mean square error of each leap, [i + 1, j, l]: from j to l, with the evaluation before j at i (-1: none).

    The arguments are those of `optimal_grid`. With P the sum of gain[k] d_k over the steps inside the leap, its error
    is a d_i + b d_j + c d_l - P; all sums over the inside of a leap are differences of running sums.
    """
    steps = len(gain)
    at = np.arange(steps, dtype=np.float64) if positions is None else np.asarray(positions, dtype=np.float64)
    values, vectors = np.linalg.eigh(gram)
    # rows with these inner products, and at the end the one of an evaluation that is not there
    d = np.vstack([vectors * np.sqrt(np.maximum(values, 0.0)), np.zeros(steps)])
    running_p = _running(gain[:, None] * d[:-1])
    running = _running(np.stack([gain, gain * at, gain * at**2], axis=1))
    cost = np.full((steps + 1, steps, steps + 1), np.inf)
    for i in range(-1, steps - 1):
        first, last = (0, 1) if i < 0 else (i + 1, steps)
        j, end = np.triu_indices(last - first, 1, steps + 1 - first)
        j, end = j + first, end + first
        used = _weights(at, i, j, end, (running[end] - running[j + 1]).T, hare_order, corrector, slope)
        error = running_p[j + 1] - running_p[end]
        for weights, nodes in zip(used, (np.full_like(j, i), j, end), strict=True):
            error += weights[:, None] * d[nodes]
        cost[i + 1, j, end] = np.square(error).sum(axis=1)
    return cost


def _weights(
    at: Array, i: int, j: Indices, end: Indices, sums: Array, hare_order: int, corrector: float, slope: float
) -> Array:
    """What leaps from j to `end` use of d_i, d_j and d_end, after the correction.

    sums: of gain, gain x and gain x^2 over the inside of each leap.
    """
    s0, s1, s2 = sums
    zero, x_j = np.zeros_like(s0), at[j]
    line = (x_j != at[i]) & (i >= 0 and hare_order == 2)  # two calls at one time have no slope
    x_i = np.where(line, at[i], x_j - 1)
    share = np.where(line, slope * (s1 - x_j * s0) / (x_j - x_i), 0.0)
    predicted = np.stack([-share, s0 + share, zero])
    x_l = np.append(at, np.nan)[end]  # nothing corrects the last leap
    apart = (end < len(at)) & (x_l != x_j)
    x_l = np.where(apart, x_l, x_j + 1)

    def weight(node: Array, p: Array, q: Array) -> Array:
        """Of one node in the parabola through three."""
        return np.asarray((s2 - (p + q) * s1 + p * q * s0) / ((node - p) * (node - q)))

    share = (s1 - x_j * s0) / (x_l - x_j)
    parabola = np.stack([weight(x_i, x_j, x_l), weight(x_j, x_i, x_l), weight(x_l, x_i, x_j)])
    interpolated = np.where(line, parabola, np.stack([zero, s0 - share, share]))
    return np.where(apart, (1 - corrector) * predicted + corrector * interpolated, predicted)


def _running(values: Array) -> Array:
    """Sums over the first axis up to, but without, each index: 0 .. N."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
