"""The layout of a pipeline, learned from what it did in one guided step.

Between two calls of `scheduler.step` a pipeline calls its network for all branches; then it passes P, made of the
outputs, to the scheduler. Each reading of these calls as branches (halves of one call, two calls, ...) is tried: the
branches must combine to P (`fit`), and the coefficients tell the conditional one and w. All readings are computed on
the device and read in one go, the only time that the host waits. What no reading explains is said, not guessed.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thg.adapter import fit
from thg.adapter.fit import Fit
from thg.adapter.layouts import Batched, Sequential

MOST_BRANCHES = 4
SURE = 0.02  # what a share must differ by from 0 and 1 to count
UNEQUAL = 0.1  # vectors of one sample must agree on the shares up to this, relative to the largest
View = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a call of a network returned. outputs: its first tensor, or a list of samples if it returned one."""

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


@dataclass(frozen=True)
class Learned:
    """layout: how the branches are laid out. w: the guidance scale of the step. words: the same for people.

    number: of the reading that explains the step, to check later steps by.
    """

    layout: Batched | Sequential
    w: float
    words: str
    number: int = 0


@dataclass(frozen=True)
class Unclear:
    """Why a step has not told the layout.

    again: another run may. same_output: its branches are equal. unguided: there is one branch in this step.
    """

    why: str
    again: bool = False
    same_output: bool = False
    unguided: bool = False


@dataclass(frozen=True, eq=False)
class Branches:
    """Where the branches of a step are. stacked: how many of them the first call holds."""

    calls: tuple[Outputs, ...]
    outputs: tuple[Tensor, ...]
    stacked: int = 1


@dataclass(frozen=True, eq=False)
class Reading:
    """One way to read a step. measure: gives the numbers of its `Fit`.

    by_vector: tokens, pixels or frames have coefficients of their own. with_sample: P also holds the sample.
    """

    branches: Branches
    measure: Callable[[], Tensor]
    by_vector: bool = False
    with_sample: bool = False

    def conclude(self, found: Fit) -> Learned | Unclear | None:
        """What the numbers say; None if this is not how P was made."""
        if not found.error < 1:
            return None
        if self.by_vector and found.spread > UNEQUAL * max(map(abs, found.shares)):
            return None
        return _conclude(self, found)


def learn(calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None = None) -> Learned | Unclear:
    """The layout from the calls of one step, what it passed to the scheduler, and the sample of that step."""
    readings = list(read(calls, passed, sample))
    if not readings:
        return Unclear(f"no guidance in this step ({_seen(calls, passed)})", again=True, unguided=True)
    measured = [reading.measure() for reading in readings]
    width = max(map(len, measured))
    padded = torch.stack([torch.nn.functional.pad(numbers, (0, width - len(numbers))) for numbers in measured])
    fits = [
        Fit.read(numbers, len(reading.branches.outputs))
        for reading, numbers in zip(readings, padded.tolist(), strict=True)
    ]
    conclusions = [reading.conclude(found) for reading, found in zip(readings, fits, strict=True)]
    for number, conclusion in enumerate(conclusions):
        if isinstance(conclusion, Learned):
            return replace(conclusion, number=number)
    for conclusion in conclusions:
        if isinstance(conclusion, Unclear):
            return conclusion
    return Unclear(
        f"no combination of its network outputs gives what it passes to scheduler.step ({_seen(calls, passed)}; the "
        f"closest leaves {min(found.error for found in fits) * fit.ROUNDING:.1e} of it)"
    )


def unexplained(learned: Learned, calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None) -> Tensor | None:
    """How much of a later step the same reading leaves, in units of rounding; on the device. None if it has changed."""
    reading = next(itertools.islice(read(calls, passed, sample), learned.number, None), None)
    return None if reading is None else reading.measure()[0]


def read(calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None) -> Iterator[Reading]:
    """All ways to read a step, the simplest first."""
    if not passed.is_floating_point():
        return
    for branches in _arrangements(calls, passed):
        if len({output.shape for output in branches.outputs}) == 1 and branches.outputs[0].is_floating_point():
            yield from _fits(branches, passed, sample)


def _arrangements(calls: Sequence[Outputs], passed: Tensor) -> Iterator[Branches]:
    """Which calls hold branches: one call with all, several calls with one each, or one with two and more."""
    outputs = [(call, whole) for call in calls if (whole := call.whole()) is not None and _is_like(whole, passed)]
    if not outputs:
        return
    last, whole = outputs[-1]
    if whole.shape == passed.shape and whole.shape[0] > 1:
        yield Branches((last,), (whole,))  # a batch of samples without guidance
    for n in range(2, MOST_BRANCHES + 1):
        if whole.shape[0] % n == 0:
            yield Branches((last,), whole.chunk(n), stacked=n)
    peers = [(call, output) for call, output in outputs if output.shape == whole.shape]
    for n in range(2, min(MOST_BRANCHES, len(peers)) + 1):
        yield Branches(tuple(call for call, _ in peers[-n:]), tuple(output for _, output in peers[-n:]))
    pairs = [(call, output) for call, output in outputs if output.shape[0] == 2 * whole.shape[0]]
    if pairs and len(peers) <= MOST_BRANCHES - 2:
        (call, pair), (extra_calls, extras) = pairs[-1], zip(*peers, strict=True)
        yield Branches((call, *extra_calls), (*pair.chunk(2), *extras), stacked=2)


