"""Noise schedules: how much signal and noise the state holds at each step, and what a network output means there.

A state is `x = alpha * x0 + sigma * eps`. This module knows alpha and sigma on the fine grid t_0 ... t_N of a run and
at any time in between, and how the four kinds of network output (eps, v, x0, flow) follow from one another. It knows
nothing of solvers, plans or guidance; `thg.read_schedule` reads the schedulers of diffusers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from thg.errors import ScheduleError

Array = NDArray[np.float64]
Prediction = Literal["epsilon", "v_prediction", "sample", "flow"]
Spacing = Literal["leading", "trailing", "linspace"]


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


def log_snr(alpha: ArrayLike, sigma: ArrayLike) -> Array:
    """log(alpha^2 / sigma^2), with infinities where one of them is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(2 * (np.log(alpha) - np.log(sigma)), dtype=np.float64)


# -- what a network output means


def content(node: Node, kind: Prediction) -> tuple[float, float]:
    """The weights of x0 and eps in an output of this kind at this node."""
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
        raise ScheduleError(
            f"a network output of kind {kind!r} says nothing about the rest of the state at time {node.time:g}, where "
            f"alpha is {node.alpha:g} and sigma is {node.sigma:g}; start the grid a little later, or use a model that "
            "predicts 'v_prediction' or 'flow'"
        )
    p = (wanted[0] * on_eps - wanted[1] * on_x0) / determinant
    q = (node.alpha * wanted[1] - node.sigma * wanted[0]) / determinant
    return p, q


# -- alpha and sigma at any time


class NoiseCurve(Protocol):
    """alpha and sigma as functions of time, for a state of unit variance or on the straight flow path."""

    def levels(self, time: Array) -> tuple[Array, Array]:
        """alpha and sigma at these times."""

    def network_time(self, time: float) -> float:
        """The time to tell the network (clipped to what it was trained on)."""


@dataclass(frozen=True)
class VPCurve:
    """The continuous variance-preserving schedule, beta(t) linear, t in (0, 1]."""

    beta_min: float = 0.1
    beta_max: float = 20.0

    def levels(self, time: Array) -> tuple[Array, Array]:
        log_alpha = -0.25 * time**2 * (self.beta_max - self.beta_min) - 0.5 * time * self.beta_min
        return np.exp(log_alpha), np.sqrt(-np.expm1(2 * log_alpha))

    def network_time(self, time: float) -> float:
        return time


@dataclass(frozen=True)
class FlowCurve:
    """Flow matching: x = (1 - t) x0 + t eps, with time counted from 0 to `horizon`."""

    horizon: float = 1000.0

    def levels(self, time: Array) -> tuple[Array, Array]:
        sigma = time / self.horizon
        return 1 - sigma, sigma

    def network_time(self, time: float) -> float:
        return time


@dataclass(frozen=True, eq=False)
class TableCurve:
    """sigma/alpha tabulated over increasing times and linear in between, as diffusers does it."""

    times: Array
    ratios: Array
    last_time: float

    @classmethod
    def from_alphas_cumprod(cls, alphas_cumprod: Array, grid_ratios: Sequence[float] = ()) -> TableCurve:
        """The table of a training run: times 0 .. T-1, and clean data at -1.

        Noise levels of a grid above the last training level are put behind it, one time unit each.
        """
        if not np.all((alphas_cumprod > 0) & (alphas_cumprod < 1)):
            raise ScheduleError(
                "the cumulative product of alphas must lie strictly between 0 and 1; a value of 0 (zero terminal SNR) "
                "cannot be stepped from in eps form: make the scheduler with rescale_betas_zero_snr=False"
            )
        ratios = np.sqrt((1 - alphas_cumprod) / alphas_cumprod)
        beyond = sorted({r for r in grid_ratios if r > ratios[-1] * (1 + 1e-5)})  # more than rounding
        table = np.concatenate([[0.0], ratios, beyond])
        return cls(np.arange(len(table), dtype=np.float64) - 1, table, float(len(ratios) - 1))

    def levels(self, time: Array) -> tuple[Array, Array]:
        ratio = np.interp(time, self.times, self.ratios)
        alpha = 1 / np.sqrt(1 + ratio**2)
        return alpha, ratio * alpha

    def time_of(self, ratio: ArrayLike) -> Array:
        return np.asarray(np.interp(np.asarray(ratio), self.ratios, self.times))

    def network_time(self, time: float) -> float:
        return min(max(time, 0.0), self.last_time)


