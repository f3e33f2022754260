"""Richardson extrapolation (Algorithm 3): the errors of the tortoise and of the hare at each step.

Each step of a plain CFG run is taken once, and again as two half steps; the difference gives the local error. The
planner turns the two errors into the longest leap that keeps the hare's below the tortoise's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.ode.network import Denoiser, Network
from thg.ode.outputs import Array, Node
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, advance, ddim, observe, step


@dataclass(frozen=True, eq=False)
class ErrorConstants:
    """|| x^(1) - x^(2) || of the tortoise and of the hare, one row per step and one column per sample.

    The paper uses these norms for || c^T || and || c^H ||: the common factor (1 - 2^-p) dt^(p+1) cancels in their
    ratio. `order` is the p of the solver.
    """

    tortoise: Array
    hare: Array
    order: int

    def local_errors(self) -> tuple[Array, Array]:
        """The estimated norms of the local errors c (dt)^(p+1) themselves: tortoise, hare."""
        share = 1 - 2.0**-self.order
        return self.tortoise / share, self.hare / share


@torch.no_grad()
def error_constants(
    denoiser: Denoiser,
    x: Tensor,
    schedule: Schedule,
    solver: Solver,
    *,
    guidance_scale: float,
    condition: Any = True,
    unconditional: Any = False,
    batched: bool = False,
) -> ErrorConstants:
    """Algorithm 3 with any solver: four evaluations per step, along the CFG trajectory.

    The arguments are those of `thg.sample`. On a schedule with `integer_times` the midpoint of a step is rounded to the
    nearest integer time, with the noise level of that time.

    A multistep solver takes the half steps on a history of half steps (the midpoints of the interval before), so that
    its error decreases by 2^-p as in eq. (half step) of the paper. A singlestep solver is measured over whole pairs of
    steps, and each step of the pair gets half of the pair's error.
    """
    network = Network(denoiser, schedule, x, condition, unconditional, batched=batched)
    state, normal = network.state(x), schedule.normal
    full = halves = Track(torch.stack([state, torch.zeros_like(state)]))  # tortoise and hare, each step alike

    def outputs(both: Tensor, node: Node) -> Tensor:
        """e_c and (w - 1) d, at the sum of tortoise and hare."""
        e_c, d = network.terms(both[0] + both[1], node)
        return torch.stack([e_c, (guidance_scale - 1) * d])

    norms: list[Array] = []
    for i in range(0, schedule.steps, solver.stages):
        span = min(solver.stages, schedule.steps - i)
        first = outputs(full.x, schedule.nodes[i])
        halves = step(replace(halves, x=full.x), solver, schedule.nodes[i], first, schedule.node(i + 0.5), normal)
        for k in range(i, i + span):  # x^(1)
            output = first if k == i else outputs(full.x, schedule.nodes[k])
            full = step(full, solver, schedule.nodes[k], output, schedule.landings[k], normal)
        for k in range(1, 2 * span):  # x^(2), from the second half step on
            node = schedule.node(i + k / 2)
            target = schedule.node(i + (k + 1) / 2) if k < 2 * span - 1 else schedule.landings[i + span - 1]
            halves = step(halves, solver, node, outputs(halves.x, node), target, normal)
        norms += [_norms(full.x - halves.x) / span] * span  # then continue from x^(1), on the trajectory of CFG
    network.require_finite()
    return _constants(norms, solver)


@torch.no_grad()
def error_constants_first_order(
    denoiser: Denoiser,
    x: Tensor,
    schedule: Schedule,
    *,
    guidance_scale: float,
    condition: Any = True,
    unconditional: Any = False,
    batched: bool = False,
) -> ErrorConstants:
    """Algorithm 3 for a first-order solver, simplified.

    With a frozen output one step equals two half steps, so only the second half step can differ: with x_m the state at
    the midpoint and B2 the coefficient of the step from there, T1 - T2 = B2 (e_c(x_i) - e_c(x_m)), and H1 - H2 the same
    with (w - 1) d.
    """
    network = Network(denoiser, schedule, x, condition, unconditional, batched=batched)
    solver, normal = ddim(), schedule.normal
    state = network.state(x)
    norms: list[Array] = []
    for i, (node, landing) in enumerate(zip(schedule.nodes, schedule.landings, strict=False)):
        middle = schedule.node(i + 0.5)
        e_c, d = network.terms(state, node)
        track = observe(Track(state), solver, node, e_c + (guidance_scale - 1) * d, normal)
        e_c_middle, d_middle = network.terms(advance(track, solver, middle, normal), middle)
        _, (b2,) = solver.coefficients((middle,), landing, normal)
        hare = b2 * (guidance_scale - 1) * (d - d_middle)
        norms.append(_norms(torch.stack([b2 * (e_c - e_c_middle), hare])))
        state = advance(track, solver, landing, normal)
    network.require_finite()
    return _constants(norms, solver)


def _norms(both: Tensor) -> Array:
    """The Euclidean norms of tortoise and hare (rows), for each sample."""
    return np.asarray(both.flatten(2).norm(dim=2).cpu(), dtype=np.float64)


def _constants(norms: list[Array], solver: Solver) -> ErrorConstants:
    tortoise, hare = np.stack(norms, axis=1)
    return ErrorConstants(tortoise, hare, solver.order)
