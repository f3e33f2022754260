# A copy of src/thg/plans/guide.py, made by comfyui/make_core.py: change it there.
"""Guides: they decide, in one run, when the guidance term is evaluated and what is used otherwise.

The patch of a pipeline calls a `Guide`, which is created for each run and discarded after it. `HareGuide` follows a
`Plan`. The benchmark's baselines are other guides, so that only the decision differs.

A network may return several tensors (video and sound), so a term is a tuple of tensors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from ..plans import hare
from ..plans.estimate import CORRECTED, UNCORRECTED, UNKNOWN, Estimate
from ..plans.plan import Plan
from ..plans.response import Response

Term = tuple[Tensor, ...]


@dataclass(frozen=True)
class Run:
    """The description of a run when it starts.

    steps: denoiser calls of the run (Heun and PLMS make more calls than the sampler has steps).
    positions: of each call on the fine grid; calls at the same time share a position.
    guidance_scale: w, if known.
    log_snr: of each call, if the scheduler is supported by the core.
    times: the time step of each call, in the scheduler's units.
    network: class and fingerprint of the network, as in a profile.
    response: how the scheduler's states respond to the network's outputs. None: there is no corrector, for the reason
        in `no_response`.
    order: of the scheduler. adds_noise: whether it adds noise at each step.
    weights: of each call's output in the final state, if they are known; with noise, too.
    end_log_snr: where the last call's step ends, if that is not the end of the schedule.
    """

    steps: int
    positions: tuple[float, ...]
    guidance_scale: float | None = None
    log_snr: tuple[float, ...] | None = None
    times: tuple[float, ...] | None = None
    network: str | None = None
    response: Response | None = None
    no_response: str = "the scheduler is unknown"
    order: int = 1
    adds_noise: bool = False
    weights: tuple[float, ...] | None = None
    end_log_snr: float | None = None

    @classmethod
    def of(cls, steps: int, guidance_scale: float | None = None) -> Run:
        """A run of which only this is known."""
        return cls(steps, tuple(float(i) for i in range(steps)), guidance_scale)

    def part(self, start: int, end: int) -> Run:
        """The calls from `start` to `end` as a separate run: guidance in an interval."""
        if (start, end) == (0, self.steps):
            return self
        return replace(
            self,
            steps=end - start,
            positions=self.positions[start:end],
            log_snr=self.log_snr and self.log_snr[start:end],
            times=self.times and self.times[start:end],
            response=self.response and self.response.part(start, end),
            weights=self.weights and self.weights[start:end],
            end_log_snr=self.log_snr[end] if self.log_snr and end < self.steps else self.end_log_snr,
        )


class Guide(Protocol):
    """The decisions of one run. The methods are called in order of the steps, `evaluates` first."""

    @property
    def plan(self) -> Plan | None:
        """The plan that is followed, if any."""

    def evaluates(self, step: int) -> bool:
        """Must the unconditional branch run at this step?"""

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        """Takes a newly evaluated guidance term d = e_c - e_u. Returns the term to use instead, or None to use it."""

    def predict(self, step: int, conditional: Term) -> Term | None:
        """The term to use if it was not evaluated. None: no guidance at this step."""


Evaluate = Callable[[Any, Any], tuple[Term, Term]]


@runtime_checkable
class Visitor(Protocol):
    """A guide that also evaluates the network near each evaluated step (calibration does)."""

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        """Called before the unconditional branch runs, with the network's input.

        evaluate(sample, time) gives e_c and d of the same network, with the same conditions, for another input.
        """


@runtime_checkable
class GuideMaker(Protocol):
    """Can be enabled on a pipeline: makes the guide of a run."""

    def guide(self, run: Run) -> Guide: ...


@dataclass(frozen=True, eq=False)
class Correction:
    """The correction after a leap: gains[n] are the weights of these terms in the correction of call first + n."""

    terms: tuple[Term, ...]
    first: int
    gains: Sequence[Sequence[float]]

    def gains_at(self, step: int) -> Sequence[float]:
        place = step - self.first
        return self.gains[place] if place < len(self.gains) else ()


class HareGuide:
    """Follows a plan: Algorithm 1 as a predictor at the denoiser, with the errors of leaps corrected afterwards.

    from_step: makes the plan to follow instead if the guidance begins at a later step.
    """

    def __init__(self, plan: Plan, run: Run, from_step: Callable[[int], Plan] | None = None) -> None:
        self.plan = plan
        self._from_step = from_step
        self._at = run.positions
        self._run = run
        self._estimate: Estimate | None = _estimate(plan, run)
        self._history = hare.History()
        self._last_step = -1  # the last step with guidance
        self._evaluated_at = -1  # the last step that was evaluated
        self._corrections: list[Correction] = []  # those that act on this step or on later ones

    def evaluates(self, step: int) -> bool:
        if self._from_step is not None:
            if step > 0:
                self.plan = self._from_step(step)
            self._from_step = None
        if not self.plan.guides(step):
            return False
        # the pipeline may switch guidance on late, or on again: then there are no recent terms to predict from
        return self.plan.evaluates(step) or not self._history or self._last_step < step - 1

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        if self._last_step < step - 1:  # guidance was off in between: terms before the gap are not used
            self._forget()
        elif step - self._evaluated_at > 1:
            self._judge(step, term)
        self._last_step = self._evaluated_at = step
        self._history.add(self._at[step], term)
        boost = self.plan.boost_at(step)
        if boost == 1.0 and not self._corrections:
            return None
        return self._corrected(step, _scaled(term, boost))

    def predict(self, step: int, conditional: Term) -> Term | None:
        if not self.plan.guides(step):  # before the start, and from i_hi on: d = 0
            self._forget()
            return None
        self._last_step = step
        term = self._history.predict(self._at[step], self.plan.hare_order, self.plan.slope)
        return self._corrected(step, _scaled(term, self.plan.boost_at(step)))  # d <- b d

    def _forget(self) -> None:
        self._history.clear()
        self._corrections.clear()

    # -- the error of the last leap, from the new term

    def estimated_error(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The estimated difference from plain CFG, per row, relative to the norm of the state.

        sample: the state, as the last input of the network. None if it cannot be estimated: the guidance scale is
        unknown, there was no leap, or the plan changes the guidance itself (boost, cutoff).
        """
        return None if self._estimate is None else self._estimate.relative_to(sample)

    def _judge(self, step: int, term: Term) -> None:
        """Computes the error of the leap that ends at this step, and the corrections of the following steps."""
        if self._history.ends_at(self._at[step]):
            return  # a second call at the time of the last evaluation: no leap in between
        order = self.plan.hare_order
        terms = (*self._history.terms[-order:], term)
        error, gains = _after_leap(self.plan, self._run, self._history.positions[-order:], self._evaluated_at, step)
        if self._estimate is not None:
            self._estimate.add(_combined(terms, error))
        if gains:
            self._corrections.append(Correction(terms, step, gains))

    def _corrected(self, step: int, term: Term) -> Term:
        """The term plus the corrections of this step; completed corrections are dropped."""
        if not self._corrections:
            return term
        terms, weights = [term], [1.0]
        for correction in self._corrections:
            if gains := correction.gains_at(step):
                terms += correction.terms
                weights += gains
        self._corrections = [c for c in self._corrections if c.first + len(c.gains) > step + 1]
        return _combined(terms, weights)


