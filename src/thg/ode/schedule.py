"""The fine grid of a run: alpha and sigma at each step and in between, and the conventions of the network.

A state is `x = alpha * x0 + sigma * eps`. What the network predicts, with which sign, and in which units it takes time
is set when a schedule is made; all other code uses one convention. This module is independent of solvers, plans and
guidance; `thg.read_schedule` reads the schedulers of diffusers.
"""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from thg.errors import ScheduleError
from thg.ode.outputs import Array, Node, Prediction, content, convert, log_snr

# -- noise curves: alpha and sigma as functions of the network's own time
#
# Time is in the network's own units. `at_noise` and `at_data` are the times at the two ends: 1 and 0, 0 and 1, or
# 999 and 0.


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


# -- the grid of a run

Spacing = Literal["leading", "trailing", "linspace"]
Times = tuple[float, float]
"""The network's times at noise and at data: (1, 0), (0, 1), (999, 0)."""

SMALLEST = 2.0**-24  # of alpha squared; in place of 0 at zero terminal SNR, as in diffusers


def whole(steps: Any) -> int:
    """A number of steps as an int, from Python, numpy or torch."""
    try:
        count = operator.index(steps)
    except TypeError:
        raise ScheduleError(f"steps must be a whole number, not {steps!r}") from None
    if count < 1:
        raise ScheduleError(f"a schedule needs at least 1 step, not {count}")
    return count


def ends(time: Any) -> Times:
    """Validates the network's times at noise and at data."""
    try:
        at_noise, at_data = (float(value) for value in time)
    except (TypeError, ValueError):
        at_noise = at_data = math.nan
    if not (math.isfinite(at_noise) and math.isfinite(at_data) and at_noise != at_data):
        raise ScheduleError(
            "time must be the network's times at noise and at data, two different numbers such as time=(1, 0) or "
            f"time=(999, 0), not {time!r}"
        )
    return at_noise, at_data


def training_alphas(betas: ArrayLike, prediction: Prediction) -> Array:
    """alpha squared at each training step. The last may be 0 (zero terminal SNR) if the output still determines x0."""
    values = np.asarray(betas, dtype=np.float64)
    ends_in_noise = values.ndim == 1 and len(values) > 1 and values[-1] == 1
    if values.ndim != 1 or not len(values) or not np.all(((values > 0) & (values < 1))[: len(values) - ends_in_noise]):
        raise ScheduleError(f"betas must be a sequence of numbers between 0 and 1, not of shape {values.shape}")
    alphas_cumprod = np.cumprod(1 - values)
    if ends_in_noise and prediction in ("v_prediction", "sample"):
        alphas_cumprod[-1] = min(SMALLEST, alphas_cumprod[-2] / 2)
    return np.asarray(alphas_cumprod, dtype=np.float64)


