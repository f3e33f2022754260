"""Solvers of the diffusion ODE, as coefficients: `x_s = a x_t + sum_k b_k m_k` for any t -> s and any history.

A solver is data and one function that gives a and b. `observe` and `advance` apply any of them to a `Track`, the state
and history of one equation: the whole state, or the tortoise's or the hare's share of it. Solvers are linear: the
result for a sum is the sum of the results for its parts, which is why Algorithm 1 can split the equation.

Most users need `ddim()` or `euler()`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from thg.errors import ScheduleError
from thg.ode.outputs import Node, Prediction, content, express
from thg.plans.leaps import lagrange_weights

if TYPE_CHECKING:
    from torch import Tensor

MAX_ORDER = 4  # of the linear multistep methods: what the two-point quadrature below integrates exactly
_GAUSS = (0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6)


class Solver(Protocol):
    """The interface of a solver."""

    @property
    def order(self) -> int:
        """p of the paper's m_max: the global error decreases with the p-th power of the step."""

    @property
    def memory(self) -> int:
        """The most outputs that a step uses, including the newest."""

    @property
    def stages(self) -> int:
        """Outputs per complete step: 2 for a singlestep method of order 2, else 1."""

    def works_in(self, normal: Prediction) -> Prediction:
        """The kind of output it integrates, given the kind that the schedule computes with."""

    def coefficients(self, path: Sequence[Node], target: Node, kind: Prediction) -> tuple[float, tuple[float, ...]]:
        """a and b of the step from path[-1] to target; b is for the outputs at the last nodes of path, oldest first."""


# -- state and history of one equation


@dataclass(frozen=True, eq=False)
class Track:
    """The state of one equation and its solver's history: where outputs were taken, and the last of them."""

    x: Tensor
    path: tuple[Node, ...] = ()
    outputs: tuple[Tensor, ...] = ()


def observe(track: Track, solver: Solver, node: Node, output: Tensor, normal: Prediction) -> Track:
    """The track with one more output, taken at `node` where the state is `track.x`."""
    kind = solver.works_in(normal)
    if kind != normal:  # dpmsolver++ integrates x0, which depends on the state as well
        p, q = express(node, normal, content(node, kind))
        output = _combined(p, track.x, (q,), (output,))
    return Track(track.x, (*track.path, node), (*_newest(track.outputs, solver.memory - 1), output))


def advance(track: Track, solver: Solver, target: Node, normal: Prediction) -> Tensor:
    """Solver(x, outputs, t, s): the state at `target`, from the newest output on."""
    a, b = solver.coefficients(track.path, target, solver.works_in(normal))
    return _combined(a, track.x, b, track.outputs[-len(b) :])


def step(track: Track, solver: Solver, node: Node, output: Tensor, target: Node, normal: Prediction) -> Track:
    """Observe an output, advance the state to `target`, and drop what no later step can use."""
    track = observe(track, solver, node, output, normal)
    return Track(advance(track, solver, target, normal), track.path, _newest(track.outputs, solver.memory - 1))


def _newest(outputs: tuple[Tensor, ...], count: int) -> tuple[Tensor, ...]:
    return outputs[max(0, len(outputs) - count) :]


def _combined(a: float, x: Tensor, b: Sequence[float], outputs: Sequence[Tensor]) -> Tensor:
    """a x + sum_k b_k m_k, in one new tensor."""
    total = a * x
    for weight, output in zip(b, outputs, strict=True):
        total.add_(output, alpha=weight)
    return total


# -- linear multistep: DDIM, Euler, LMS, PLMS


@dataclass(frozen=True)
class LinearMultistep:
    """The DDIM step on a weighted mean of the last outputs, with the weights of Adams-Bashforth.

    At order 1 it is DDIM, and Euler in sigma space and on the flow path: all three hold the output over the step.
    """

    order: int = 2
    pseudo: bool = False
    """False: Adams-Bashforth in sigma/alpha (in sigma on the flow path), where the ODE is dx/dsigma = output.
    True: in the position on the fine grid, so with constant weights on it (PLMS)."""
    stages: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not 1 <= self.order <= MAX_ORDER:
            raise ScheduleError(f"a linear multistep method has an order from 1 to {MAX_ORDER}, not {self.order}")

    @property
    def memory(self) -> int:
        return self.order

    def works_in(self, normal: Prediction) -> Prediction:
        return normal

    def coefficients(self, path: Sequence[Node], target: Node, kind: Prediction) -> tuple[float, tuple[float, ...]]:
        a, b = express(path[-1], kind, (target.alpha, target.sigma))
        if self.order == 1 or len(path) == 1:
            return a, (b,)
        used = [self._variable(node, kind) for node in path[-self.order :]]
        return a, tuple(b * w for w in adams_weights(used, self._variable(target, kind)))

    def _variable(self, node: Node, kind: Prediction) -> float:
        if self.pseudo:
            return node.position
        return node.sigma if kind == "flow" else node.sigma / node.alpha


