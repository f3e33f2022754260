"""The possible interpretations ("readings") of one step: which network calls hold its branches, and how they map to P.

P is the pipeline's input to `scheduler.step`, computed from the outputs of its network. A reading consists of the calls
that hold branches (halves of one call, two calls, ...), and the correspondence of a branch with P: the same shape, a
part of it, tokens in another order. `learn` decides by the fit which one is right; nothing here waits for the device.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thg.adapter import fit

MOST_BRANCHES = 4
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Outputs:
    """The result of a network call. outputs: its first tensor, or its list of samples."""

    network: str
    outputs: tuple[Tensor, ...]

    def whole(self) -> Tensor | None:
        """The output as one tensor."""
        if len(self.outputs) == 1:
            return self.outputs[0]
        if len({output.shape for output in self.outputs}) > 1:
            return None
        return torch.stack(self.outputs)

    def __str__(self) -> str:
        shape = "x".join(map(str, self.outputs[0].shape))
        count = "" if len(self.outputs) == 1 else f"{len(self.outputs)} times "
        return f"{self.network}: {count}{shape}"


@dataclass(frozen=True, eq=False)
class Branches:
    """The branches of a step.

    stacked: how many of them are in the first call. others: the number of further similar calls in the step.
    """

    calls: tuple[Outputs, ...]
    outputs: tuple[Tensor, ...]
    stacked: int = 1
    others: int = 0


@dataclass(frozen=True, eq=False)
class Reading:
    """One interpretation of a step. measure: computes the numbers of its `Fit`.

    by_vector: tokens, pixels or frames have their own coefficients. with_sample: P also contains the sample.
    """

    branches: Branches
    measure: Callable[[], Tensor]
    by_vector: bool = False
    with_sample: bool = False


def read(calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None) -> Iterator[Reading]:
    """All interpretations of a step, the simplest first."""
    if not passed.is_floating_point():
        return
    for branches in _arrangements(calls, passed):
        if len({output.shape for output in branches.outputs}) == 1 and branches.outputs[0].is_floating_point():
            yield from _fits(branches, passed, sample)


def _arrangements(calls: Sequence[Outputs], passed: Tensor) -> Iterator[Branches]:
    """Which calls hold branches: those that end with the last call of one of the networks."""
    outputs = [(call, whole) for call in calls if (whole := call.whole()) is not None and _is_like(whole, passed)]
    last_of = {call.network: place for place, (call, _) in enumerate(outputs)}
    for place in sorted(last_of.values(), reverse=True):
        yield from _ending_with_last(outputs[: place + 1], passed)


def _ending_with_last(outputs: Sequence[tuple[Outputs, Tensor]], passed: Tensor) -> Iterator[Branches]:
    """One call with all branches, several calls with one each, or one with two and more."""
    last, whole = outputs[-1]
    if whole.shape == passed.shape and whole.shape[0] > 1:
        yield Branches((last,), (whole,))  # a batch of samples without guidance
    peers = [(call, output) for call, output in outputs if output.shape == whole.shape]
    others = sum(call.network == last.network for call, _ in peers) - 1
    for n in range(2, MOST_BRANCHES + 1):
        if whole.shape[0] % n == 0:
            yield Branches((last,), whole.chunk(n), stacked=n, others=others)
    for n in range(2, min(MOST_BRANCHES, len(peers)) + 1):
        used, held = zip(*peers[-n:], strict=True)
        networks = {call.network for call in used}
        yield Branches(used, held, others=sum(call.network in networks for call, _ in peers[:-n]))
    pairs = [(call, output) for call, output in outputs if output.shape[0] == 2 * whole.shape[0]]
    if pairs and len(peers) <= MOST_BRANCHES - 2:
        (call, pair), (extra_calls, extras) = pairs[-1], zip(*peers, strict=True)
        yield Branches((call, *extra_calls), (*pair.chunk(2), *extras), stacked=2, others=len(pairs) - 1)


def _is_like(output: Tensor, passed: Tensor) -> bool:
    """Can this output, or a part of it, correspond to the scheduler's input?"""
    if output.numel() % passed.numel() == 0 or passed.numel() % output.numel() == 0:
        return output.ndim > 0
    if output.ndim == passed.ndim:
        return sum(a != b for a, b in zip(output.shape[1:], passed.shape[1:], strict=True)) == 1
    return output.ndim == 3 and passed.ndim == 5 and output.shape[2] == passed.shape[1]  # tokens of a video


