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
from dataclasses import dataclass, replace
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
    cost = np.full((steps + 1, steps, steps + 1), np.inf)
    j, end = np.triu_indices(steps, 1, steps + 1)
    leaps = _Leaps.of(gram, gain, at, j, end)
    for i in range(-1, steps):
        after = leaps.where(j == 0 if i < 0 else j > i)
        if len(after.j):
            cost[i + 1, after.j, after.end] = after.errors(None if i < 0 else i, hare_order, corrector, slope)
    return cost


@dataclass(frozen=True, eq=False)
class _Leaps:
    """Leaps from j to end (one entry each), and sums over the steps inside them.

    sums: of gain, gain x and gain x^2. square: <P, P>. products: running sums of <d_m, gain d_k>.
    """

    gram: Array
    at: Array
    products: Array
    j: Indices
    end: Indices
    sums: Array
    square: Array

    @classmethod
    def of(cls, gram: Array, gain: Array, at: Array, j: Indices, end: Indices) -> _Leaps:
        powers = np.stack([gain, gain * at, gain * at**2])
        double = _running(_running(gain[:, None] * gram * gain).T)
        square = double[end, end] - double[j + 1, end] - double[end, j + 1] + double[j + 1, j + 1]
        return cls(gram, at, _running(gram * gain), j, end, _between(_running(powers), j + 1, end), square)

    def where(self, chosen: NDArray[np.bool_]) -> _Leaps:
        """Some of the leaps."""
        return replace(
            self, j=self.j[chosen], end=self.end[chosen], sums=self.sums[:, chosen], square=self.square[chosen]
        )

    def errors(self, i: int | None, hare_order: int, corrector: float, slope: float) -> Array:
        """The mean square of a d_i + b d_j + c d_l - P."""
        steps = len(self.at)
        ends = self.end < steps  # the last leap has no end to be corrected from
        end = np.where(ends, self.end, self.j)
        used = self._predicted(i, hare_order, slope)
        if corrector:
            apart = ends & (self.at[end] != self.at[self.j])
            interpolated = self._interpolated(
                None if hare_order == 1 else i, np.where(apart, self.at[end], self.at[self.j] + 1)
            )
            used = np.where(apart, (1 - corrector) * used + corrector * interpolated, used)
        nodes = np.stack([np.full_like(self.j, i or 0), self.j, end])
        within = np.einsum("an,bn,abn->n", used, used, self.gram[nodes[:, None], nodes[None, :]])
        across = np.einsum("an,an->n", used, self.products[nodes, self.end] - self.products[nodes, self.j + 1])
        return np.asarray(np.maximum(within - 2 * across + self.square, 0.0))

    def _predicted(self, i: int | None, hare_order: int, damping: float) -> Array:
        """Sums over the leap of the weights with which d_i, d_j and d_l are used as predictions."""
        s0, s1, _ = self.sums
        zero = np.zeros_like(s0)
        if i is None or hare_order == 1:
            return np.stack([zero, s0, zero])
        x_i, x_j = self.at[i], self.at[self.j]
        apart = x_j != x_i
        slope = damping * np.where(apart, (s1 - x_j * s0) / np.where(apart, x_j - x_i, 1.0), 0.0)
        return np.stack([-slope, s0 + slope, zero])

    def _interpolated(self, i: int | None, x_l: Array) -> Array:
        """The same for the polynomial through them: a line where there is no i, a parabola where there is."""
        s0, s1, s2 = self.sums
        x_j = self.at[self.j]
        if i is None or np.any(x_j == self.at[i]):
            share = (s1 - x_j * s0) / (x_l - x_j)
            return np.stack([np.zeros_like(s0), s0 - share, share])
        x_i = np.full_like(x_j, self.at[i])

        def weight(own: Array, p: Array, q: Array) -> Array:
            return np.asarray((s2 - (p + q) * s1 + p * q * s0) / ((own - p) * (own - q)))

        return np.stack([weight(x_i, x_j, x_l), weight(x_j, x_i, x_l), weight(x_l, x_i, x_j)])


def _running(values: Array) -> Array:
    """Sums over the last axis up to, but without, each index: 0 .. N."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def _between(running: Array, start: Indices, end: Indices) -> Array:
    return np.asarray(running[..., end] - running[..., start])
