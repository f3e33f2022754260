"""An exact model: a class-conditional Gaussian mixture, whose score is known in closed form at every noise level.

As a denoiser it is a perfect network without weights: the tests of orders and identities use it, and the method can be
tried in a second on any machine.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thg.errors import THGError
from thg.ode.network import Denoiser
from thg.ode.outputs import Node
from thg.ode.schedule import Schedule


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """Isotropic Gaussians with class labels, in any dimension.

    means: (K, D). stds: (K,). weights: (K,), positive; they need not sum to 1. labels: (K,), the class of each.
    The unconditional density is the whole mixture, that of a class consists of its own components.
    """

    means: Tensor
    stds: Tensor
    weights: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        count = self.means.shape[0] if self.means.ndim == 2 else -1
        if any(t.shape != (count,) for t in (self.stds, self.weights, self.labels)):
            raise THGError(
                "a mixture of K Gaussians in D dimensions has means (K, D), and stds, weights and labels (K,), not "
                f"{[tuple(t.shape) for t in (self.means, self.stds, self.weights, self.labels)]}"
            )

    @classmethod
    def random(cls, classes: int = 3, per_class: int = 2, dimension: int = 2, seed: int = 0) -> GaussianMixture:
        """A mixture of overlapping classes: means with unit variance, components of std 0.2 to 0.5."""
        rng = np.random.default_rng(seed)
        count = classes * per_class
        return cls(
            means=torch.from_numpy(rng.normal(size=(count, dimension))),
            stds=torch.from_numpy(rng.uniform(0.2, 0.5, size=count)),
            weights=torch.from_numpy(rng.uniform(0.5, 1.5, size=count)),
            labels=torch.arange(classes).repeat_interleave(per_class),
        )

    @property
    def dimension(self) -> int:
        return self.means.shape[1]

    def score(self, x: Tensor, alpha: float, sigma: float, label: int | None = None) -> Tensor:
        """The gradient of the log density of alpha x0 + sigma eps, with x0 of this class (None: of all)."""
        return -self._split(x, alpha, sigma, label)[1] / sigma

    def denoiser(self, schedule: Schedule, label: int) -> Denoiser:
        """The mixture as a network on this schedule: conditional on `label`, in the schedule's prediction kind.

        Latents may have any shape (B, ...) with D values per sample.
        """

        def denoiser(x: Tensor, t: float, conditional: bool, /) -> Tensor:
            alpha, sigma = (float(level) for level in schedule.curve.levels(np.asarray(t)))
            x0, eps = self._split(x.flatten(1), alpha, sigma, label if conditional else None)
            on_x0, on_eps = schedule.output_content(Node(0.0, t, alpha, sigma))
            return (on_x0 * x0 + on_eps * eps).reshape(x.shape).to(x.dtype)

        return denoiser

    def draw(self, count: int, label: int | None = None, seed: int = 0) -> Tensor:
        """Samples of the data (count, D), of this class or of all."""
        generator = torch.Generator().manual_seed(seed)
        means, stds, weights = self._components(label)
        chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
        noise = torch.randn(count, self.dimension, dtype=means.dtype, generator=generator)
        return means[chosen] + stds[chosen, None] * noise

    def _components(self, label: int | None) -> tuple[Tensor, Tensor, Tensor]:
        if label is None:
            return self.means, self.stds, self.weights
        mine = self.labels == label
        if not bool(mine.any()):
            raise THGError(f"there is no class {label}; the classes are {sorted(set(self.labels.tolist()))}")
        return self.means[mine], self.stds[mine], self.weights[mine]

    def _split(self, x: Tensor, alpha: float, sigma: float, label: int | None) -> tuple[Tensor, Tensor]:
        """The posterior means of x0 and eps given the state x (B, D)."""
        means, stds, weights = self._components(label)
        variance = alpha**2 * stds**2 + sigma**2  # of alpha x0 + sigma eps, per component
        offset = x[:, None, :].to(means.dtype) - alpha * means  # (B, K, D)
        log_density = weights.log() - 0.5 * self.dimension * variance.log() - 0.5 * offset.square().sum(-1) / variance
        share = log_density.softmax(dim=1)  # of each component in the state, (B, K)
        x0 = share @ means + torch.einsum("bk,bkd->bd", share * (alpha * stds**2 / variance), offset)
        eps = torch.einsum("bk,bkd->bd", share * (sigma / variance), offset)
        return x0, eps
