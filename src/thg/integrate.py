"""`sample`: Tortoise and Hare Guidance for any denoiser, schedule and solver. Algorithm 1 lives here.

Two forms. "two-state" is Algorithm 1 as printed. "predictor" keeps one state and predicts the guidance term where it is
not evaluated; it is what thg does inside a pipeline. They are the same for a first-order solver with a held hare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from thg import hare
from thg.errors import PlanError
from thg.network import Denoiser, Network, require_finite
from thg.plan import Plan
from thg.schedule import Schedule
from thg.solvers import Solver, Track, advance, lagrange_weights, observe, step

Form = Literal["predictor", "two-state"]
INTERPOLATED = 3  # evaluations through which the corrector interpolates


@dataclass(frozen=True, eq=False)
class Sampled:
    """The latents at the end of a run, and the network evaluations per sample that it took."""

    x: Tensor
    nfe: int


def sample(
    denoiser: Denoiser,
    x: Tensor,
    plan: Plan,
    schedule: Schedule,
    solver: Solver,
    *,
    guidance_scale: float,
    form: Form = "predictor",
) -> Sampled:
    """Sample with the guidance term evaluated only where the plan says so.

    What most people set:
        denoiser: the network, `denoiser(x, t, conditional) -> output`; see `thg.network.Denoiser`.
        x: the initial noise, batch first, at the noise level of `schedule.nodes[0]`.
        plan: where the unconditional branch is evaluated. Every step is plain CFG: `Plan(steps=N, coarse=range(N))`.
        schedule: the fine grid, `Schedule.from_diffusers(scheduler)` for example.
        solver: `thg.solvers.ddim()`, `solver_like(scheduler)`, ...
        guidance_scale: w, as in diffusers.

    What few touch:
        form: "predictor" or "two-state" (Algorithm 1 as printed; there the hare's order is the solver's, so the plan's
            `hare_order` has no say and a corrector is refused).
    """
    if plan.steps != schedule.steps:
        raise PlanError(
            f"the plan is for {plan.steps} steps, the schedule has {schedule.steps}; make the plan for "
            f"{schedule.steps} steps, or pass schedule.regrid({plan.steps})"
        )
    if not math.isfinite(guidance_scale) or guidance_scale < 0:
        raise PlanError(f"guidance_scale must be a finite number of at least 0, not {guidance_scale}")
    if form not in get_args(Form):
        raise PlanError(f"form must be 'predictor' or 'two-state', not {form!r}")
    if form == "two-state" and plan.corrector:
        raise PlanError(
            f"corrector={plan.corrector:g} needs form='predictor': Algorithm 1 has no prediction to correct; "
            "make the plan with corrector=0"
        )
    network = Network(denoiser, schedule, x)
    run = _predictor if form == "predictor" else _two_state
    end = run(network, network.state(x), plan, schedule, solver, guidance_scale)
    require_finite(end, schedule.nodes[-1], "latents")
    return Sampled(end.to(x.dtype), network.evaluations)


def _two_state(
    network: Network, x: Tensor, plan: Plan, schedule: Schedule, solver: Solver, guidance_scale: float
) -> Tensor:
    """Algorithm 1. The hare states between coarse steps are filled one at a time, when they are needed."""
    normal = schedule.normal
    tortoise = Track(x)  # x^T_T <- x_T
    hare_track = Track(torch.zeros_like(x))  # x^H_T <- 0
    hare_x = hare_track.x
    for i in range(plan.steps):
        node, landing = schedule.nodes[i], schedule.landings[i]
        whole = tortoise.x + hare_x
        e_c = network(whole, node, True)
        tortoise = step(tortoise, solver, node, e_c, landing, normal)
        if plan.evaluates(i):  # t_i in C
            d = e_c - network(whole, node, False)
            term = (guidance_scale - 1) * plan.boost_at(i) * d  # section 3.4: d <- b d
            hare_track = observe(replace(hare_track, x=hare_x), solver, node, term, normal)
        elif i >= plan.end_of_guidance:  # section 3.4: d <- 0 from i_hi on
            hare_track = observe(replace(hare_track, x=hare_x), solver, node, torch.zeros_like(x), normal)
        hare_x = advance(hare_track, solver, landing, normal)  # x^H at t_(i+1), from the last coarse step
    return tortoise.x + hare_x


def _predictor(
    network: Network, x: Tensor, plan: Plan, schedule: Schedule, solver: Solver, guidance_scale: float
) -> Tensor:
    """One state; where d is not evaluated it is predicted by the hare."""
    track = Track(x)
    kept = INTERPOLATED if plan.corrector else hare.MEMORY
    positions: list[int] = []
    terms: list[Tensor] = []
    for i in range(plan.steps):
        node = schedule.nodes[i]
        output = network(track.x, node, True)
        if plan.evaluates(i):
            positions, terms = positions[1 - kept :], terms[1 - kept :]
            terms.append(output - network(track.x, node, False))
            positions.append(i)
            if plan.corrector and len(positions) > 1:
                track = _corrected(track, plan, schedule, solver, guidance_scale, positions, terms)
        if i < plan.end_of_guidance:
            d = hare.predict(positions, terms, i, plan.hare_order)
            output = output.add(d, alpha=(guidance_scale - 1) * plan.boost_at(i))  # e_c + (w - 1) d
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
    return track.x


def _corrected(
    track: Track,
    plan: Plan,
    schedule: Schedule,
    solver: Solver,
    guidance_scale: float,
    positions: Sequence[int],
    terms: Sequence[Tensor],
) -> Track:
    """The track, with the error of the leap just finished taken back as far as the fresh term shows it.

    The term during the leap is now interpolated through the last evaluations instead of predicted. The solver is
    linear, so its response to the difference is what it makes of the difference from a state of zero; and the
    difference is a combination of the kept terms, so that run is over their weights, not over latents. What the solver
    remembers of the leap is corrected along with the state. A boost stays on.
    """
    start, end = positions[-2:]
    zero = torch.zeros(len(positions), dtype=torch.float64)
    before = tuple(schedule.nodes[:start])
    response = Track(zero, before, (zero,) * min(len(before), solver.memory))
    for k in range(start, end):
        true = lagrange_weights(positions, k)
        held = hare.weights(positions[:-1], k, plan.hare_order)
        used = (*(0.0,) * (len(positions) - 1 - len(held)), *held, 0.0)
        gain = (guidance_scale - 1) * plan.boost_at(k) * plan.corrector
        difference = gain * (torch.tensor(true, dtype=torch.float64) - torch.tensor(used, dtype=torch.float64))
        response = step(response, solver, schedule.nodes[k], difference, schedule.landings[k], schedule.normal)
    return Track(
        _add(track.x, response.x, terms),
        track.path,
        tuple(_add(o, r, terms) for o, r in zip(track.outputs, response.outputs, strict=True)),
    )


def _add(values: Tensor, weights: Tensor, terms: Sequence[Tensor]) -> Tensor:
    """values + sum_m weights_m terms_m."""
    for weight, term in zip(weights.tolist(), terms, strict=True):
        if weight:
            values = values.add(term, alpha=weight)
    return values
