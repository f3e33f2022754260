"""Adaptive leaps: each run chooses the length of the next leap from the error of the last prediction.

At an evaluated step the new guidance term is compared with its prediction, which costs nothing. The error of a
prediction of order q over m steps grows like m^q, so the measured error determines how long the next leap may be. The
samples of one batch leap together.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import torch

from thg.errors import PlanError
from thg.plans import hare
from thg.plans.guide import Run, Term
from thg.plans.plan import Plan

LONGEST = 8  # steps of a leap


@dataclass(frozen=True)
class Adaptive:
    """Made by `adaptive`."""

    tolerance: float
    hare_order: int = 2

    def guide(self, run: Run) -> AdaptiveGuide:
        return AdaptiveGuide(self, run)


def adaptive(tolerance: float = 0.02, *, hare_order: int = 2) -> Adaptive:
    """Leaps as long as the error of the guidance stays below a share of the output.

    tolerance: || (w-1) (d - predicted d) || / || e_c || at the end of a leap, mean over the batch.
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise PlanError(f"tolerance must be above 0, not {tolerance}; start with 0.02")
    Plan(1, (0,), hare_order=hare_order)  # validates the order
    return Adaptive(tolerance, hare_order)


class AdaptiveGuide:
    """The leaps of one run."""

    def __init__(self, chosen: Adaptive, run: Run) -> None:
        self._chosen, self._run = chosen, run
        self._scale = 1.0 if run.guidance_scale is None else abs(run.guidance_scale - 1)
        self._positions: deque[float] = deque(maxlen=hare.MEMORY)
        self._terms: deque[Term] = deque(maxlen=hare.MEMORY)
        self._evaluated: list[int] = []
        self._next = 0  # the step of the next evaluation

    @property
    def plan(self) -> Plan | None:
        """The evaluations so far, as a plan."""
        if not self._evaluated or self._evaluated[0]:
            return None
        return Plan(self._run.steps, tuple(self._evaluated), hare_order=self._chosen.hare_order)

    def evaluates(self, step: int) -> bool:
        return step >= self._next or not self._terms

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        position = self._run.positions[step]
        leap = 1
        if self._terms and self._positions[-1] == position:  # two calls at one time: the later one counts
            self._positions.pop()
            self._terms.pop()
        elif self._terms:
            last_leap = step - self._evaluated[-1]
            ratio = self._chosen.tolerance / max(self._error(step, conditional, term), 1e-12)
            allowed = last_leap * ratio ** (1 / min(self._chosen.hare_order, len(self._terms)))
            leap = max(1, min(math.floor(allowed), 2 * last_leap, LONGEST))
        self._positions.append(position)
        self._terms.append(term)
        self._evaluated.append(step)
        self._next = step + leap
        return None

    def predict(self, step: int, conditional: Term) -> Term | None:
        return tuple(
            hare.predict(tuple(self._positions), history, self._run.positions[step], self._chosen.hare_order)
            for history in zip(*self._terms, strict=True)
        )

    def _error(self, step: int, conditional: Term, term: Term) -> float:
        predicted = self.predict(step, conditional)
        assert predicted is not None
        wrong = torch.stack([(d - p).float().norm() for d, p in zip(term, predicted, strict=True)]).norm()
        whole = torch.stack([part.float().norm() for part in conditional]).norm()
        return self._scale * float(wrong / whole)