def adams_weights(nodes: Sequence[float], target: float) -> tuple[float, ...]:
    """Weights that give the mean, from nodes[-1] to target, of the polynomial through values at the nodes."""
    start = nodes[-1]
    points = [lagrange_weights(nodes, start + (target - start) * share) for share in _GAUSS]
    return tuple(0.5 * (first + second) for first, second in zip(*points, strict=True))


# -- DPM-Solver-2


@dataclass(frozen=True)
class DPMSolver2:
    """DPM-Solver of order 2: exponential integrators in half the log-SNR, lambda = log(alpha/sigma).

    predicts: "sample" is DPM-Solver++ (integrates x0), "epsilon" DPM-Solver.
    singlestep: steps come in pairs; the second begins again where the pair began and uses both outputs.
    correction: how the slope of the output is weighed, `solver_type` in diffusers.
    first_order_into: steps that end at this position or later are of order 1 (`lower_order_final` in diffusers).
    Steps that touch pure noise or clean data, where lambda is infinite, always are.
    """

    predicts: Literal["sample", "epsilon"] = "sample"
    singlestep: bool = False
    correction: Literal["midpoint", "heun"] = "midpoint"
    first_order_into: float = math.inf
    order: ClassVar[int] = 2
    memory: ClassVar[int] = 2

    @property
    def stages(self) -> int:
        return 2 if self.singlestep else 1

    def works_in(self, normal: Prediction) -> Prediction:
        return self.predicts

    def coefficients(self, path: Sequence[Node], target: Node, kind: Prediction) -> tuple[float, tuple[float, ...]]:
        here = path[-1]
        a, b = express(here, kind, (target.alpha, target.sigma))
        begins_pair = self.singlestep and len(path) % 2 == 1
        if len(path) == 1 or begins_pair or target.position >= self.first_order_into:
            return a, (b,)
        before = path[-2]
        if not all(math.isfinite(node.log_snr) for node in (before, here, target)):
            return a, (b,)
        if not self.singlestep:
            slope = self._slope_weight(here, target, b, before)
            return a, (slope, b - slope)
        # From `before`: x_s = a x_before + (b - slope) m_before + slope m_here. The state at `before` follows from the
        # first step of the pair, x_here = a1 x_before + b1 m_before.
        a, b = express(before, kind, (target.alpha, target.sigma))
        a1, b1 = express(before, kind, (here.alpha, here.sigma))
        slope = self._slope_weight(before, target, b, here)
        return a / a1, (b - slope - a / a1 * b1, slope)

    def _slope_weight(self, base: Node, target: Node, b: float, other: Node) -> float:
        """The weight of (m_other - m_base) in a step from `base`, where `b` is the weight of m_base at order 1."""
        h = 0.5 * (target.log_snr - base.log_snr)
        h0 = 0.5 * (other.log_snr - base.log_snr)
        if h == 0 or h0 == 0:  # a step of zero length, at the end of some grids
            return 0.0
        if self.correction == "midpoint":
            slope = 0.5 * b
        elif self.predicts == "sample":
            slope = target.alpha - b / h
        else:
            slope = target.sigma + b / h
        return slope * h / h0


# -- by name


def ddim() -> LinearMultistep:
    """DDIM: order 1, exact for a constant eps."""
    return LinearMultistep(order=1)


def euler() -> LinearMultistep:
    """Euler's method in sigma space and on the flow path; the same map as DDIM."""
    return LinearMultistep(order=1)


def lms(order: int = 2) -> LinearMultistep:
    """Adams-Bashforth with variable steps in sigma, as LMSDiscreteScheduler (whose own default is order 4)."""
    return LinearMultistep(order)


def plms(order: int = 2) -> LinearMultistep:
    """Pseudo linear multistep: DDIM steps on (3 e_i - e_(i-1)) / 2, and so on up to order 4.

    Order 4 is PNDMScheduler, except for its first step, for which diffusers evaluates the network once more.
    Order 2 is the paper's "2nd-order linear multistep method"; no scheduler of diffusers implements it.
    """
    return LinearMultistep(order, pseudo=True)


def dpm_multistep(predicts: Literal["sample", "epsilon"] = "sample") -> DPMSolver2:
    """DPM-Solver++(2M); with `predicts="epsilon"` DPM-Solver-2 as a multistep method."""
    return DPMSolver2(predicts)


def dpm_singlestep(predicts: Literal["sample", "epsilon"] = "sample") -> DPMSolver2:
    """DPM-Solver++(2S); with `predicts="epsilon"` DPM-Solver-2."""
    return DPMSolver2(predicts, singlestep=True)