def _is_like(output: Tensor, passed: Tensor) -> bool:
    """Could this output, or a part of it, have become what was passed on?"""
    if output.numel() % passed.numel() == 0 or passed.numel() % output.numel() == 0:
        return output.ndim > 0
    unequal = [a != b for a, b in zip(output.shape[1:], passed.shape[1:], strict=False)]
    return output.ndim == passed.ndim and sum(unequal) == 1


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
    """How a branch may correspond to P: what to take of each branch, and what of P."""
    if branch.ndim == passed.ndim and passed.shape[0] == n * branch.shape[0]:
        passed = passed[: branch.shape[0]]  # the step is made for all branches alike (DiT)
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
    """Tokens (sample, token, channel) of a video of which the scheduler gets the later or the earlier frames."""
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
    """One row per vector along a dimension: a formula may rescale each token or pixel by itself."""
    return value.movedim(dim, -1).reshape(-1, value.shape[dim])


# -- what the shares say


def _conclude(reading: Reading, found: Fit) -> Learned | Unclear:
    if len(found.shares) == 1:
        return Unclear("no guidance in this step: its network output reaches the scheduler", again=True, unguided=True)
    shares, plain = found.shares, abs(abs(found.scale) - 1) < SURE
    if not found.doubt < SURE:
        why = "its branches gave the same output (is the negative prompt the prompt?)"
        return Unclear(why, again=True, same_output=True)
    if found.scale < 0 and not (plain or reading.with_sample or reading.by_vector):
        return Unclear("its guidance formula turns the sign of its network outputs, so that it does not tell the order")
    cond = max(range(len(shares)), key=lambda k: shares[k])
    w = shares[cond]
    if w < 1 + SURE and all(share > -SURE for share in shares):
        if w > 1 - SURE:
            return Unclear("guidance is off: one branch alone reaches the scheduler", again=True)
        return Unclear("its branches are averaged (guidance scale below 1?), which does not tell the order", again=True)
    if found.spread > abs(w - 1) / 2:
        return Unclear("its samples are combined in different ways")
    words = f"w = {w:.3g}" + (", rescaled" if not plain or reading.by_vector else "")
    if reading.branches.stacked > 1:
        return _batched(reading.branches, shares, cond, words)
    return _sequential(reading.branches, shares, cond, words, rescales=reading.with_sample and not plain)


def _batched(branches: Branches, shares: tuple[float, ...], cond: int, words: str) -> Learned | Unclear:
    n = branches.stacked  # further calls run as they are
    if cond >= n:
        return Unclear("its conditional branch runs in a call of its own, after those that it is guided by")
    names = ["uncond" if n == 2 else f"branch {k + 1}" for k in range(n)]
    names[cond] = "cond"
    predicted = tuple(names[k] for k in range(n) if k != cond and shares[k] < SURE)
    if not predicted:
        return Unclear("it adds up several conditional branches, and none that guidance leads away from")
    layout = Batched(tuple(names), predicted, (branches.calls[0].network,))
    place = ("conditional", "unconditional")[cond] + " first" if n == 2 else f"conditional is number {cond + 1} of {n}"
    return Learned(layout, shares[cond], f"one call, {place}, {words}")


def _sequential(
    branches: Branches, shares: tuple[float, ...], cond: int, words: str, rescales: bool
) -> Learned | Unclear:
    if cond > 1 or shares[1 - cond] > -SURE:
        return Unclear(f"it calls its network {len(shares)} times a step, in an order that thg does not know")
    own, other = branches.calls[cond].network, branches.calls[1 - cond].network
    order = ("cond", "uncond") if cond == 0 else ("uncond", "cond")
    layout = Sequential((own,), None if own == other else other, branches=order, rescales=rescales)
    count = {2: "two", 3: "three", 4: "four"}[len(shares)]
    return Learned(layout, shares[cond], f"{count} calls, {('conditional', 'unconditional')[cond]} first, {words}")


def _seen(calls: Sequence[Outputs], passed: Tensor) -> str:
    shown = ", ".join(map(str, calls[-MOST_BRANCHES:])) or "no network call"
    return f"{shown}; to the scheduler: {'x'.join(map(str, passed.shape))}"
