"""Which combination of the branches' outputs was passed to the scheduler? Least squares on the tensors' own device.

With P the input of `scheduler.step` and E_1 ... E_n the outputs of the branches, find P = s * sum_k a_k E_k with shares
a_k that sum to 1: plain CFG is s = 1 and the shares 1 - w and w; a rescaled formula has another s. Nothing here makes
the host wait: results are tensors, and `Fit` reads them once they are on the host.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thg.adapter.outputs import at_least_float32

ROUNDING = 1e-4  # relative error that float32 arithmetic between network and scheduler may cause
DEPENDENT = 1e-4  # a column counts as dependent if less than this share of it is new


@dataclass(frozen=True)
class Fit:
    """The numbers of one fit.

    error: the residual of P relative to what rounding can cause; below 1 is a fit.
    scale: s. spread: standard deviation of the shares over the rows, summed over the branches.
    doubt: the standard error of the shares due to rounding; infinite if the branches are equal. shares: a_k.
    """

    error: float
    scale: float
    spread: float
    doubt: float
    shares: tuple[float, ...]

    @classmethod
    def read(cls, numbers: Sequence[float], branches: int) -> Fit:
        error, scale, spread, doubt, *shares = numbers
        return cls(error, scale, spread, doubt, tuple(shares[:branches]))


def combine(branches: Sequence[Tensor], passed: Tensor, sample: Tensor | None = None) -> Tensor:
    """The numbers of a `Fit`. All tensors are (rows, elements), and each row has its own coefficients.

    sample: P may also contain a multiple of it (a conversion between prediction types before the step).
    Means over the rows are weighted by the effect of guidance on them.
    """
    target, first, *others = (at_least_float32(value) for value in (passed, *branches))
    differences = [other - first for other in others]
    columns = [first, *differences, *([] if sample is None else [at_least_float32(sample)])]
    coefficients = least_squares(columns, target)
    left = target - _sum([c * column for c, column in zip(coefficients, columns, strict=True)])
    scale, moves = coefficients[0], coefficients[1 : len(branches)]
    own = [scale - _sum(moves), *moves]
    size = _sum([c.abs() * _norm(e) for c, e in zip(own, (first, *others), strict=True)])
    allowed = (ROUNDING * _norm(target)).maximum(_epsilon(passed, *branches) / 2 * size)
    weight = _sum([c.square() * _dot(d, d) for c, d in zip(moves, differences, strict=True)])
    weight = weight / _nonzero(weight.sum())
    shares = [torch.where(weight > 0, c / _nonzero(scale), 0.0) for c in own]
    means = [(weight * share).sum() for share in shares]
    spread = _sum([(weight * (s - mean).square()).sum() for s, mean in zip(shares, means, strict=True)]).sqrt()
    doubt = _doubt(_epsilon(passed, *branches), target, differences)
    return torch.stack([left.norm() / _nonzero(allowed.norm()), (weight * scale).sum(), spread, doubt, *means])


def passed_on(output: Tensor, passed: Tensor) -> Tensor:
    """The numbers of a `Fit` for one branch: P is the output itself, with either sign."""
    output, target = at_least_float32(output), at_least_float32(passed)
    left = torch.stack([(target - output).norm(), (target + output).norm()]).min()
    error = left / _nonzero(ROUNDING * target.norm())
    one, none = torch.ones_like(error), torch.zeros_like(error)
    return torch.stack([error, one, none, none, one])


def combine_reordered(branches: Sequence[Tensor], passed: Tensor) -> Tensor:
    """The numbers of a `Fit` for two branches if P is a permutation of the combination.

    A permutation does not change the norm, so |P|^2 = |E_1|^2 + 2 w E_1 D + w^2 |D|^2 with D = E_2 - E_1 gives two
    candidates for w, each with either sign. Comparing sorted values decides between them.
    """
    target, first, second = (at_least_float32(value).flatten() for value in (passed, *branches))
    difference = second - first
    a, b = difference.square().sum(), (first * difference).sum()
    root = (b * b - a * (first.square().sum() - target.square().sum())).clamp_min(0).sqrt()
    ordered = target.sort().values
    doubt = _doubt(_epsilon(passed, *branches), target, [difference])
    candidates = []
    for w in ((root - b) / _nonzero(a), (-root - b) / _nonzero(a)):
        size = (1 - w).abs() * first.norm() + w.abs() * second.norm()
        allowed = (ROUNDING * target.norm()).maximum(_epsilon(passed, *branches) / 2 * size)
        combined = (first + w * difference).sort().values
        for sign, values in ((1.0, combined), (-1.0, -combined.flip(0))):
            error = (values - ordered).norm() / _nonzero(allowed)
            scale, spread = torch.full_like(error, sign), torch.zeros_like(error)
            candidates.append(torch.stack([error, scale, spread, doubt, 1 - w, w]))
    table = torch.stack(candidates)
    return table.gather(0, table[:, :1].argmin(0, keepdim=True).expand(1, table.shape[1])).squeeze(0)


def least_squares(columns: Sequence[Tensor], target: Tensor) -> list[Tensor]:
    """The coefficient (rows, 1) of each column in each row of the target, by Gram-Schmidt; 0 for a dependent column."""
    basis: list[Tensor] = []
    triangle: list[list[Tensor]] = []
    for column in columns:
        rest, above = column, []
        for direction in basis:
            above.append(_dot(direction, rest))
            rest = rest - above[-1] * direction
        length = _norm(rest)
        independent = length > DEPENDENT * _norm(column)
        basis.append(torch.where(independent, rest / _nonzero(length), 0.0))
        triangle.append([*above, torch.where(independent, length, torch.inf)])
    coefficients = []
    for direction in basis:
        coefficients.append(_dot(direction, target))
        target = target - coefficients[-1] * direction
    for k in reversed(range(len(columns))):  # back substitution
        coefficients[k] = coefficients[k] / triangle[k][k]
        for j in range(k):
            coefficients[j] = coefficients[j] - triangle[k][j] * coefficients[k]
    return coefficients


def _doubt(epsilon: float, target: Tensor, differences: Sequence[Tensor]) -> Tensor:
    least: Tensor = torch.stack([difference.norm() for difference in differences]).min()
    doubt: Tensor = epsilon * target.norm() / (least * math.sqrt(target.numel()))
    return doubt


def _epsilon(*values: Tensor) -> float:
    return max(torch.finfo(value.dtype).eps for value in values)


def _sum(values: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(values)).sum(0)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1, keepdim=True)


def _norm(value: Tensor) -> Tensor:
    return value.square().sum(1, keepdim=True).sqrt()


def _nonzero(value: Tensor) -> Tensor:
    tiny = torch.finfo(value.dtype).tiny
    return torch.where(value.abs() < tiny, tiny, value)
