"""Checks a layout at a guided step, and measures the guidance scale.

Between two calls of `scheduler.step` a pipeline calls its network for all branches; then it passes P, computed from
their outputs E_1 ... E_n, to the scheduler. If the layout is right, P = s * sum_k a_k E_k with shares a_k that add up
to 1, and the conditional branch has the largest share, which is w: plain CFG is s = 1 with the shares 1 - w and w; a
rescaled formula has another s. How a branch corresponds to P is not known (as it is, half of it, tokens in another
order), so all ways are tried; they are computed on the device and read together, with one wait of the host. Where a
pipeline passes on another number of values the layout cannot be checked, and is trusted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.pipelines.calls import at_least_float32

ROUNDING = 1e-4  # relative error that float32 arithmetic between network and scheduler may cause
DEPENDENT = 1e-4  # a column counts as dependent if less than this share of it is new
SURE = 0.02  # least difference of a share from 0 and 1
UNEQUAL = 0.1  # allowed spread of the shares over the vectors of one sample, relative to the largest share
SAMPLES, FRAMES = (0,), (0, 2)  # dimensions of which each place has its own coefficients


class CheckedStep(NamedTuple):
    """What the scheduler gets in one step, and the outputs that it was made from.

    branches: one for each branch of the layout; cond is the place of the conditional one. further: of calls that are no
    branches (a perturbed pass). sample: the scheduler's, if it is a tensor.
    """

    branches: tuple[Tensor, ...]
    cond: int
    further: tuple[Tensor, ...]
    passed: Tensor
    sample: Tensor | None

    @property
    def passed_on_whole(self) -> bool:
        """May all branches be passed on as they are, as samples without guidance?"""
        whole = (sum(map(len, self.branches)), *self.branches[0].shape[1:])
        return tuple(self.passed.shape) == whole and len(self.passed) > 1


@dataclass(frozen=True)
class Guided:
    """A guided step. w: None if it cannot be measured. rescaled: the formula rescales the combination.

    with_sample: P also contains the sample. reading: the index of the correspondence that fits.
    """

    w: float | None = None
    rescaled: bool = False
    with_sample: bool = False
    reading: int = 0


class Fit(NamedTuple):
    """How well one correspondence explains P.

    numbers: on the device,
        error: the residual of P relative to what rounding can cause; below 1 is a fit.
        scale: s. spread: standard deviation of the shares over the rows, summed over the branches.
        doubt: the standard error of the shares due to rounding; infinite if the branches are equal.
        and the shares a_k.
    by_vector: tokens, pixels or frames have their own coefficients. certain: the shapes are those of P, so that a
    combination must fit.
    """

    numbers: Tensor
    by_vector: bool = False
    with_sample: bool = False
    certain: bool = True


def verify(step: CheckedStep) -> Guided | None:
    """What the step shows; None if it is not guided. Raises an error if the layout does not explain it."""
    fits = list(_fits(step))
    if not fits:
        return Guided()  # a part of the outputs, or more, reaches the scheduler
    measured = torch.nn.utils.rnn.pad_sequence([fit.numbers for fit in fits], batch_first=True).tolist()
    conclusions: list[Guided | str | None] = []
    closest = torch.inf
    for number, (fit, (error, scale, spread, doubt, *found)) in enumerate(zip(fits, measured, strict=True)):
        shares = found[: len(fit.numbers) - 4]
        closest = min(closest, error)
        unequal = fit.by_vector and spread > UNEQUAL * max(map(abs, shares))
        if error < 1 and not unequal:
            own = Guided(None, abs(abs(scale) - 1) >= SURE or fit.by_vector, fit.with_sample, number)
            conclusions.append(_conclude(own, shares, spread, doubt, step.cond))
    with_scale = [found for found in conclusions if isinstance(found, Guided) and found.w is not None]
    if conclusions:
        conclusion = (with_scale or conclusions)[0]
        if isinstance(conclusion, str):
            raise UnsupportedPipelineError(conclusion)
        return conclusion
    if not any(fit.certain for fit in fits):
        return Guided()
    if closest < 1:
        raise UnsupportedPipelineError("its pixels, tokens or frames are combined in different ways")
    *shapes, last = ["x".join(map(str, tensor.shape)) for tensor in (*step.branches, *step.further, step.passed)]
    raise UnsupportedPipelineError(
        f"no combination of its network outputs gives what it passes to scheduler.step (branches: {', '.join(shapes)}; "
        f"to the scheduler: {last}; the closest leaves {closest * ROUNDING:.1e} of it)"
    )


def scale_of(step: CheckedStep, guided: Guided) -> Tensor | None:
    """The residual, the standard error and w of a later step, on the device; None if its shapes have changed."""
    fit = next(itertools.islice(_fits(step), guided.reading, None), None)
    if fit is None or len(fit.numbers) <= 4 + step.cond:
        return None
    return torch.stack([fit.numbers[0], fit.numbers[3], fit.numbers[4 + step.cond]])


def _conclude(guided: Guided, shares: list[float], spread: float, doubt: float, cond: int) -> Guided | str | None:
    """What a fit means: a guided step, one without guidance, or why thg cannot follow it."""
    if not doubt < SURE:
        return guided  # the branches are equal: nothing to check
    if not any(shares):
        return None  # zeros reach the scheduler
    w = shares[cond]
    if max(shares) > w + SURE:
        largest = max(range(len(shares)), key=lambda k: shares[k])
        if shares[largest] < 1 + SURE:
            return None  # one branch alone reaches the scheduler
        return (
            f"branch {largest + 1} of {len(shares)} is its conditional one (w = {shares[largest]:.3g}), and its layout "
            f"says {cond + 1}; name the order of its branches: thg.enable(pipe, plan, layout=...)"
        )
    if abs(w - 1) < SURE and all(share > -SURE for share in shares):
        return None
    if w < 1:
        return "its branches are averaged (guidance scale below 1?)"
    if sum(share > SURE for share in shares) > 1:
        return (
            "it adds up several prompts (or a picture, with a scale above that of the text); where they contradict "
            "each other, their guidance changes too fast"
        )
    if spread > abs(w - 1) / 2:
        return "its samples are combined in different ways"
    return replace(guided, w=w)


# -- how the branches may correspond to P, the simplest first


def _fits(step: CheckedStep) -> Iterator[Fit]:
    """One after the other, each computed when it is asked for."""
    if not step.passed.is_floating_point():
        return
    for outputs in (step.branches, *([(*step.branches, *step.further)] if step.further else [])):
        if len({output.shape for output in outputs}) == 1 and outputs[0].is_floating_point():
            yield from _fits_of(outputs, step.passed, step.sample)


def _fits_of(outputs: Sequence[Tensor], passed: Tensor, sample: Tensor | None) -> Iterator[Fit]:
    n, size = len(outputs), len(outputs[0])
    if passed.ndim == outputs[0].ndim and len(passed) == n * size:
        passed = passed[:size]  # the step is made for all branches (DiT), or guidance is off
    for seen, target in _views(outputs, passed):
        yield Fit(_combine(seen, target, SAMPLES))
        if sample is not None and sample.shape == target.shape:
            yield Fit(_combine(seen, target, SAMPLES, sample), with_sample=True)
            if target.ndim == 5:
                yield Fit(_combine(seen, target, FRAMES, sample), by_vector=True, with_sample=True)
        for dim in range(1, target.ndim):
            if target.shape[dim] > n:  # a formula may rescale each token or pixel separately
                others = [other for other in range(target.ndim) if other != dim]
                yield Fit(_combine(seen, target, others), by_vector=True)
    if n == 2 and outputs[0].numel() == passed.numel() and outputs[0].shape != passed.shape:
        yield Fit(_combine_reordered(outputs, passed), certain=False)


def _views(outputs: Sequence[Tensor], passed: Tensor) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
    """What of the branches may correspond to what of P."""
    same = outputs[0].shape == passed.shape
    if same:
        yield outputs, passed
    if outputs[0].ndim > 1 and outputs[0].shape[1] % 2 == 0:  # the other half is a variance, which is not guided
        halves = [output.chunk(2, 1)[0] for output in outputs]
        if same or halves[0].shape == passed.shape:
            yield halves, passed.chunk(2, 1)[0] if same else passed


def _rows(value: Tensor, *dims: int) -> Tensor:
    """One row for each place in these dimensions."""
    rows = value.movedim(dims, tuple(range(len(dims)))).flatten(0, len(dims) - 1)
    return rows.reshape(len(rows), -1)


# -- least squares on the tensors' own device: nothing here makes the host wait


def _combine(branches: Sequence[Tensor], passed: Tensor, dims: Sequence[int], sample: Tensor | None = None) -> Tensor:
    """The numbers of a `Fit` in which each place in these dimensions has its own coefficients.

    sample: P may also contain a multiple of it (a conversion between prediction types before the step).
    Means over the rows are weighted by the effect of guidance on them.
    """
    target, first, *others = (at_least_float32(_rows(value, *dims)) for value in (passed, *branches))
    differences = [other - first for other in others]
    columns = [first, *differences, *([] if sample is None else [at_least_float32(_rows(sample, *dims))])]
    coefficients = _least_squares(columns, target)
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


def _combine_reordered(branches: Sequence[Tensor], passed: Tensor) -> Tensor:
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


def _least_squares(columns: Sequence[Tensor], target: Tensor) -> list[Tensor]:
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
