# A copy of src/thg/plans/guide.py, made by comfyui/make_core.py: change it there.
"""Guides: who decides, in one run, when the guidance term is evaluated and what stands in for it otherwise.

`Guide` is what the takeover of a pipeline talks to; it is made afresh for each run and forgotten after it. `HareGuide`
follows a `Plan`. The rivals of the benchmark are other guides, so that nothing but the decision differs.

A network may return several tensors (video and sound); so a term is a tuple of tensors.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ..plans import hare
from ..plans.plan import Plan

Term = tuple[Tensor, ...]


@dataclass(frozen=True)
class Run:
    """What is known of a run when it starts.

    steps: denoiser calls of the run (Heun and PLMS call more often than the sampler has steps).
    positions: where each call stands on the fine grid; calls at the same time share a position.
    guidance_scale: w, if the pipeline tells.
    log_snr: of each call, if the scheduler is one that the core understands.
    times: the time step of each call, in the scheduler's units.
    network: class and fingerprint of the network, as a profile knows it.
    """

    steps: int
    positions: tuple[float, ...]
    guidance_scale: float | None = None
    log_snr: tuple[float, ...] | None = None
    times: tuple[float, ...] | None = None
    network: str | None = None

    @classmethod
    def of(cls, steps: int, guidance_scale: float | None = None) -> Run:
        """A run about which nothing else is known."""
        return cls(steps, tuple(float(i) for i in range(steps)), guidance_scale)


class Guide(Protocol):
    """The decisions of one run. The takeover asks in order of the steps, `evaluates` first."""

    @property
    def plan(self) -> Plan | None:
        """The plan that is followed, if it is one."""

    def evaluates(self, step: int) -> bool:
        """Shall the unconditional branch run at this step?"""

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        """A fresh guidance term d = e_c - e_u. Returns what to use in its place; None: as it is."""

    def predict(self, step: int, conditional: Term) -> Term | None:
        """What to use where nothing was evaluated. None: no guidance at this step."""


Evaluate = Callable[[Any, Any], tuple[Term, Term]]


@runtime_checkable
class Visitor(Protocol):
    """A guide that also looks at the network around each step that it evaluates (calibration does)."""

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        """Before the unconditional branch runs: what the network is given.

        evaluate(sample, time) gives e_c and d of the same network under the same conditions elsewhere.
        """


@runtime_checkable
class GuideMaker(Protocol):
    """Whatever can be enabled on a pipeline: makes the guide when the run is known."""

    def guide(self, run: Run) -> Guide: ...


@dataclass(frozen=True, eq=False)
class Correction:
    """What a fresh term says about the leap before it: at each of its steps, `amount * direction` was missing."""

    direction: Term
    amounts: tuple[float, ...]


class HareGuide:
    """Follows a plan: Algorithm 1 as a predictor at the denoiser.

    `correction` belongs to the step last observed; None where the plan wants none or there was no leap.
    """

    correction: Correction | None = None

    def __init__(self, plan: Plan, run: Run) -> None:
        self.plan = plan
        self._at = run.positions
        self._positions: deque[float] = deque(maxlen=hare.MEMORY)
        self._terms: deque[Term] = deque(maxlen=hare.MEMORY)
        self._last_step = -1  # the last step with guidance
        self._evaluated_at: int | None = None  # the last step that was evaluated

    def evaluates(self, step: int) -> bool:
        if not self.plan.guides(step):
            return False
        # the pipeline may switch guidance on late, or on again: then nothing recent is there to predict from
        return self.plan.evaluates(step) or not self._terms or self._last_step < step - 1

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        position = self._at[step]
        if self.plan.corrector:
            self.correction = self._correction(step, term)
        if self._last_step < step - 1:  # guidance was off in between: the terms before the gap predict nothing
            self._forget()
        self._last_step = step
        if self._positions and self._positions[-1] == position:  # two calls at one time (Heun): the later one counts
            self._positions.pop()
            self._terms.pop()
        self._positions.append(position)
        self._terms.append(term)
        boost = self.plan.boost_at(step)
        return None if boost == 1.0 else _scaled(term, boost)

    def _correction(self, step: int, term: Term) -> Correction | None:
        """What the leap that ends at this step should have used in addition to what it did."""
        start, end = self._evaluated_at, self._at[step]
        leapt = start is not None and step - start > 1 and self._last_step == step - 1
        self._evaluated_at = step
        if not leapt or start is None:
            return None
        # the polynomial through the fresh term, too, differs from the prediction by D * prod(x - x_m) (Newton's form)
        order = self.plan.hare_order
        known, terms = (*self._positions, end)[-1 - order :], (*self._terms, term)[-1 - order :]
        shares = [1 / math.prod(own - other for other in known if other != own) for own in known]
        direction = tuple(
            functools.reduce(torch.add, (share * part for share, part in zip(shares, parts, strict=True)))
            for parts in zip(*terms, strict=True)
        )
        amounts = tuple(
            self.plan.corrector * self.plan.boost_at(k) * math.prod(self._at[k] - other for other in known[:-1])
            for k in range(start, step)
        )
        return Correction(direction, amounts)

    def predict(self, step: int, conditional: Term) -> Term | None:
        if not self.plan.guides(step):  # before the start, and from i_hi on: d = 0
            self._forget()
            return None
        self._last_step = step
        terms = tuple(
            hare.predict(tuple(self._positions), history, self._at[step], self.plan.hare_order)
            for history in zip(*self._terms, strict=True)
        )
        return _scaled(terms, self.plan.boost_at(step))  # d <- b d

    def _forget(self) -> None:
        self._positions.clear()
        self._terms.clear()


def _scaled(term: Term, factor: float) -> Term:
    return term if factor == 1.0 else tuple(part * factor for part in term)