@functools.lru_cache(maxsize=256)
def _after_leap(
    plan: Plan, run: Run, nodes: tuple[float, ...], start: int, step: int
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


def _missed(plan: Plan, run: Run, nodes: tuple[float, ...], call: int, step: int) -> list[float]:
    """The missing weights of the terms at `nodes` and of the new one (of `step`) in a call of the leap.

    The polynomial through the new term and those used for the prediction, minus that prediction.
    """
    at = run.positions[call]
    better = hare.interpolation((*nodes, run.positions[step]), at)
    used = (*hare.weights(nodes, at, plan.hare_order, plan.slope), 0.0)
    boost = plan.boost_at(call)
    return [boost * (b - u) for b, u in zip(better, used, strict=True)]


def _scaled(term: Term, factor: float) -> Term:
    return term if factor == 1.0 else tuple(part * factor for part in term)


def _combined(terms: Sequence[Term], weights: Sequence[float]) -> Term:
    """The weighted sum, without temporary tensors."""
    return tuple(_weighted_sum(parts, weights) for parts in zip(*terms, strict=True))


def _weighted_sum(parts: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    total = parts[0] * weights[0]
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        total.add_(part, alpha=weight)
    return total


def _estimate(plan: Plan, run: Run) -> Estimate | None:
    if run.guidance_scale is None or plan.boost != 1.0 or plan.end_of_guidance < plan.steps:
        return None
    share = UNKNOWN if run.response is None else CORRECTED if plan.corrector else UNCORRECTED
    return Estimate(share * abs(run.guidance_scale - 1))


def _leap_length(run: Run, start: int, step: int) -> float:
    """The length of a leap if the response is unknown: in noise levels, or as a share of the steps."""
    if run.log_snr is None:
        return (step - start) / run.steps
    first, last = (1 / (1 + math.exp(min(run.log_snr[k], 80.0) / 2)) for k in (start, step))
    return abs(first - last)
