"""The Frechet distance of two Gaussians, from moments that are summed while samples stream by.

    FD = |mu_r - mu_g|^2 + tr(S_r + S_g - 2 (S_r S_g)^(1/2))          paper, appendix "More details for metrics"

Memory: one mean and one matrix in float64 (32 MiB for the 2048 features of Inception), whatever the number of samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from thg.bench.metrics.base import Embedder, SetMetric, State
from thg.bench.metrics.batch import MetricError


class Gaussian(NamedTuple):
    """Mean and covariance, float64."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Gaussian:
        """Fitted to rows of features; the covariance is the unbiased one."""
        rows = rows.double().cpu()
        return cls(rows.mean(0), torch.cov(rows.T))


def frechet_distance(first: Gaussian, second: Gaussian) -> float:
    """The squared Frechet distance. Singular covariances (fewer samples than features) are fine."""
    if first.mean.shape != second.mean.shape:
        raise MetricError(
            f"{len(first.mean)} features against {len(second.mean)}: the reference statistics are of another network"
        )
    # tr (S1 S2)^(1/2) = tr (R S2 R)^(1/2) with R = S1^(1/2): symmetric, so real eigenvalues and no complex square root.
    values, vectors = torch.linalg.eigh(first.covariance)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    product = root @ second.covariance @ root
    trace_of_root = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0).sqrt().sum()
    shift = (first.mean - second.mean).square().sum()
    distance = shift + first.covariance.trace() + second.covariance.trace() - 2 * trace_of_root
    return max(float(distance), 0.0)


class Moments:
    """Count, mean and scatter matrix of rows, updated and merged by the formula of Chan, Golub and LeVeque (1979)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(0, dtype=torch.float64)
        self.scatter = torch.zeros(0, 0, dtype=torch.float64)

    def add(self, rows: torch.Tensor) -> None:
        if len(rows) == 0:
            return
        rows = rows.double().cpu()
        mean = rows.mean(dim=0)
        centred = rows - mean
        self._combine(len(rows), mean, centred.T @ centred)

    def state(self) -> dict[str, torch.Tensor]:
        return {"count": torch.tensor(self.count), "mean": self.mean, "scatter": self.scatter}

    def merge(self, state: State) -> None:
        self._combine(int(state["count"]), state["mean"], state["scatter"])

    def gaussian(self) -> Gaussian:
        """Mean and unbiased covariance."""
        return Gaussian(self.mean, self.scatter / (self.count - 1))

    def _combine(self, count: int, mean: torch.Tensor, scatter: torch.Tensor) -> None:
        if count == 0:
            return
        if self.count == 0:
            self.count, self.mean, self.scatter = count, mean.clone(), scatter.clone()
            return
        if mean.shape != self.mean.shape:
            raise MetricError(f"rows of {len(mean)} features after rows of {len(self.mean)}: two networks were mixed")
        total = self.count + count
        shift = mean - self.mean
        self.scatter = self.scatter + scatter + torch.outer(shift, shift) * (self.count * count / total)
        self.mean = self.mean + shift * (count / total)
        self.count = total


class FrechetMetric(SetMetric[Moments]):
    """Frechet distance between the features of the samples and of the references. Lower is better."""

    direction = "lower"

    def __init__(self, embed: Embedder):
        super().__init__(embed)
        self._given: Gaussian | None = None

    def new_store(self) -> Moments:
        return Moments()

    def statistics(self) -> dict[str, torch.Tensor]:
        """`mu`, `sigma` and `n` of the references that were counted."""
        if self._reference.count < 2:
            raise MetricError(f"{self.name}: {self._reference.count} references make no covariance; add two or more")
        mean, covariance = self._reference.gaussian()
        return {"mu": mean, "sigma": covariance, "n": torch.tensor(self._reference.count)}

    def use_statistics(self, statistics: State) -> None:
        missing = {"mu", "sigma"} - set(statistics)
        if missing:
            raise MetricError(
                f"{self.name} needs mu and sigma, the statistics have {sorted(statistics)}: features are for KID"
            )
        self._given = Gaussian(statistics["mu"].double(), statistics["sigma"].double())

    def compute(self) -> float | None:
        reference = self._given or (self._reference.gaussian() if self._reference.count > 1 else None)
        if reference is None or self._counted.count < 2:
            return None
        return frechet_distance(self._counted.gaussian(), reference)
