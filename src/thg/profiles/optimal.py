"""The optimal grid: dynamic programming over the predicted error at the end of the run.

During a leap, each step k uses a prediction in place of d_k. The solver propagates the difference with the weight
`gain[k]` (its own coefficient, times w-1, times the fraction of the error that remains at the end), so a leap adds the
vector sum_k gain[k] (used_k - d_k) to the final latents. All terms are combinations of the d_i, so the mean square of
that vector follows from their Gram matrix alone. The errors of different leaps are taken as independent: the cost of a
grid is the sum of the squares, and the best grid of each size follows by dynamic programming over the last two
evaluations. Pure numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from thg.errors import PlanError

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


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

    def weight(own: Array, p: Array, q: Array) -> Array:
        """Of one node in the parabola through three."""
        return np.asarray((s2 - (p + q) * s1 + p * q * s0) / ((own - p) * (own - q)))

    share = (s1 - x_j * s0) / (x_l - x_j)
    parabola = np.stack([weight(x_i, x_j, x_l), weight(x_j, x_i, x_l), weight(x_l, x_i, x_j)])
    interpolated = np.where(line, parabola, np.stack([zero, s0 - share, share]))
    return np.where(apart, (1 - corrector) * predicted + corrector * interpolated, predicted)


def _running(values: Array) -> Array:
    """Sums over the first axis up to, but without, each index: 0 .. N."""
    return np.concatenate([np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)])
