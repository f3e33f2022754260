"""Published predictors on thg's leaps of the whole network: at the same steps, in place of thg's line and corrector.

The papers predict features inside the network; here each predicts the output that reaches the sampler, so that only the
prediction differs from thg's. A predictor is a function of the positions of the evaluations (oldest first) and of the
run: it gives the weights of the evaluated outputs in the prediction. These are our own implementations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.polynomial import chebyshev, hermite
from numpy.typing import NDArray
from pydantic import Field

from thg.plans.leaps import Leaps
from thg.plans.planners import Planned, tapered
from thg.plans.run_info import RunInfo, Term

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Predictor(ABC):
    """A predictor of the network's output. nfe: evaluations, at the steps that `tapered` chooses."""

    nfe: int

    @abstractmethod
    def weights(self, nodes: Array, at: float, steps: int) -> Array:
        """The weights of the last evaluations in the prediction at `at`; as many as it uses.

        nodes: the positions of all evaluations so far, in a run of `steps`.
        """

    def policy(self, steps: int) -> Planned:
        return PredictedNetwork(tapered(self.nfe), self)


@dataclass(frozen=True)
class TaylorSeer(Predictor):
    """Taylor's formula, with derivatives from finite differences of the last evaluations. order=0 reuses the last."""

    order: Annotated[int, Field(ge=0, le=4)] = 2
    paper: ClassVar[str] = "Liu et al., TaylorSeer, 2025: Taylor's formula on finite differences, here of the output"

    def weights(self, nodes: Array, at: float, steps: int) -> Array:
        used = nodes[-self.order - 1 :]
        terms = (self.basis(i, at - nodes[-1]) * d for i, d in enumerate(differences(used)))
        total: Array = sum(terms, np.zeros(len(used)))
        return total

    def basis(self, i: int, distance: float) -> float:
        """The factor of the i-th derivative."""
        return distance**i / math.factorial(i)


@dataclass(frozen=True)
class HiCache(TaylorSeer):
    """As TaylorSeer, with Hermite polynomials that are contracted by sigma in place of the powers."""

    sigma: Annotated[float, Field(gt=0, le=1)] = 0.5
    paper: ClassVar[str] = "HiCache, 2025: scaled Hermite polynomials on finite differences, here of the output"

    def basis(self, i: int, distance: float) -> float:
        polynomial = hermite.hermval(self.sigma * distance, [0.0] * i + [1.0])
        return float(self.sigma**i * polynomial) / math.factorial(i)


@dataclass(frozen=True)
class Spectrum(Predictor):
    """Chebyshev polynomials over the whole run, fitted to all evaluations so far by ridge regression.

    The constant is not shrunk: with it, the prediction of a constant output would be too small.
    """

    degree: Annotated[int, Field(ge=1, le=16)] = 4
    ridge: Annotated[float, Field(gt=0)] = 0.1
    paper: ClassVar[str] = "Spectrum, 2026 (arXiv 2603.01623): Chebyshev ridge regression, here of the output"

    def weights(self, nodes: Array, at: float, steps: int) -> Array:
        scale = 2 / max(1, steps - 1)
        seen, wanted = (chebyshev.chebvander(scale * x - 1, self.degree) for x in (nodes, np.array([at])))
        penalty = self.ridge * np.diag([0.0] + [1.0] * self.degree)
        found = np.linalg.solve(seen.T @ seen + penalty, seen.T)
        return np.asarray((wanted @ found)[0], dtype=np.float64)


def differences(nodes: Array) -> list[Array]:
    """The derivatives of order 0, 1, ... at the last node, by repeated backward differences: weights of the nodes."""
    level, steps, found = np.eye(len(nodes)), np.diff(nodes), []
    for order in range(len(nodes)):
        found.append(level[-1])
        level = np.diff(level, axis=0) / steps[order:, None]
    return found


@dataclass(frozen=True)
class PredictedNetwork(Planned):
    """What `thg.enable` takes: the planner's steps, with another prediction at the others."""

    predictor: Predictor

    def leaps(self, run: RunInfo, *, by_inputs_alone: bool = False) -> Leaps:
        return PredictedLeaps(replace(self.planner.plan(run), corrector=0.0), run, self.predictor)


class PredictedLeaps(Leaps):
    """One run with a predictor of its own."""

    def __init__(self, plan: Any, run: RunInfo, predictor: Predictor) -> None:
        super().__init__(plan, run)
        self._predictor = predictor
        self._seen: list[tuple[float, Term]] = []

    def observe(self, step: int, output: Term) -> Term:
        at = self._run.positions[step]
        self._seen = [pair for pair in self._seen if pair[0] != at]  # of two evaluations at one time the later counts
        self._seen.append((at, output))
        return super().observe(step, output)

    def predict(self, step: int) -> Term:
        nodes = np.array([at for at, _ in self._seen])
        weights = self._predictor.weights(nodes, self._run.positions[step], self._run.steps).tolist()
        parts = zip(*(term for _, term in self._seen[-len(weights) :]), strict=True)
        return tuple(sum(w * part for w, part in zip(weights, same, strict=True)) for same in parts)

    def forget(self) -> None:
        self._seen.clear()
        super().forget()
