"""Maximum mean discrepancy: the distance of two sets of features under a kernel, without assuming Gaussians.

Memory: all features are kept in float32: for 30,000 samples 92 MB with the 768 features of CLIP (CMMD) and 246 MB with
the 2048 of Inception (KID), as much again for the references, and three times that while the number is computed (in
float64, the kernel matrices in blocks).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch

from thg.bench.metrics.base import SetMetric, Statistics
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


class KernelMetric(SetMetric):
    """Base of the metrics that compare all features with all features."""

    @abstractmethod
    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        """The number for two sets of features."""

    def statistics(self) -> dict[str, torch.Tensor]:
        """`features` of the references that were counted."""
        return {"features": self.reference_rows()}

    def use_statistics(self, statistics: Statistics) -> None:
        if "features" not in statistics:
            raise MetricError(
                f"{self.name} needs the features themselves, the statistics have {sorted(statistics)}: "
                "mu and sigma are enough for a Frechet distance only; give the folder of references instead"
            )
        self.use_rows(statistics["features"].float())

    def reduce(self, rows: torch.Tensor) -> float | None:
        if len(rows) < 2 or not self._reference_rows or len(self._reference_rows[0]) < 2:
            return None
        references = self.reference_rows()
        if rows.shape[1] != references.shape[1]:
            raise MetricError(
                f"{self.name}: {rows.shape[1]} features against {references.shape[1]}: the reference is of another "
                "network"
            )
        return self.distance(rows, references)
