# A copy of src/thg/plans/leaps.py, made by comfyui/make_core.py: change it there.
"""Leaps over evaluations: what a sampler gets at the steps at which a quantity is not evaluated.

The quantity is the output that reaches the sampler (the whole network leaps), or the guidance term alone (the paper's
plans). It is evaluated at some steps, predicted at the others by a line through the last two evaluations, and when a
new evaluation shows what the predictions missed, the following outputs are corrected so that the sampler reaches the
state that it would have reached without the miss. What was missed is also the source of the error estimate, as in an
embedded Runge-Kutta pair: the corrector removes most of it and the network damps the rest, so the final error is a
fraction of the root of the sum of squares, which `Prior` has.

Nothing here depends on branches, guidance formulas, pipelines or schedulers. A network may return several tensors
(video and sound), so an output is a tuple of tensors.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..plans.plan import Plan
from ..plans.run_info import RunInfo, Term
from ..plans.tolerance import PRIOR

if TYPE_CHECKING:
    import torch
    from torch import Tensor


EVALUATIONS_KEPT = 2  # evaluations that a prediction of the highest order needs
SAME_POSITION = 0.01  # in steps; closer evaluations count as one: a line through them would magnify their difference


def prediction_weights(
    positions: Sequence[float], position: float, order: int, damping: float = 1.0
) -> tuple[float, ...]:
    """Weights on the last evaluations (oldest first) that predict the term at `position`.

    Order 1 holds the last term: the hare of the paper under a first-order solver. Order 2 extrapolates linearly from
    the last two; with one evaluation it holds as well. damping: the share of that line's slope that is used.
    """
    if order == 1 or len(positions) < 2:
        return (1.0,)
    before, last = positions[-2], positions[-1]
    slope = damping * (position - last) / (last - before)
    return (-slope, 1.0 + slope)


def lagrange_weights(nodes: Sequence[float], at: float) -> tuple[float, ...]:
    """Weights of the values at `nodes` in the polynomial through them, at `at`."""
    return tuple(math.prod((at - other) / (node - other) for other in nodes if other != node) for node in nodes)


def predicted(
    positions: Sequence[float], terms: Sequence[Tensor], position: float, order: int, damping: float = 1.0
) -> Tensor:
    """The term at `position` from the evaluations at `positions` (oldest first).

    Allocates only its result; a held term is returned without a copy.
    """
    w = prediction_weights(positions, position, order, damping)
    if len(w) == 1:
        return terms[-1]
    # terms[-1] + slope * (terms[-1] - terms[-2]), as one fused operation on one new tensor
    return terms[-1].lerp(terms[-2], w[0])


@dataclass
class Estimate:
    """The accumulated error of the leaps of a run. Everything stays on the device.

    share: the fraction of the error that remains at the end of the run, times w - 1.
    """

    share: float
    errors: list[Tensor] = field(default_factory=list)  # the norm per row, of each leap
    ends: list[int] = field(default_factory=list)  # the steps at which the leaps end
    shape: tuple[int, ...] = ()  # of a term

    @classmethod
    def of(cls, plan: Plan, run: RunInfo, factor: float = 1.0) -> Estimate | None:
        """The estimate of a run under this plan. factor: of this network's true errors over the prior's.

        None if it cannot be made: the guidance term leaps with an unknown guidance scale, or under a plan that changes
        the guidance itself (boost, cutoff).
        """
        if plan.skips == "network":
            remaining = PRIOR.remaining
        elif run.guidance_scale is None or plan.boost != 1.0 or plan.end_of_guidance < plan.steps:
            return None
        else:
            remaining, factor = PRIOR.remaining_of_term, factor * abs(run.guidance_scale - 1)
        if run.response is None:
            remaining = PRIOR.remaining_unknown
        elif not plan.corrector:
            remaining = PRIOR.remaining_uncorrected
        return cls(remaining * factor)

    def add(self, missed: tuple[Tensor, ...], end: int) -> None:
        """Adds the error of the state after a leap to this step, up to the factor w - 1."""
        import torch

        norms = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=_precision(part)) for part in missed]
        errors = [*self.errors, *norms]
        if any(error.shape != errors[0].shape for error in errors):  # samples of different sizes, or another number
            errors = [torch.linalg.vector_norm(error).reshape(1) for error in errors]
        self.errors = errors
        self.ends += [end] * len(norms)
        self.shape = tuple(missed[0].shape)

    def relative_to(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The difference from plain CFG's final state relative to its norm, per row; None if there was no leap.

        sample: the last input of the network, which is almost the final state. It may stack several branches, and have
        further channels after those of the state.
        """
        if not self.errors:
            return None
        import torch

        squares = torch.stack(self.errors).square().sum(0)
        parts = [sample] if isinstance(sample, torch.Tensor) else list(sample)
        state = torch.cat([self._state(part).float().flatten(1).square().sum(1) for part in parts])
        if len(state) % len(squares):  # rows that are not samples: take all of them together
            return self.share * (squares.sum() / state.sum()).sqrt().reshape(1)
        return self.share * (squares / state.reshape(-1, len(squares))[-1]).sqrt()

    def shares(self) -> Tensor | None:
        """The share of each leap in the square of the estimate, over all rows; None if there was no leap."""
        if not self.errors:
            return None
        import torch

        squares = torch.stack([errors.square().sum() for errors in self.errors])
        return squares / squares.sum().clamp_min(torch.finfo(squares.dtype).tiny)

    def _state(self, part: Tensor) -> Tensor:
        own = self.shape
        wider = part.ndim == len(own) > 2 and part.shape[1] > own[1] and tuple(part.shape[2:]) == own[2:]
        return part[:, : own[1]] if wider else part


