"""Infers the layout of a pipeline from one guided step.

Between two calls of `scheduler.step` a pipeline calls its network for all branches; then it passes P, computed from the
outputs, to the scheduler. Every interpretation of these calls as branches (halves of one call, two calls, ...) is
tried: the branches must combine to P (`fit`), and the coefficients identify the conditional branch and w. All fits are
computed on the device and read together, the only time that the host waits. If no interpretation fits, the reason is
reported.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from thg.adapter import fit
from thg.adapter.fit import Fit
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.readings import MOST_BRANCHES, Branches, Outputs, Reading, read

SURE = 0.02  # least difference of a share from 0 and 1
UNEQUAL = 0.1  # allowed spread of the shares over the vectors of one sample, relative to the largest share


@dataclass(frozen=True)
class Learned:
    """layout: how the branches are laid out. w: the guidance scale of the step. words: a description.

    number: index of the reading that fits, to check later steps. place: index of the call with the (first) branches
    among the calls of its network in the step. samples: rows of each branch.
    """

    layout: Batched | Sequential
    w: float
    words: str
    number: int = 0
    place: int = 0
    samples: int = 0


@dataclass(frozen=True)
class Unclear:
    """Why the layout could not be inferred from a step.

    again: another run may succeed. same_output: the branches are equal. unguided: the step has one branch.
    off: it has several, and one alone reaches the scheduler. shapeless: no network output has a shape that fits the
    scheduler's input.
    """

    why: str
    again: bool = False
    same_output: bool = False
    unguided: bool = False
    off: bool = False
    shapeless: bool = False


def learn(
    calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None = None, *, idle: bool = False
) -> Learned | Unclear:
    """The layout from the calls of one step, its input to the scheduler, and the sample of that step.

    idle: predict branches without effect in this step, too. They may get one later, in pipelines that begin to edit
    after some steps.
    """
    readings = list(read(calls, passed, sample))
    if not readings:
        why = f"no guidance in this step ({_seen(calls, passed)})"
        one_branch = any(sum(map(Tensor.numel, call.outputs)) == passed.numel() for call in calls)
        return Unclear(why, again=True, unguided=True, shapeless=not one_branch)
    measured = [reading.measure() for reading in readings]
    width = max(map(len, measured))
    padded = torch.stack([torch.nn.functional.pad(numbers, (0, width - len(numbers))) for numbers in measured])
    fits = [
        Fit.read(numbers, len(reading.branches.outputs))
        for reading, numbers in zip(readings, padded.tolist(), strict=True)
    ]
    conclusions = [_conclude(reading, found, idle) for reading, found in zip(readings, fits, strict=True)]
    for number, conclusion in enumerate(conclusions):
        if isinstance(conclusion, Learned):
            branches = readings[number].branches
            place, samples = _place(branches.calls[0], calls), len(branches.outputs[0])
            return replace(conclusion, number=number, place=place, samples=samples)
    for conclusion in conclusions:
        if isinstance(conclusion, Unclear):
            return conclusion
    closest = min(found.error for found in fits)
    if closest < 1:
        return Unclear("its pixels, tokens or frames are combined in different ways")
    return Unclear(
        f"no combination of its network outputs gives what it passes to scheduler.step ({_seen(calls, passed)}; the "
        f"closest leaves {closest * fit.ROUNDING:.1e} of it)"
    )


def unexplained(learned: Learned, calls: Sequence[Outputs], passed: Tensor, sample: Tensor | None) -> Tensor | None:
    """The residual of the same reading at a later step, relative to rounding; on the device. None if it has changed.

    Infinite if the branches have changed places: the other one has the larger share.
    """
    reading = next(itertools.islice(read(calls, passed, sample), learned.number, None), None)
    if reading is None:
        return None
    error, _, _, doubt, *shares = reading.measure().unbind()
    cond = learned.layout.branches.index("cond")
    swapped = (doubt < SURE) & (shares[cond] < 0.5) if cond < len(shares) else torch.zeros_like(doubt, dtype=torch.bool)
    return torch.where(swapped, torch.inf, error)


def _place(call: Outputs, calls: Sequence[Outputs]) -> int:
    return [other for other in calls if other.network == call.network].index(call)


def _conclude(reading: Reading, numbers: Fit, idle: bool) -> Learned | Unclear | None:
    """The conclusion from a fit; None if the reading does not fit."""
    if not numbers.error < 1:
        return None
    if reading.by_vector and numbers.spread > UNEQUAL * max(map(abs, numbers.shares)):
        return None
    if len(numbers.shares) == 1:
        return Unclear("no guidance in this step: its network output reaches the scheduler", again=True, unguided=True)
    shares, plain = numbers.shares, abs(abs(numbers.scale) - 1) < SURE
    if not numbers.doubt < SURE:
        why = "its branches gave the same output (is the negative prompt the prompt?)"
        return Unclear(why, again=True, same_output=True)
    if not any(shares):
        return Unclear("guidance is off: zeros reach the scheduler", again=True, off=True)
    if numbers.scale < 0 and not (plain or reading.with_sample or reading.by_vector):
        return Unclear("its guidance formula changes the sign of its outputs, so the order of the branches is unclear")
    cond = max(range(len(shares)), key=lambda k: shares[k])
    w = shares[cond]
    if w < 1 + SURE and all(share > -SURE for share in shares):
        if w > 1 - SURE:
            return Unclear("guidance is off: one branch alone reaches the scheduler", again=True, off=True)
        return Unclear("its branches are averaged (guidance scale below 1?), so their order is unclear", again=True)
    if sum(share > SURE for share in shares) > 1:
        return Unclear(
            "it adds up several prompts (or a picture, with a scale above that of the text); where they contradict "
            "each other, their guidance changes too fast",
            again=True,
        )
    if numbers.spread > abs(w - 1) / 2:
        return Unclear("its samples are combined in different ways")
    if reading.branches.others:
        return Unclear("it also calls its network for something else in each step, in the same way")
    words = f"w = {w:.3g}" + (", rescaled" if not plain or reading.by_vector else "")
    if reading.branches.stacked > 1:
        predicted = [k for k in range(len(shares)) if k != cond and (idle or abs(shares[k]) > SURE)]
        return _batched(reading.branches, w, cond, predicted, words)
    return _sequential(reading.branches, shares, cond, words, rescales=reading.with_sample and not plain)


def _batched(branches: Branches, w: float, cond: int, predicted: Sequence[int], words: str) -> Learned | Unclear:
    n = branches.stacked  # further calls are not changed
    if cond >= n:
        return Unclear("its conditional branch runs in a call of its own, after those that it is guided by")
    names = ["uncond" if n == 2 else f"branch {k + 1}" for k in range(n)]
    names[cond] = "cond"
    layout = Batched(tuple(names), tuple(names[k] for k in predicted if k < n), (branches.calls[0].network,))
    place = ("conditional", "unconditional")[cond] + " first" if n == 2 else f"conditional is number {cond + 1} of {n}"
    return Learned(layout, w, f"one call, {place}, {words}")


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