def training_steps(spacing: Spacing, total: int, steps: int, offset: int) -> Array:
    """The training steps that a run visits, from noise to data; spacing and offset as in diffusers."""
    if steps > total:
        raise ScheduleError(f"steps must lie between 1 and the {total} training steps, not {steps}")
    if spacing == "leading":
        return np.asarray(np.arange(steps)[::-1] * (total // steps) + float(offset))
    if spacing == "trailing":
        return np.asarray(np.round(total - np.arange(steps) * (total / steps)) - 1.0)
    if spacing == "linspace":
        return np.linspace(total - 1, 0, steps)
    raise ScheduleError(f"spacing must be one of {', '.join(get_args(Spacing))}, not {spacing!r}")


def karras_sigmas(steps: int, sigma_max: float, sigma_min: float, rho: float) -> Array:
    """The grid of Karras et al. (EDM), and 0 at its end."""
    if not 0 < sigma_min < sigma_max:
        raise ScheduleError(f"sigma_min must lie above 0 and below sigma_max, not {sigma_min:g} and {sigma_max:g}")
    share = np.arange(steps) / max(steps - 1, 1)
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return np.append((high + share * (low - high)) ** rho, 0.0)


Velocity = Literal["noise-data", "data-noise"]

NEAR_NOISE = 0.999  # start of the straight path for a network that predicts eps: at pure noise it does not know x0


@dataclass(frozen=True, eq=False)
class Schedule:
    """The fine grid of one run: t_0 ... t_N with alpha and sigma at each, and everything in between.

    Common constructors: `Schedule.from_betas(betas, steps)`, `Schedule.flow(steps, time=(1, 0))`,
    `Schedule.edm(steps)` or `Schedule.vp(steps)`; then `thg.sample(..., schedule, ...)`.

    Advanced arguments:
        nodes: the N+1 points of the grid; step i starts at nodes[i].
        landings: where step i ends. This is nodes[i+1], except for DDIM and PNDM of diffusers if the number of steps
            does not divide T: they end a step at `t_i - T // N`, which differs from the next timestep.
        curve: alpha and sigma at any time.
        curve_times: the time of each node on the curve; `nodes[i].time`, the network's time, may be rounded.
        prediction: the kind of the network's output.
        exploding: the state is x / alpha (Euler and LMS of diffusers), and the network sees it at unit variance.
        velocity: the sign of a velocity, "noise-data" for eps - x0, "data-noise" for x0 - eps.
        integer_times: the network takes integer times only. Times between the steps are rounded, and alpha and sigma
            are those of the rounded time.
    """

    nodes: tuple[Node, ...]
    landings: tuple[Node, ...]
    curve: NoiseCurve
    curve_times: tuple[float, ...]
    prediction: Prediction = "epsilon"
    exploding: bool = False
    velocity: Velocity = "noise-data"
    integer_times: bool = False

    def __post_init__(self) -> None:
        if self.prediction not in get_args(Prediction):
            raise ScheduleError(f"prediction must be one of {', '.join(get_args(Prediction))}, not {self.prediction!r}")
        if self.velocity not in get_args(Velocity):
            raise ScheduleError(
                "velocity must be 'noise-data' (the network's output is eps - x0) or 'data-noise' (x0 - eps), "
                f"not {self.velocity!r}"
            )
        if self.steps < 1:
            raise ScheduleError(f"a schedule needs at least 1 step, not {self.steps}")
        for before, after in zip(self.nodes, self.nodes[1:], strict=False):
            if not after.log_snr >= before.log_snr:
                raise ScheduleError(
                    f"the noise must decrease along the grid, but from step {before.position:g} to {after.position:g} "
                    f"the log-SNR goes from {before.log_snr:.4g} to {after.log_snr:.4g}"
                )
        if self.integer_times and len({node.time for node in self.nodes[:-1]}) < self.steps:
            raise ScheduleError(
                f"{self.steps} steps do not fit into the integer times from {self.nodes[0].time:g} to "
                f"{self.nodes[-1].time:g}; use fewer steps, or integer_times=False if the network takes fractions"
            )

    # -- constructors

    @classmethod
    def on_curve(
        cls,
        curve: NoiseCurve,
        times: ArrayLike,
        prediction: Prediction = "epsilon",
        *,
        velocity: Velocity = "noise-data",
        integer_times: bool = False,
    ) -> Schedule:
        """The grid of these times, from noise to data, on a curve."""
        grid = np.asarray(times, dtype=np.float64)
        if integer_times:
            grid = np.round(grid)
        alpha, sigma = curve.levels(grid)
        nodes = tuple(
            Node(float(i), curve.network_time(float(t)), float(a), float(s))
            for i, (t, a, s) in enumerate(zip(grid, alpha, sigma, strict=True))
        )
        return cls(
            nodes, nodes[1:], curve, tuple(grid.tolist()), prediction, velocity=velocity, integer_times=integer_times
        )

    @classmethod
    def from_betas(
        cls,
        betas: ArrayLike,
        steps: int,
        *,
        prediction: Prediction = "epsilon",
        time: Times | None = None,
        integer_times: bool = False,
        spacing: Spacing = "trailing",
        steps_offset: int = 0,
        set_alpha_to_one: bool = True,
    ) -> Schedule:
        """A grid of `steps` over the training schedule `betas` of a variance-preserving network (DDPM).

        time: the network's time at the last and at the first training step; (len(betas) - 1, 0) unless given.
        integer_times: see `Schedule`. spacing, steps_offset, set_alpha_to_one: as in diffusers.
        """
        alphas_cumprod = training_alphas(betas, prediction)
        total = len(alphas_cumprod)
        at_noise, at_data = (total - 1.0, 0.0) if time is None else ends(time)
        curve = TableCurve.from_alphas_cumprod(alphas_cumprod, at_noise=at_noise, at_data=at_data)
        visited = training_steps(spacing, total, whole(steps), steps_offset)
        share = np.append(visited, -1.0 if set_alpha_to_one else 0.0) / max(total - 1, 1)
        times = at_data + (at_noise - at_data) * share
        return cls.on_curve(curve, times, prediction, integer_times=integer_times)

    @classmethod
    def vp(
        cls,
        steps: int,
        *,
        prediction: Prediction = "epsilon",
        time: Times = (1.0, 0.0),
        beta_min: float = 0.1,
        beta_max: float = 20.0,
        final_time: float = 1e-3,
    ) -> Schedule:
        """The continuous variance-preserving schedule, on a grid that is uniform in time.

        time: the network's times at noise and at data. final_time: where the grid ends, as a share of the time between
        them.
        """
        at_noise, at_data = ends(time)
        share = np.linspace(1.0, final_time, whole(steps) + 1)
        curve = VPCurve(beta_min, beta_max, at_noise, at_data)
        return cls.on_curve(curve, at_data + (at_noise - at_data) * share, prediction)

    @classmethod
    def flow(
        cls,
        steps: int,
        *,
        time: Times | None = None,
        velocity: Velocity | None = None,
        prediction: Prediction = "flow",
        shift: float = 1.0,
        integer_times: bool = False,
    ) -> Schedule:
        """Flow matching: the straight path x = (1 - s) x0 + s eps, from noise (s = 1) to data (s = 0).

        Common arguments:
            time: the network's times at noise and at data. (1, 0) if time runs from data to noise (SD3, minRF), (0, 1)
                if it runs from noise to data (torchcfm, SiT, flow_matching), (1000, 0) for networks of diffusers. It
                has no default, because both directions are common.
            velocity: "noise-data" if the network is trained on eps - x0, "data-noise" if on x0 - eps. By default it
                points in the direction of the network's time, like dx/dt: "data-noise" for time=(0, 1).

        Advanced arguments:
            prediction: "flow" is the velocity; "sample" for a network that predicts x0, "epsilon" for one that predicts
                the noise. The latter does not determine the data at pure noise, so its grid begins at s = 0.999.
            shift: of the grid towards noise. integer_times: see `Schedule`.
        """
        if time is None:
            raise ScheduleError(
                "Schedule.flow needs the network's times; write time=(1, 0) if they are 1 at noise and 0 at data, "
                "time=(0, 1) if 0 at noise and 1 at data, time=(1000, 0) for a network of diffusers"
            )
        at_noise, at_data = ends(time)
        if velocity is None:
            velocity = "noise-data" if at_noise > at_data else "data-noise"
        sigma = np.linspace(1.0, 0.0, whole(steps) + 1)
        sigma = shift * sigma / (1 + (shift - 1) * sigma)
        if prediction == "epsilon":
            sigma *= NEAR_NOISE
        times = at_data + (at_noise - at_data) * sigma
        curve = FlowCurve(at_noise, at_data)
        return cls.on_curve(curve, times, prediction, velocity=velocity, integer_times=integer_times)

    @classmethod
    def edm(
        cls,
        steps: int,
        *,
        prediction: Prediction = "sample",
        sigma_max: float = 80.0,
        sigma_min: float = 0.002,
        rho: float = 7.0,
    ) -> Schedule:
        """The variance-exploding state x0 + sigma eps on the grid of Karras et al., and a last step to sigma = 0.

        The network gets the unscaled state and sigma as its time: the denoiser D(x; sigma) of EDM, or a k-diffusion
        wrapper. The initial noise has the standard deviation sigma_max.
        """
        return cls.on_curve(VECurve(), karras_sigmas(whole(steps), sigma_max, sigma_min, rho), prediction)

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
        if self.integer_times and time == self.curve.network_time(time):  # not outside the network's range of times
            time = self._whole_time(i, time)
        alpha, sigma = self.levels_at(time)
        return Node(position, self.curve.network_time(time), float(alpha), float(sigma))

    def levels_at(self, time: ArrayLike) -> tuple[Array, Array]:
        """alpha and sigma of the state at any time, also between grid points."""
        alpha, sigma = self.curve.levels(np.asarray(time, dtype=np.float64))
        return (np.ones_like(alpha), sigma / alpha) if self.exploding else (alpha, sigma)

    def _whole_time(self, step: int, time: float) -> float:
        rounded = float(round(time))
        if rounded in self.curve_times[step : step + 2]:
            raise ScheduleError(
                f"step {step} goes from time {self.curve_times[step]:g} to {self.curve_times[step + 1]:g} and has no "
                "integer time in between, which the network needs; use fewer steps, or integer_times=False"
            )
        return rounded

    # -- the network's conventions

    @property
    def normal(self) -> Prediction:
        """The one kind of output that thg computes with: the velocity on the straight path, eps on every other.

        Each is defined at all nodes that a run starts a step from, pure noise included.
        """
        return "flow" if isinstance(self.curve, FlowCurve) else "epsilon"

    def network_input(self, x: Tensor, node: Node) -> Tensor:
        """The state as the network was trained to see it."""
        return x / math.hypot(node.alpha, node.sigma) if self.exploding else x

    def output_content(self, node: Node) -> tuple[float, float]:
        """The weights of x0 and eps in the network's output, including its sign."""
        on_x0, on_eps = content(node, self.prediction)
        return (-on_x0, -on_eps) if self._reversed else (on_x0, on_eps)

    def normalise(self, x: Tensor, output: Tensor, node: Node) -> Tensor:
        """The network's output at the state x as eps (or as the velocity eps - x0 on the straight path)."""
        if self._reversed:
            output = -output
        return convert(node, self.prediction, self.normal, x, output)

    @property
    def _reversed(self) -> bool:
        return self.prediction == "flow" and self.velocity == "data-noise"
