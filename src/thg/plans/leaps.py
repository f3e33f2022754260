"""Leaps over evaluations: what a sampler gets at the steps at which a quantity is not evaluated.

The quantity is the output that reaches the sampler (the whole network leaps), or the guidance term alone (the paper's
plans). It is evaluated at some steps, predicted at the others by a line through the last two evaluations, and when a
new evaluation shows what the predictions missed, the following outputs are corrected so that the sampler reaches the
state that it would have reached without the miss.

Nothing here depends on branches, guidance formulas, pipelines or schedulers. A network may return several tensors
(video and sound), so an output is a tuple of tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from thg.plans.estimate import Estimate
from thg.plans.hare import History, interpolation_weights, prediction_weights
from thg.plans.plan import Plan
from thg.plans.run import RunInfo, Term

if TYPE_CHECKING:
    from torch import Tensor

HOPELESS = 2.0  # relative miss of a prediction, from which on a result is doubtful


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
    """

    def __init__(self, plan: Plan, run: RunInfo, estimate: Estimate | None = None) -> None:
        self.plan = plan
        self._run = run
        self._estimate = estimate
        self._history = History()
        self._evaluated_at = -1  # the last step that was evaluated
        self._corrections: list[Correction] = []  # those that act on this step or on later ones
        self._misses: list[Tensor] = []  # of the leaps, relative to the output

    def evaluates(self, step: int) -> bool:
        """Must the quantity be evaluated at this step? A line needs two evaluations."""
        return self.plan.evaluates(step) or len(self._history) < self.plan.hare_order

    def observe(self, step: int, output: Term) -> Term:
        """Takes a new evaluation; returns what the sampler gets: the same tensors if there is nothing to correct."""
        if self._history and step - self._evaluated_at > 1:
            self._judge(step, output)
        self._evaluated_at = step
        self._history.add(self._run.positions[step], output)
        return self._corrected(step, output)

    def predict(self, step: int) -> Term:
        """What the sampler gets at a step without an evaluation."""
        return self._corrected(
            step, self._history.predict(self._run.positions[step], self.plan.hare_order, self.plan.slope)
        )

    def forget(self) -> None:
        """Starts anew: the quantity changed for another reason than time (another network, other conditions)."""
        self._history.clear()
        self._corrections.clear()

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
        """By how much the worst prediction has missed, relative to the output; on the device. None without a leap.

        It is for the report after a run. To act on it within the run, the host would have to wait for the device, or
        the result would depend on which of them is faster.
        """
        return functools.reduce(lambda a, b: a.maximum(b), self._misses) if self._misses else None

    def _judge(self, step: int, output: Term) -> None:
        """Computes the error of the leap that ends at this step, and the corrections of the following steps."""
        if self._history.ends_at(self._run.positions[step]):
            return  # a second call at the time of the last evaluation: no leap in between
        order = self.plan.hare_order
        terms = (*self._history.terms[-order:], output)
        error, gains = _after_leap(self.plan, self._run, self._history.positions[-order:], self._evaluated_at, step)
        if self._estimate is not None:
            self._estimate.add(_combined(terms, error), step)
        if gains:
            self._corrections.append(Correction(terms, step, gains))
        if self.plan.skips == "network":
            at_once = _missed(self.plan, self._run, self._history.positions[-order:], step, step)
            missed = zip(_combined(terms, at_once), output, strict=True)
            self._misses += [part.float().norm() / whole.float().norm() for part, whole in missed]

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


def is_hopeless(miss: Tensor | None) -> bool:
    """Does a largest miss make the result doubtful? Waits for the device."""
    return miss is not None and bool(miss > HOPELESS)


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
    better = interpolation_weights((*nodes, run.positions[step]), at)
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
