"""`sample`: fewer network evaluations for any denoiser, schedule and solver; and Algorithm 1 of the paper.

Two forms. "predictor" keeps one state and predicts what is not evaluated; it is what thg does inside a pipeline.
"two-state" is Algorithm 1 as printed. They are the same for a first-order solver with a held guidance term.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from thg.errors import PlanError
from thg.ode.guidance import Guidance, Interval
from thg.ode.network import Branches, Denoiser, Network
from thg.ode.outputs import Node, express
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, advance, ddim, observe, step
from thg.plans.plan import Plan
from thg.plans.planners import Choice
from thg.plans.report import Summary, lost_in

Form = Literal["predictor", "two-state"]


class Step(NamedTuple):
    """The argument of a callback after each step.

    number: from 0. node: where the step started. x: the state after it. x0: the data predicted at its start.
    """

    number: int
    node: Node
    x: Tensor
    x0: Tensor


@dataclass(frozen=True, eq=False)
class Sampled:
    """The result of a run.

    x: the latents. nfe: network evaluations per sample. plan: the plan that was followed, if any.
    trajectory: the N+1 states from start to end, if requested. summary: the cost of the run.
    """

    x: Tensor
    nfe: int
    plan: Plan | None
    summary: Summary
    trajectory: tuple[Tensor, ...] = ()


def sample(
    denoiser: Denoiser,
    x: Tensor,
    plan: Choice = None,
    schedule: Schedule | None = None,
    solver: Solver | None = None,
    *,
    guidance_scale: float | Sequence[float] | Tensor,
    condition: Any = True,
    unconditional: Any = False,
    batched: bool = False,
    guidance_interval: Interval | None = None,
    callback: Callable[[Step], object] | None = None,
    trajectory: bool = False,
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
    gradients: bool = False,
    check: bool = True,
    form: Form = "predictor",
) -> Sampled:
    """Sample with the network evaluated only where a plan says so.

    Common arguments:
        denoiser: the network, `denoiser(x, t, conditional) -> output`; see `thg.ode.Denoiser`.
        x: the initial noise, batch first, at the noise level of `schedule.nodes[0]`.
        plan: as for `thg.enable`: a `Plan`, a planner, also one of a profile, or a preset's name; None is the same
            default. Plain CFG is `thg.uniform(every=1)`.
        schedule: the grid and the network's conventions; `thg.read_schedule(scheduler)` for one of diffusers.
        solver: `thg.ode.ddim()` (also Euler's method) unless given; `thg.ode.dpm_multistep()`, ...
        guidance_scale: w, as in diffusers; a number, or one for each sample.
        condition, unconditional: the denoiser's third argument in the two branches, instead of True and False. An
            unconditional tensor or number is expanded to the rows of the condition.

    Advanced arguments:
        batched: the denoiser takes both branches in one call: twice the rows, the conditional ones first. Its third
            argument is then both conditions joined, or, without conditions, a flag for each row.
        guidance_interval: two times of the network between which there is guidance, None for no limit. Both belong to
            it; as the third value "()", "[)" and "(]" leave one or both out. The plan is made for that part.
        callback: called with a `thg.ode.Step` after each step.
        trajectory: keep all states.
        progress: a wrapper around the steps that shows a bar, such as `tqdm`.
        gradients: keep the graph, to differentiate through the run; otherwise no gradients are recorded.
        check: check that sign and scale of the first output match the schedule.
        form: "predictor" or "two-state" (Algorithm 1 as printed; there the hare's order is the solver's, so the plan's
            `hare_order` is ignored and a corrector is refused).
    """
    if schedule is None:
        raise PlanError("sample needs the grid of the run: thg.sample(..., schedule=thg.Schedule.vp(50), ...)")
    if form not in get_args(Form):
        raise PlanError(f"form must be 'predictor' or 'two-state', not {form!r}")
    solver = ddim() if solver is None else solver
    guidance = Guidance.of(plan, schedule, solver, guidance_scale, guidance_interval, x)
    with nullcontext() if gradients else torch.no_grad():
        branches = Branches.of(condition, unconditional, batched, x)
        network = Network(denoiser, schedule, x, branches, check=check)
        run = _Steps(network, schedule, callback, progress or iter, [] if trajectory else None)
        start = network.state(x)
        end = (_predictor if form == "predictor" else _two_state)(run, start, guidance, solver)
        network.watch(end, schedule.nodes[-1], "latents")
        error = guidance.estimated_error(end) if form == "predictor" else None
    network.require_finite()
    states = (x, *(state.to(x.dtype) for state in run.states)) if run.states is not None else ()
    return Sampled(end.to(x.dtype), network.evaluations, guidance.plan, run.summary(guidance, error), states)


class _Steps:
    """The loop over the steps of one run, with its callback, progress bar and statistics."""

    def __init__(
        self,
        network: Network,
        schedule: Schedule,
        callback: Callable[[Step], object] | None,
        progress: Callable[[Iterable[int]], Iterable[int]],
        states: list[Tensor] | None,
    ) -> None:
        self.network, self.schedule, self.states = network, schedule, states
        self._callback, self._progress = callback, progress
        self._evaluations: list[int] = []
        self._started = time.perf_counter()

    def __iter__(self) -> Any:
        return iter(self._progress(range(self.schedule.steps)))

    def taken(self, index: int, before: Tensor, output: Tensor, after: Tensor) -> None:
        """Records a step: the states before and after it, and its guided output."""
        self._evaluations.append(self.network.evaluations - sum(self._evaluations))
        if self.states is not None:
            self.states.append(after)
        if self._callback is not None:
            node = self.schedule.nodes[index]
            p, q = express(node, self.schedule.normal, (1.0, 0.0))
            self._callback(Step(index, node, after, p * before + q * output))

    def summary(self, guidance: Guidance, error: Tensor | None) -> Summary:
        return Summary(
            pipeline="thg.sample",
            steps=self.schedule.steps,
            nfe=self.network.evaluations,
            cfg_nfe=guidance.plain_evaluations,
            evaluations=tuple(self._evaluations),
            seconds=time.perf_counter() - self._started,
            plan=guidance.plan,
            estimated_error=None if error is None else tuple(error.tolist()),
            lost=() if guidance.leaps is None or error is None else lost_in(guidance.leaps.lost()),
        )


def _predictor(run: _Steps, x: Tensor, guidance: Guidance, solver: Solver) -> Tensor:
    """One state; what is not evaluated is predicted."""
    schedule = run.schedule
    track = Track(x)
    for i in run:
        node, before = schedule.nodes[i], track.x
        output = guidance.output(i, run.network, before, node)
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
        run.taken(i, before, output, track.x)
        del before, output
    return track.x


def _two_state(run: _Steps, x: Tensor, guidance: Guidance, solver: Solver) -> Tensor:
    """Algorithm 1. The hare states between coarse steps are filled one at a time, when they are needed."""
    plan, scale, network, schedule = _printed(guidance), guidance.scale, run.network, run.schedule
    normal = schedule.normal
    tortoise = Track(x)  # x^T_T <- x_T
    hare_track = Track(torch.zeros_like(x))  # x^H_T <- 0
    hare_x = hare_track.x
    term = hare_x
    for i in run:
        node, landing = schedule.nodes[i], schedule.landings[i]
        whole = tortoise.x + hare_x
        if plan.evaluates(i):  # t_i in C
            e_c, e_u = network.pair(whole, node)
            term = scale.times(plan.boost_at(i) * (e_c - e_u))  # section 3.4: d <- b d
            hare_track = observe(replace(hare_track, x=hare_x), solver, node, term, normal)
        else:
            e_c = network(whole, node, True)
            if not plan.guides(i):  # section 3.4: d <- 0 from i_hi on, and before the start
                term = torch.zeros_like(x)
                hare_track = observe(replace(hare_track, x=hare_x), solver, node, term, normal)
        tortoise = step(tortoise, solver, node, e_c, landing, normal)
        hare_x = advance(hare_track, solver, landing, normal)  # x^H at t_(i+1), from the last coarse step
        run.taken(i, whole, e_c + term, tortoise.x + hare_x)
    return tortoise.x + hare_x


def _printed(guidance: Guidance) -> Plan:
    """The plan, if Algorithm 1 can follow it."""
    plan = guidance.plan
    if guidance.leaps is not None:
        raise PlanError(
            "form='two-state' is Algorithm 1, in which the conditional branch runs at each step: pass a plan of that "
            "kind, such as thg.uniform(every=2), or use form='predictor'"
        )
    if plan is None:
        raise PlanError("form='two-state' follows a plan, and this planner makes none; use form='predictor'")
    if plan.corrector:
        raise PlanError(
            f"corrector={plan.corrector:g} needs form='predictor': Algorithm 1 has no prediction to correct; "
            "make the plan with corrector=0"
        )
    return plan
