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

from thg.errors import PlanError
from thg.ode.network import Denoiser, Network, require_finite
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, advance, observe, step
from thg.plans import hare
from thg.plans.plan import Plan

Form = Literal["predictor", "two-state"]


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
        denoiser: the network, `denoiser(x, t, conditional) -> output`; see `thg.ode.network.Denoiser`.
        x: the initial noise, batch first, at the noise level of `schedule.nodes[0]`.
        plan: where the unconditional branch is evaluated. Every step is plain CFG: `Plan(steps=N, coarse=range(N))`.
        schedule: the fine grid, `thg.read_schedule(scheduler)` for one of diffusers.
        solver: `thg.ode.solvers.ddim()`, `solver_like(scheduler)`, ...
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
        elif not plan.guides(i):  # section 3.4: d <- 0 from i_hi on, and before the start
            hare_track = observe(replace(hare_track, x=hare_x), solver, node, torch.zeros_like(x), normal)
        hare_x = advance(hare_track, solver, landing, normal)  # x^H at t_(i+1), from the last coarse step
    return tortoise.x + hare_x


def _predictor(
    network: Network, x: Tensor, plan: Plan, schedule: Schedule, solver: Solver, guidance_scale: float
) -> Tensor:
    """One state; where d is not evaluated it is predicted by the hare."""
    track = Track(x)
    scales = [(guidance_scale - 1) * plan.boost_at(i) for i in range(plan.end_of_guidance)]  # (w - 1) b
    kept = plan.hare_order + bool(plan.corrector)  # evaluations that are looked at when a fresh one arrives
    positions: list[int] = []
    terms: list[Tensor] = []
    for i in range(plan.steps):
        node = schedule.nodes[i]
        output = network(track.x, node, True)
        if plan.evaluates(i):
            del positions[: len(positions) + 1 - kept], terms[: len(terms) + 1 - kept]
            terms.append(output - network(track.x, node, False))
            positions.append(i)
            if plan.corrector and len(positions) > 1:
                track = _corrected(track, plan, schedule, solver, scales, positions, terms)
        if plan.guides(i):
            d = terms[-1] if positions[-1] == i else hare.predict(positions, terms, i, plan.hare_order)
            output = output.add(d, alpha=scales[i])  # e_c + (w - 1) b d
            del d
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
    return track.x


def _corrected(
    track: Track[Tensor],
    plan: Plan,
    schedule: Schedule,
    solver: Solver,
    scales: Sequence[float],
    positions: Sequence[int],
    terms: Sequence[Tensor],
) -> Track[Tensor]:
    """The track, with the error of the leap just finished taken back as far as the fresh term shows it.

    The leap was run on the polynomial through the last `hare_order` evaluations before it. With the fresh one the
    degree rises by one, so in Newton's form the two differ at step k by `D * prod(k - position)`, with D the divided
    difference of all of them. The solver is linear: its response is D times what it makes, from zero, of those
    products, which are mere numbers. What it remembers of the leap is corrected along with the state. A boost stays on.
    """
    *before, fresh = positions
    second = before[-1] + 1  # the first step of the leap had its true term
    if second == fresh:
        return track
    response = Track(0.0, schedule.nodes[:second], (0.0,) * min(second, solver.memory - 1))
    for k in range(second, fresh):
        difference = plan.corrector * scales[k] * math.prod(k - position for position in before)
        response = step(response, solver, schedule.nodes[k], difference, schedule.landings[k], schedule.normal)
    weights = [1 / math.prod(own - other for other in positions if other != own) for own in positions]
    divided = weights[0] * terms[0]  # D
    for weight, term in zip(weights[1:], terms[1:], strict=True):
        divided.add_(term, alpha=weight)
    outputs = (m.add(divided, alpha=r) if r else m for m, r in zip(track.outputs, response.outputs, strict=True))
    return Track(track.x.add(divided, alpha=response.x), track.path, tuple(outputs))
