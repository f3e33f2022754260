"""`sample`: Tortoise and Hare Guidance for any denoiser, schedule and solver. Algorithm 1 lives here.

Two forms. "two-state" is Algorithm 1 as printed. "predictor" keeps one state and predicts the guidance term where it is
not evaluated; it is what thg does inside a pipeline. They are the same for a first-order solver with a held hare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from thg.errors import PlanError
from thg.ode.network import Denoiser, Network, require_finite
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, advance, observe, step
from thg.plans.guide import HareGuide, Run
from thg.plans.plan import Plan
from thg.plans.response import Response

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
            f"{schedule.steps} steps"
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
    response = solver_response(solver, schedule) if plan.corrector else None
    guide = HareGuide(plan, replace(Run.of(plan.steps, guidance_scale), response=response))
    track = Track(x)
    for i in range(plan.steps):
        node = schedule.nodes[i]
        output = network(track.x, node, True)
        if guide.evaluates(i):
            fresh = (output - network(track.x, node, False),)
            term = guide.observe(i, (output,), fresh) or fresh
        else:
            term = guide.predict(i, (output,)) or ()
        for d in term:
            output = output.add(d, alpha=guidance_scale - 1)  # e_c + (w - 1) b d
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
    return track.x


def solver_response(solver: Solver, schedule: Schedule) -> Response:
    """How the states of a run respond to the network's outputs: one pass with unit vectors in place of outputs."""
    track = Track(torch.zeros(schedule.steps, dtype=torch.float64))
    rows = []
    for i, output in enumerate(torch.eye(schedule.steps, dtype=torch.float64)):
        track = step(track, solver, schedule.nodes[i], output, schedule.landings[i], schedule.normal)
        rows.append(track.x)
    return Response(torch.stack(rows).numpy())