def _fits(branches: Branches, passed: Tensor, sample: Tensor | None) -> Iterator[Reading]:
    outputs, n = branches.outputs, len(branches.outputs)
    if n == 1:
        yield Reading(branches, functools.partial(fit.passed_on, outputs[0], passed))
        return
    for view, target in _views(outputs[0], passed, n):
        yield Reading(branches, functools.partial(_combine, outputs, view, target, _rows))
        if sample is not None and sample.shape == target.shape:
            for rows in (_rows, *([_frames] if target.ndim == 5 else [])):
                measure = functools.partial(_combine, outputs, view, target, rows, sample)
                yield Reading(branches, measure, with_sample=True, by_vector=rows is _frames)
        for dim in range(1, target.ndim):
            if target.shape[dim] > n:
                vectors = functools.partial(_vectors, dim=dim)
                yield Reading(branches, functools.partial(_combine, outputs, view, target, vectors), by_vector=True)
    if n == 2 and outputs[0].numel() == passed.numel() and outputs[0].shape != passed.shape:
        yield Reading(branches, functools.partial(fit.combine_reordered, outputs, passed))


def _combine(outputs: Sequence[Tensor], view: View, target: Tensor, rows: View, sample: Tensor | None = None) -> Tensor:
    return fit.combine(
        [rows(view(output)) for output in outputs], rows(target), None if sample is None else rows(sample)
    )


def _views(branch: Tensor, passed: Tensor, n: int) -> Iterator[tuple[View, Tensor]]:
    """The possible correspondences of a branch with P: a view of each branch, and the part of P."""
    if branch.ndim == passed.ndim and passed.shape[0] == n * branch.shape[0]:
        passed = passed[: branch.shape[0]]  # the step is made for all branches (DiT)
    if branch.shape == passed.shape:
        yield _whole, passed
        if branch.ndim > 1 and branch.shape[1] % 2 == 0:  # the other half is a variance, which is not guided
            yield _part(passed, 1, branch.shape[1] // 2, first=True)
        return
    if branch.ndim == passed.ndim:
        unequal = [dim for dim in range(branch.ndim) if branch.shape[dim] != passed.shape[dim]]
        if len(unequal) == 1 and unequal[0] > 0:
            size = min(branch.shape[unequal[0]], passed.shape[unequal[0]])
            yield _part(passed, unequal[0], size, first=True)
            yield _part(passed, unequal[0], size, first=False)
    if branch.numel() == passed.numel():
        yield lambda branch: branch.reshape(passed.shape), passed
        if branch.ndim == passed.ndim:
            for order in itertools.permutations(range(branch.ndim)):
                if tuple(branch.shape[dim] for dim in order) == passed.shape:
                    yield functools.partial(torch.permute, dims=order), passed
    elif branch.ndim == 3 and passed.ndim == 5 and branch.shape[::2] == passed.shape[:2]:
        yield from _tokens_as_frames(branch, passed)


def _tokens_as_frames(branch: Tensor, passed: Tensor) -> Iterator[tuple[View, Tensor]]:
    """Tokens (sample, token, channel) of a video if the scheduler gets the later or the earlier frames."""
    per_frame, frames = passed[0, 0, 0].numel(), passed.shape[2]
    if branch.shape[1] % per_frame == 0 and branch.shape[1] // per_frame > frames:

        def later(value: Tensor) -> Tensor:
            return value[:, -frames * per_frame :].mT.reshape(passed.shape)

        def earlier(value: Tensor) -> Tensor:
            return value[:, : frames * per_frame].mT.reshape(passed.shape)

        yield later, passed
        yield earlier, passed


def _whole(value: Tensor) -> Tensor:
    return value


def _part(passed: Tensor, dim: int, size: int, first: bool) -> tuple[View, Tensor]:
    """The first or the last `size` entries along a dimension, of each branch and of P."""

    def part(value: Tensor) -> Tensor:
        return value.narrow(dim, 0 if first else value.shape[dim] - size, size)

    return part, part(passed)


def _rows(value: Tensor) -> Tensor:
    """One row per sample."""
    return value.reshape(value.shape[0], -1)


def _frames(value: Tensor) -> Tensor:
    """One row per frame of a video (sample, channel, frame, height, width)."""
    return value.movedim(2, 1).flatten(0, 1).flatten(1)


def _vectors(value: Tensor, dim: int) -> Tensor:
    """One row per vector along a dimension: a formula may rescale each token or pixel separately."""
    return value.movedim(dim, -1).reshape(-1, value.shape[dim])
