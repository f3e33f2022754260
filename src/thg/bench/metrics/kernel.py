"""Maximum mean discrepancy: the distance of two sets of features under a kernel, no Gaussian assumed.

Memory: all features are kept in float32: for 30,000 samples 92 MB with the 768 features of CLIP (CMMD) and 246 MB with
the 2048 of Inception (KID), as much again for the references, and three times that while the number is computed (in
float64, the kernel matrices in blocks).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch

from thg.bench.metrics.base import SetMetric, State
from thg.bench.metrics.batch import MetricError

Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
BLOCK = 1024
"""Rows of a kernel matrix made at a time: 1024 x 30,000 in float64 are 246 MB."""


def gaussian_kernel(sigma: float) -> Kernel:
    """exp(-|x - y|^2 / (2 sigma^2))."""

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(1)[:, None] + y.square().sum(1)[None, :] - 2 * x @ y.T
        return torch.exp(squares / (-2 * sigma**2))

    return kernel


def cubic_kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(x.y / d + 1)^3, of Binkowski et al., "Demystifying MMD GANs" (2018)."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def mmd_biased(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> float:
    """mean k(x, x') + mean k(y, y') - 2 mean k(x, y): Gretton et al. (2012), equation 5."""
    return _mean(x, x, kernel) + _mean(y, y, kernel) - 2 * _mean(x, y, kernel)


def mmd_unbiased(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> float:
    """The same without the terms of a sample with itself: Gretton et al. (2012), equation 3."""
    return _mean_of_others(x, kernel) + _mean_of_others(y, kernel) - 2 * _mean(x, y, kernel)


def _mean(x: torch.Tensor, y: torch.Tensor, kernel: Kernel) -> float:
    x, y = x.double(), y.double()
    total = 0.0
    for start in range(0, len(x), BLOCK):
        total += float(kernel(x[start : start + BLOCK], y).sum())
    return total / (len(x) * len(y))


def _mean_of_others(x: torch.Tensor, kernel: Kernel) -> float:
    x = x.double()
    total = 0.0
    for start in range(0, len(x), BLOCK):
        values = kernel(x[start : start + BLOCK], x)
        total += float(values.sum() - values.diagonal(offset=start).sum())
    return total / (len(x) * (len(x) - 1))


class FeatureStore:
    """All rows, in float32."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: list[torch.Tensor] = []

    def add(self, rows: torch.Tensor) -> None:
        if len(rows) == 0:
            return
        if self._rows and rows.shape[1] != self._rows[0].shape[1]:
            raise MetricError(
                f"rows of {rows.shape[1]} features after rows of {self._rows[0].shape[1]}: two networks were mixed"
            )
        self._rows.append(rows.float().cpu())
        self.count += len(rows)

    def rows(self) -> torch.Tensor:
        return torch.cat(self._rows) if self._rows else torch.empty(0, 0)

    def state(self) -> dict[str, torch.Tensor]:
        return {"features": self.rows()}

    def merge(self, state: State) -> None:
        self.add(state["features"])


class KernelMetric(SetMetric[FeatureStore]):
    """Base of the metrics that compare all features with all features. Lower is better."""

    direction = "lower"

    @abstractmethod
    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        """The number for two sets of features."""

    def new_store(self) -> FeatureStore:
        return FeatureStore()

    def statistics(self) -> dict[str, torch.Tensor]:
        """`features` of the references that were counted."""
        return self._reference.state()

    def use_statistics(self, statistics: State) -> None:
        if "features" not in statistics:
            raise MetricError(
                f"{self.name} needs the features themselves, the statistics have {sorted(statistics)}: "
                "mu and sigma are enough for a Frechet distance only; give the folder of references instead"
            )
        self._reference = self.new_store()
        self._reference.add(statistics["features"])

    def compute(self) -> float | None:
        if self._counted.count < 2 or self._reference.count < 2:
            return None
        return self.distance(self._counted.rows(), self._reference.rows())
