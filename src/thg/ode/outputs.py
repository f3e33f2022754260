"""A point of a run, and the kinds of network outputs there: noise (eps), data (x0), v and velocity.

A state is `x = alpha * x0 + sigma * eps`. Each kind of output is a combination of x0 and eps, so state and output are
two linear equations in two unknowns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from thg.errors import ScheduleError

if TYPE_CHECKING:
    from torch import Tensor

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


def convert(node: Node, kind: Prediction, wanted: Prediction, x: Tensor, output: Tensor) -> Tensor:
    """An output of a kind at the state x as another kind."""
    if kind == wanted:
        return output
    p, q = express(node, kind, content(node, wanted))
    return p * x + q * output


Array = NDArray[np.float64]


def log_snr(alpha: ArrayLike, sigma: ArrayLike) -> Array:
    """log(alpha^2 / sigma^2), with infinities where one of them is 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(2 * (np.log(alpha) - np.log(sigma)), dtype=np.float64)