# -- the fine grid of a run


@dataclass(frozen=True, eq=False)
class Schedule:
    """The fine grid of one run: t_0 ... t_N with alpha and sigma at each, and everything in between.

    What most people call: `Schedule.from_betas(betas, steps)` or
    `Schedule.flow(steps)`; then `thg.sample(..., schedule, ...)`.

    What few touch:
        nodes: the N+1 points of the grid; step i starts at nodes[i].
        landings: where step i ends. It is nodes[i+1], but for DDIM and PNDM of diffusers on grids that the number of
            steps does not divide: they end a step at `t_i - T // N`, beside the next timestep.
        curve: alpha and sigma at any time.
        curve_times: the time of each node on the curve; `nodes[i].time`, what the network is told, may be rounded.
        prediction: the kind of output the network gives.
        exploding: the state is x / alpha (Euler and LMS of diffusers), and the network sees it at unit variance.
    """

    nodes: tuple[Node, ...]
    landings: tuple[Node, ...]
    curve: NoiseCurve
    curve_times: tuple[float, ...]
    prediction: Prediction = "epsilon"
    exploding: bool = False

    def __post_init__(self) -> None:
        if self.prediction not in get_args(Prediction):
            raise ScheduleError(f"prediction must be one of {', '.join(get_args(Prediction))}, not {self.prediction!r}")
        if self.steps < 1:
            raise ScheduleError(f"a schedule needs at least 1 step, not {self.steps}")
        for before, after in zip(self.nodes, self.nodes[1:], strict=False):
            if not after.log_snr >= before.log_snr:
                raise ScheduleError(
                    f"the noise must fall along the grid, but from step {before.position:g} to {after.position:g} the "
                    f"log-SNR goes from {before.log_snr:.4g} to {after.log_snr:.4g}"
                )

    # -- made from

    @classmethod
    def on_curve(cls, curve: NoiseCurve, times: ArrayLike, prediction: Prediction = "epsilon") -> Schedule:
        """The grid of these (falling) times on a curve."""
        grid = np.asarray(times, dtype=np.float64)
        alpha, sigma = curve.levels(grid)
        nodes = tuple(
            Node(float(i), curve.network_time(float(t)), float(a), float(s))
            for i, (t, a, s) in enumerate(zip(grid, alpha, sigma, strict=True))
        )
        return cls(nodes, nodes[1:], curve, tuple(grid.tolist()), prediction)

    @classmethod
    def from_betas(
        cls,
        betas: ArrayLike,
        steps: int,
        *,
        prediction: Prediction = "epsilon",
        spacing: Spacing = "trailing",
        steps_offset: int = 0,
        set_alpha_to_one: bool = True,
    ) -> Schedule:
        """A grid of `steps` over the training schedule `betas`; the keywords mean what they mean in diffusers."""
        betas = np.asarray(betas, dtype=np.float64)
        if betas.ndim != 1 or not np.all((betas > 0) & (betas < 1)):
            raise ScheduleError(f"betas must be a sequence of numbers between 0 and 1, not of shape {betas.shape}")
        total = len(betas)
        if not 1 <= steps <= total:
            raise ScheduleError(f"steps must lie between 1 and the {total} training steps, not {steps}")
        if spacing == "leading":
            times = np.arange(steps)[::-1] * (total // steps) + float(steps_offset)
        elif spacing == "trailing":
            times = np.round(total - np.arange(steps) * (total / steps)) - 1.0
        elif spacing == "linspace":
            times = np.linspace(total - 1, 0, steps)
        else:
            raise ScheduleError(f"spacing must be one of {', '.join(get_args(Spacing))}, not {spacing!r}")
        last = -1.0 if set_alpha_to_one else 0.0
        return cls.on_curve(
            TableCurve.from_alphas_cumprod(np.cumprod(1 - betas)), np.append(times, last), prediction=prediction
        )

    @classmethod
    def vp(cls, steps: int, *, beta_min: float = 0.1, beta_max: float = 20.0, final_time: float = 1e-3) -> Schedule:
        """The continuous variance-preserving schedule on a uniform grid from 1 to `final_time`."""
        return cls.on_curve(VPCurve(beta_min, beta_max), np.linspace(1.0, final_time, steps + 1))

    @classmethod
    def flow(cls, steps: int, *, shift: float = 1.0, horizon: float = 1000.0) -> Schedule:
        """Flow matching from noise (time `horizon`) to data (0), with the usual `shift` towards noise."""
        sigma = np.linspace(1.0, 0.0, steps + 1)
        sigma = shift * sigma / (1 + (shift - 1) * sigma)
        return cls.on_curve(FlowCurve(horizon), sigma * horizon, prediction="flow")

    # -- the grid

    @property
    def steps(self) -> int:
        """N."""
        return len(self.nodes) - 1

    @property
    def times(self) -> Array:
        return np.array([node.time for node in self.nodes])

    @property
    def alpha(self) -> Array:
        return np.array([node.alpha for node in self.nodes])

    @property
    def sigma(self) -> Array:
        return np.array([node.sigma for node in self.nodes])

    @property
    def log_snr(self) -> Array:
        return log_snr(self.alpha, self.sigma)

    def node(self, position: float) -> Node:
        """The point at a position of the fine grid; between two nodes, the curve at the time in between."""
        if not 0 <= position <= self.steps:
            raise ScheduleError(f"position {position:g} lies outside the grid of {self.steps} steps")
        i = math.floor(position)
        if i == position:
            return self.nodes[i]
        share = position - i
        time = (1 - share) * self.curve_times[i] + share * self.curve_times[i + 1]
        alpha, sigma = self.levels_at(time)
        return Node(position, self.curve.network_time(time), float(alpha), float(sigma))

    def regrid(self, steps: int) -> Schedule:
        """The same run in another number of steps, times spread along this grid as evenly as this grid spreads them."""
        positions = np.linspace(0, self.steps, steps + 1).tolist()
        nodes = tuple(self.node(p)._replace(position=float(i)) for i, p in enumerate(positions))
        times = np.interp(positions, range(self.steps + 1), self.curve_times)
        return Schedule(nodes, nodes[1:], self.curve, tuple(times.tolist()), self.prediction, self.exploding)

    # -- any time

    def levels_at(self, time: ArrayLike) -> tuple[Array, Array]:
        """alpha and sigma of the state at any time, also between grid points."""
        alpha, sigma = self.curve.levels(np.asarray(time, dtype=np.float64))
        return (np.ones_like(alpha), sigma / alpha) if self.exploding else (alpha, sigma)

    def alpha_at(self, time: ArrayLike) -> Array:
        return self.levels_at(time)[0]

    def sigma_at(self, time: ArrayLike) -> Array:
        return self.levels_at(time)[1]

    def log_snr_at(self, time: ArrayLike) -> Array:
        return log_snr(*self.levels_at(time))

    # -- the border to the network

    @property
    def normal(self) -> Prediction:
        """The one kind of output that thg computes with: the velocity on a flow model, eps on every other."""
        return "flow" if self.prediction == "flow" else "epsilon"

    def network_input(self, x: Tensor, node: Node) -> Tensor:
        """The state as the network was trained to see it."""
        return x / math.hypot(node.alpha, node.sigma) if self.exploding else x

    def normalise(self, x: Tensor, output: Tensor, node: Node) -> Tensor:
        """The network's output at the state x as eps (or as velocity, for flow)."""
        if self.prediction == self.normal:
            return output
        p, q = express(node, self.prediction, content(node, self.normal))
        return p * x + q * output
