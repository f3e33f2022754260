"""The Frechet distance of two sets of features: of the Gaussians that are fitted to them.

FD = |mu_r - mu_g|^2 + tr(S_r + S_g - 2 (S_r S_g)^(1/2))          paper, appendix "More details for metrics"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from thg.bench.metrics.base import Embedder, MetricError, SetMetric
from thg.prompts import DataError


class Gaussian(NamedTuple):
    """Mean and covariance, float64."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Gaussian:
        """Fitted to rows of features; the covariance is the unbiased one."""
        values = rows.cpu().double()
        return cls(values.mean(0), values.T.cov())


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


class FrechetMetric(SetMetric):
    """Frechet distance between the features of the samples and of the references."""

    def __init__(self, embed: Embedder, name: str = "frechet", hears: bool = False):
        super().__init__(embed)
        self.name, self.hears = name, hears
        self._reference: Gaussian | None = None

    def use_statistics(self, statistics: Mapping[str, torch.Tensor]) -> None:
        if not {"mu", "sigma"} <= set(statistics):
            raise MetricError(f"{self.name} needs mu and sigma, the statistics have {sorted(statistics)}")
        self._reference = Gaussian(statistics["mu"].double(), statistics["sigma"].double())

    def reduce(self, rows: torch.Tensor) -> float | None:
        if self._reference is None or len(rows) < 2:
            return None
        return frechet_distance(Gaussian.of(rows), self._reference)


def read_statistics(path: Path) -> dict[str, torch.Tensor]:
    """The tensors for `SetMetric.use_statistics`: `mu` and `sigma`, of a safetensors file."""
    try:
        statistics: dict[str, torch.Tensor] = load_file(path)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(f"cannot read the statistics {path}: {error}") from error
    mu, sigma = (tuple(statistics.get(name, torch.empty(0, 0)).shape) for name in ("mu", "sigma"))
    if len(mu) != 1 or sigma != (*mu, *mu):
        raise DataError(f"{path} has {sorted(statistics)}: statistics have mu, a row, and sigma, its covariance")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in statistics.values()):
        raise DataError(f"{path} holds NaN or infinity: compute the statistics again")
    return statistics
