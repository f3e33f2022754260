"""Distances of two sets of features: Frechet (Gaussians fitted to them) and MMD (a kernel); and files of statistics.

    FD = |mu_r - mu_g|^2 + tr(S_r + S_g - 2 (S_r S_g)^(1/2))          paper, appendix "More details for metrics"

Memory: the features in float32 (246 MB for 30,000 samples of Inception's 2048), for MMD three times that.
"""

from __future__ import annotations

import zipfile
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from thg.bench.metrics.base import Embedder, MetricError, SetMetric
from thg.prompts import DataError

BLOCK = 1024
"""Rows that are in float64 at a time: 1024 x 30,000 values of a kernel are 246 MB."""


class Gaussian(NamedTuple):
    """Mean and covariance, float64."""

    mean: torch.Tensor
    covariance: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> Gaussian:
        """Fitted to rows of features; the covariance is the unbiased one. In blocks, to spare memory."""
        blocks = torch.split(rows.cpu(), BLOCK)
        mean = torch.stack([block.double().sum(0) for block in blocks]).sum(0) / len(rows)
        scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for block in blocks:
            centred = block.double() - mean
            scatter += centred.T @ centred
        return cls(mean, scatter / (len(rows) - 1))


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

    def __init__(self, embed: Embedder):
        super().__init__(embed)
        self._reference: Gaussian | None = None

    def use_rows(self, rows: torch.Tensor) -> None:
        super().use_rows(rows)
        self._reference = Gaussian.of(rows) if len(rows) > 1 else None

    def use_statistics(self, statistics: Mapping[str, torch.Tensor]) -> None:
        if not {"mu", "sigma"} <= set(statistics):
            raise MetricError(
                f"{self.name} needs mu and sigma, the statistics have {sorted(statistics)}: features are for KID"
            )
        self._reference = Gaussian(statistics["mu"].double(), statistics["sigma"].double())

    def reduce(self, rows: torch.Tensor) -> float | None:
        if self._reference is None or len(rows) < 2:
            return None
        return frechet_distance(Gaussian.of(rows), self._reference)


Kernel = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def gaussian_kernel(sigma: float) -> Kernel:
    """exp(-|x - y|^2 / (2 sigma^2))."""

    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(1)[:, None] + y.square().sum(1)[None, :] - 2 * x @ y.T
        return torch.exp(squares / (-2 * sigma**2))

    return kernel


def cubic_kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """(x.y / d + 1)^3, of Binkowski et al., "Demystifying MMD GANs" (2018)."""
    return (x @ y.T / x.shape[1] + 1) ** 3


def mmd(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, unbiased: bool) -> float:
    """mean k(x, x') + mean k(y, y') - 2 mean k(x, y): Gretton et al. (2012), equation 5.

    unbiased: without the terms of a sample with itself, equation 3.
    """
    return _mean(x, x, kernel, unbiased) + _mean(y, y, kernel, unbiased) - 2 * _mean(x, y, kernel, False)


def _mean(x: torch.Tensor, y: torch.Tensor, kernel: Kernel, of_others: bool) -> float:
    x, y, total = x.double(), y.double(), 0.0
    for start in range(0, len(x), BLOCK):
        values = kernel(x[start : start + BLOCK], y)
        total += float(values.sum() - (values.diagonal(offset=start).sum() if of_others else 0))
    return total / (len(x) * (len(y) - of_others))


class KernelMetric(SetMetric):
    """Base of the metrics that compare all features with all features."""

    @abstractmethod
    def distance(self, samples: torch.Tensor, references: torch.Tensor) -> float:
        """The number for two sets of features."""

    def use_statistics(self, statistics: Mapping[str, torch.Tensor]) -> None:
        if "features" not in statistics:
            raise MetricError(
                f"{self.name} needs the features themselves, the statistics have {sorted(statistics)}: "
                "mu and sigma are enough for a Frechet distance only; give the folder of references instead"
            )
        self.use_rows(statistics["features"].float())

    def reduce(self, rows: torch.Tensor) -> float | None:
        references = self._reference_rows
        if len(rows) < 2 or len(references) < 2:
            return None
        if rows.shape[1] != references.shape[1]:
            raise MetricError(
                f"{self.name}: {rows.shape[1]} features against {references.shape[1]}: the reference is of another "
                "network"
            )
        return self.distance(rows, references)


def read_statistics(path: Path) -> dict[str, torch.Tensor]:
    """The tensors for `SetMetric.use_statistics`: `mu` and `sigma` for a Frechet distance, `features` for KID and CMMD.

    From safetensors, or the npz files of clean-fid (whose features are called `feats`), read without pickle.
    """
    if path.suffix not in (".safetensors", ".npz"):
        raise DataError(f"{path} ends in {path.suffix!r}: statistics are read from .safetensors or .npz")
    try:
        statistics: dict[str, torch.Tensor] = load_file(path) if path.suffix == ".safetensors" else _read_npz(path)
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read the statistics {path}: {error}") from error
    shapes = {name: tuple(tensor.shape) for name, tensor in statistics.items()}
    features, mu, sigma = (shapes.get(name) for name in ("features", "mu", "sigma"))
    if features is not None:
        if len(features) != 2:
            raise DataError(f"{path}: features have shape {features}, not (samples, features)")
    elif mu is None or sigma is None:
        raise DataError(f"{path} has {sorted(shapes)}: statistics have mu and sigma (Frechet) or features (KID, CMMD)")
    elif len(mu) != 1 or sigma != (*mu, *mu):
        raise DataError(f"{path}: mu of shape {mu} and sigma of shape {sigma} do not belong together")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in statistics.values()):
        raise DataError(f"{path} holds NaN or infinity: compute the statistics again")
    return statistics


def _read_npz(path: Path) -> dict[str, torch.Tensor]:
    with np.load(path, allow_pickle=False) as file:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(file[name])) for name in file.files}
    return {"features" if name == "feats" else name: tensor for name, tensor in tensors.items()}