def _precision(part: Tensor) -> torch.dtype:
    """Half precision overflows when squared."""
    import torch

    return torch.promote_types(part.dtype, torch.float32)


HOPELESS = 4.0  # relative miss of a prediction, from which on a result is doubtful; good runs reach 2.3
BEGINNING = 0.25  # share of a run in which it is not: with almost no signal outputs may jump, to little effect


def sent(number: Tensor) -> Callable[[], float] | None:
    """Sends a number to the host, which goes on meanwhile; returns what reads it.

    On a GPU reading waits for what the device was given before the number was sent, and not for what it has been given
    since. None on devices without events, where it would wait for all of it.
    """
    if number.device.type == "cpu":
        return number.item
    if number.device.type != "cuda":
        return None
    import torch

    cuda: Any = torch.cuda  # without types
    copy = number.to("cpu", non_blocking=True)  # in pinned memory
    arrival = cuda.Event()
    arrival.record(cuda.current_stream(number.device))

    def read() -> float:
        arrival.synchronize()
        return copy.item()

    return read


@dataclass(frozen=True, eq=False)
class Correction:
    """The correction after a leap: gains[n] are the weights of these terms in the correction of step first + n."""

    terms: tuple[Term, ...]
    first: int
    gains: Sequence[Sequence[float]]

    def gains_at(self, step: int) -> Sequence[float]:
        index = step - self.first
        return self.gains[index] if index < len(self.gains) else ()


