"""Noise curves, alpha and sigma as functions of the network's own time, and the kinds of network outputs.

Time is in the network's own units. `at_noise` and `at_data` are the times at the two ends: 1 and 0, 0 and 1, or
999 and 0.

A state is `x = alpha * x0 + sigma * eps`. Each kind of output, noise (eps), data (x0), v and velocity, is a combination
of x0 and eps, so state and output are two linear equations in two unknowns.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thg.errors import ScheduleError

Prediction = Literal["epsilon", "v_prediction", "sample", "flow"]


class Node(NamedTuple):
    """One point of a run: its position on the fine grid (step index, may be fractional), time, alpha and sigma."""

    position: float
    time: float
    alpha: float
    sigma: float

    @property
    def log_snr(self) -> float:
        """log(alpha^2 / sigma^2): infinite for clean data, minus infinite for pure noise."""
        if self.alpha == 0 or self.sigma == 0:
            return math.inf if self.alpha else -math.inf
        return 2 * math.log(self.alpha / self.sigma)


def content(node: Node, kind: Prediction) -> tuple[float, float]:
    """The weights of x0 and eps in an output of this kind at this node. The velocity ("flow") is eps - x0."""
    if kind == "epsilon":
        return 0.0, 1.0
    if kind == "sample":
        return 1.0, 0.0
    if kind == "flow":
        return -1.0, 1.0
    size = math.hypot(node.alpha, node.sigma)  # v is defined on the state of unit variance; 1 unless the state is VE
    return -node.sigma / size, node.alpha / size


def express(node: Node, kind: Prediction, wanted: tuple[float, float]) -> tuple[float, float]:
    """(p, q) such that `p * x + q * output` holds `wanted` = (weight of x0, weight of eps).

    With `wanted = content(node, other)` it turns one kind of output into another; with `wanted = (alpha_s, sigma_s)` it
    is the DDIM step to s. Both are the same two linear equations, because x = alpha x0 + sigma eps.
    """
    on_x0, on_eps = content(node, kind)
    determinant = node.alpha * on_eps - node.sigma * on_x0
    if determinant == 0:
        state, rest = ("pure noise", "data") if node.alpha == 0 else ("clean data", "noise")
        raise ScheduleError(
            f"at time {node.time:g} the state is {state} (alpha {node.alpha:g}, sigma {node.sigma:g}), where an output "
            f"of kind {kind!r} does not determine the {rest}; start the grid a little later, or use a network and a "
            "solver of another kind, such as 'v_prediction' or 'flow'"
        )
    p = (wanted[0] * on_eps - wanted[1] * on_x0) / determinant
    q = (node.alpha * wanted[1] - node.sigma * wanted[0]) / determinant
    return p, q


Array = NDArray[np.float64]


def log_snr(alpha: ArrayLike, sigma: ArrayLike) -> Array:
    """log(alpha^2 / sigma^2), with infinities where one of them is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(2 * (np.log(alpha) - np.log(sigma)), dtype=np.float64)


class NoiseCurve(Protocol):
    """alpha and sigma as functions of time."""

    @abstractmethod
    def levels(self, time: Array) -> tuple[Array, Array]:
        """alpha and sigma at these times."""

    def network_time(self, time: float) -> float:
        """The time to pass to the network (clipped to the range of training)."""
        return time


@dataclass(frozen=True)
class VPCurve(NoiseCurve):
    """The continuous variance-preserving schedule, beta linear from data to noise."""

    beta_min: float = 0.1
    beta_max: float = 20.0
    at_noise: float = 1.0
    at_data: float = 0.0

    def levels(self, time: Array) -> tuple[Array, Array]:
        share = (time - self.at_data) / (self.at_noise - self.at_data)
        log_alpha = -0.25 * share**2 * (self.beta_max - self.beta_min) - 0.5 * share * self.beta_min
        return np.exp(log_alpha), np.sqrt(-np.expm1(2 * log_alpha))


@dataclass(frozen=True)
class VECurve(NoiseCurve):
    """The variance-exploding state x0 + sigma eps of EDM and k-diffusion; its time is sigma."""

    def levels(self, time: Array) -> tuple[Array, Array]:
        return np.ones_like(time), time


@dataclass(frozen=True)
class FlowCurve(NoiseCurve):
    """Flow matching, the straight path: x = (1 - s) x0 + s eps with s from 0 at data to 1 at noise."""

    at_noise: float
    at_data: float = 0.0

    def levels(self, time: Array) -> tuple[Array, Array]:
        sigma = (time - self.at_data) / (self.at_noise - self.at_data)
        return 1 - sigma, sigma


@dataclass(frozen=True, eq=False)
class TableCurve(NoiseCurve):
    """sigma/alpha tabulated over the times of a training schedule and linear in between, as diffusers does it.

    times: from data to noise, evenly spaced; the first is that of clean data, one step before the first of training.
    trained: the times of the first and the last training step.
    """

    times: Array
    ratios: Array
    trained: tuple[float, float]

    @classmethod
    def from_alphas_cumprod(
        cls,
        alphas_cumprod: Array,
        grid_ratios: Sequence[float] = (),
        *,
        at_noise: float | None = None,
        at_data: float = 0.0,
    ) -> TableCurve:
        """The table of a training run of T steps: times 0 .. T-1 unless the ends are given, and clean data before.

        Noise levels of a grid above the last training level are appended, one time unit each.
        """
        if not np.all((alphas_cumprod > 0) & (alphas_cumprod < 1)):
            raise ScheduleError(
                "the cumulative product of alphas must lie strictly between 0 and 1; a value of 0 (zero terminal SNR) "
                "cannot be stepped from in eps form: make the scheduler with rescale_betas_zero_snr=False"
            )
        ratios = np.sqrt((1 - alphas_cumprod) / alphas_cumprod)
        beyond = sorted({r for r in grid_ratios if r > ratios[-1] * (1 + 1e-5)})  # more than rounding
        table = np.concatenate([[0.0], ratios, beyond])
        last = float(len(ratios) - 1)
        unit = 1.0 if at_noise is None else (at_noise - at_data) / max(last, 1.0)
        times = at_data + unit * (np.arange(len(table), dtype=np.float64) - 1)
        return cls(times, table, (float(times[1]), float(times[len(ratios)])))

    def levels(self, time: Array) -> tuple[Array, Array]:
        direction = 1.0 if self.times[-1] > self.times[0] else -1.0  # np.interp needs increasing times
        ratio = np.interp(direction * np.asarray(time), direction * self.times, self.ratios)
        alpha = 1 / np.sqrt(1 + ratio**2)
        return alpha, ratio * alpha

    def time_of(self, ratio: ArrayLike) -> Array:
        return np.asarray(np.interp(np.asarray(ratio), self.ratios, self.times))

    def network_time(self, time: float) -> float:
        low, high = sorted(self.trained)
        return min(max(time, low), high)