class Leaps:
    """One run in which a quantity is evaluated at the steps of a plan and predicted at the others.

    Called in order of the steps: `evaluates`, then `observe` with a new evaluation or `predict`.

    gives_up: once a prediction has missed hopelessly, everything is evaluated from the next evaluated step on.
    tuned: what `thg.tune` has found about this plan, in words; empty if it was not asked.
    """

    def __init__(
        self, plan: Plan, run: RunInfo, estimate: Estimate | None = None, *, gives_up: bool = False, tuned: str = ""
    ) -> None:
        self.plan, self.tuned = plan, tuned
        self._gives_up = gives_up
        self._gave_up_at: int | None = None  # the step
        self._read_miss: Callable[[], float] | None = None  # of the last leap
        self._run = run
        self._estimate = estimate
        self._positions: deque[float] = deque(maxlen=EVALUATIONS_KEPT)  # of the last evaluations, oldest first
        self._terms: deque[Term] = deque(maxlen=EVALUATIONS_KEPT)  # what they gave
        self._evaluated_at = -1  # the last step that was evaluated
        self._corrections: list[Correction] = []  # those that act on this step or on later ones
        self._misses: list[Tensor] = []  # of the leaps, relative to the output

    def evaluates(self, step: int) -> bool:
        """Must the quantity be evaluated at this step? A line needs two evaluations."""
        if self._gave_up_at is not None:
            return True
        return self.plan.evaluates(step) or len(self._terms) < self.plan.hare_order

    def observe(self, step: int, output: Term) -> Term:
        """Takes a new evaluation; returns what the sampler gets: the same tensors if there is nothing to correct."""
        self._decide(step)
        position = self._run.positions[step]
        if self._positions and abs(self._positions[-1] - position) < SAME_POSITION:
            self._positions.pop()  # Heun calls the network twice at one time: the latest counts
            self._terms.pop()
        elif self._positions and step - self._evaluated_at > 1:
            self._judge(step, output)
        self._evaluated_at = step
        self._positions.append(position)
        self._terms.append(output)
        return self._corrected(step, output)

    def predict(self, step: int) -> Term:
        """What the sampler gets at a step without an evaluation."""
        nodes, position = tuple(self._positions), self._run.positions[step]
        parts = zip(*self._terms, strict=True)
        return self._corrected(
            step, tuple(predicted(nodes, values, position, self.plan.hare_order, self.plan.slope) for values in parts)
        )

    def forget(self) -> None:
        """Starts anew: the quantity changed for another reason than time (another network, other conditions)."""
        self._positions.clear()
        self._terms.clear()
        self._corrections.clear()
        self._read_miss = None

    def estimated_error(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The estimated difference of the final state from that of the run with all evaluations, per sample.

        Relative to the norm of the state. sample: the state near the end of the run. None if there was no leap.
        """
        return None if self._estimate is None else self._estimate.relative_to(sample)

    def lost(self) -> tuple[list[int], Tensor] | None:
        """Where the estimated error comes from: the steps at which leaps end, and the share of each, on the device."""
        shares = None if self._estimate is None else self._estimate.shares()
        return None if self._estimate is None or shares is None else (self._estimate.ends, shares)

    def largest_miss(self) -> Tensor | None:
        """By how much the worst prediction after the beginning has missed, relative to the output; on the device."""
        return functools.reduce(lambda a, b: a.maximum(b), self._misses) if self._misses else None

    def doubt(self) -> str:
        """Why the result may be wrong; empty if nothing says so. For the report after a run: waits for the device."""
        miss = self.largest_miss()
        if miss is None or not bool(miss > HOPELESS):
            return ""
        consequence = ""
        if self._gave_up_at is not None and self._gave_up_at + 1 < self.plan.steps:
            consequence = f"; from step {self._gave_up_at + 1} of {self.plan.steps} on everything was evaluated"
        return (
            "this result may be wrong: a prediction has missed by more than four times the output itself (an unstable "
            f"sampler, conditions that contradict each other, or too few evaluated steps){consequence}"
        )

    def _decide(self, step: int) -> None:
        """Gives up if the last leap has missed hopelessly.

        Its miss is read one evaluation later, when that has been given to the device: the device has work while the
        host waits, and which of them is faster decides nothing.
        """
        read, self._read_miss = self._read_miss, None
        if self._gave_up_at is None and read is not None and read() > HOPELESS:
            self._gave_up_at = step

    def _judge(self, step: int, output: Term) -> None:
        """Computes the error of the leap that ends at this step, and the corrections of the following steps."""
        order = self.plan.hare_order
        nodes, terms = tuple(self._positions)[-order:], (*tuple(self._terms)[-order:], output)
        error, gains = _after_leap(self.plan, self._run, nodes, self._evaluated_at, step)
        if self._estimate is not None:
            self._estimate.add(_combined(terms, error), step)
        if gains:
            self._corrections.append(Correction(terms, step, gains))
        if self.plan.skips == "network" and step >= BEGINNING * self.plan.steps:
            at_once = _missed(self.plan, self._run, nodes, step, step)
            missed = zip(_combined(terms, at_once), output, strict=True)
            misses = [part.float().norm() / whole.float().norm() for part, whole in missed]
            self._misses.append(functools.reduce(lambda a, b: a.maximum(b), misses))
            if self._gives_up:
                self._read_miss = sent(self._misses[-1])

    def _corrected(self, step: int, output: Term) -> Term:
        """The output, boosted as the plan says, plus the corrections of this step; completed ones are dropped."""
        boost = self.plan.boost_at(step)  # section 3.4 of the paper: d <- b d
        if boost != 1.0:
            output = tuple(part * boost for part in output)
        if not self._corrections:
            return output
        terms, weights = [output], [1.0]
        for correction in self._corrections:
            if gains := correction.gains_at(step):
                terms += correction.terms
                weights += gains
        self._corrections = [c for c in self._corrections if c.first + len(c.gains) > step + 1]
        return _combined(terms, weights)


@functools.lru_cache(maxsize=256)
def _after_leap(
    plan: Plan, run: RunInfo, nodes: tuple[float, ...], start: int, step: int
) -> tuple[list[float], list[list[float]]]:
    """The weights of the terms at `nodes` and of the new one in the error of a leap, and in its corrections.

    The same for all runs of a kind, so they are computed once.
    """
    missed = np.array([_missed(plan, run, nodes, call, step) for call in range(start, step)])
    if run.response is None:
        weights = _missed(plan, run, nodes, step, step)
        return [_leap_length(run, start, step) * weight for weight in weights], []
    gains = run.response.corrections(start, plan.corrector * missed).tolist() if plan.corrector else []
    return run.response.input_error(start, missed).tolist(), gains


def _missed(plan: Plan, run: RunInfo, nodes: tuple[float, ...], call: int, step: int) -> list[float]:
    """The missing weights of the terms at `nodes` and of the new one (of `step`) in a call of the leap.

    The polynomial through the new term and those used for the prediction, minus that prediction.
    """
    at = run.positions[call]
    better = lagrange_weights((*nodes, run.positions[step]), at)
    used = (*prediction_weights(nodes, at, plan.hare_order, plan.slope), 0.0)
    boost = plan.boost_at(call)
    return [boost * (b - u) for b, u in zip(better, used, strict=True)]


def _combined(terms: Sequence[Term], weights: Sequence[float]) -> Term:
    """The weighted sum, without temporary tensors."""
    return tuple(_weighted_sum(parts, weights) for parts in zip(*terms, strict=True))


def _weighted_sum(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.add_(part, alpha=weight)
    return total


def _leap_length(run: RunInfo, start: int, step: int) -> float:
    """The length of a leap if the response is unknown: in noise levels, or as a share of the steps."""
    if run.log_snr is None:
        return (step - start) / run.steps
    first, last = (1 / (1 + math.exp(min(run.log_snr[k], 80.0) / 2)) for k in (start, step))
    return abs(first - last)
