"""`sample`: fewer network evaluations for any denoiser, schedule and solver; and Algorithm 1 of the paper.

Two forms. "predictor" keeps one state and predicts what is not evaluated; it is what thg does inside a pipeline.
"two-state" is Algorithm 1 as printed. They are the same for a first-order solver with a held guidance term.
`Guidance` is the guidance of one run: the guide, the steps that it guides, and the guidance scale.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from thg.errors import PlanError
from thg.ode.network import Denoiser, Network
from thg.ode.outputs import Node, Prediction, convert, express
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, Track, advance, ddim, observe, step
from thg.plans.guide import Guide, HareGuide, Visitor
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Choice, Fixed, Planned, guide_maker
from thg.plans.response import Response
from thg.plans.run_info import RunInfo, Term
from thg.plans.summary import Summary, lost_in


@dataclass(frozen=True, eq=False)
class Scale:
    """w - 1: one number, or one for each sample. largest: the w that is farthest from 1."""

    value: float | Tensor
    largest: float

    @classmethod
    def of(cls, guidance_scale: float | Sequence[float] | Tensor, x: Tensor) -> Scale:
        try:
            given = guidance_scale.tolist() if isinstance(guidance_scale, Tensor) else guidance_scale
            scales = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            scales = np.empty(0)
        if scales.ndim > 1 or not scales.size or not ((scales >= 0) & (scales < math.inf)).all():
            raise PlanError(f"guidance_scale must be a finite number of at least 0, not {guidance_scale}")
        if not scales.ndim:
            return cls(float(scales) - 1, float(scales))
        if len(scales) != len(x):
            raise PlanError(f"guidance_scale has {len(scales)} values for {len(x)} samples; write one, or one for each")
        dtype = torch.promote_types(x.dtype, torch.float32)
        column = torch.tensor(scales.tolist(), dtype=dtype, device=x.device).reshape(-1, *[1] * (x.ndim - 1))
        return cls(column - 1, max(scales.tolist(), key=lambda w: abs(w - 1)))

    @property
    def guides(self) -> bool:
        """Does the unconditional branch have an effect?"""
        return self.largest != 1

    def added(self, output: Tensor, term: Tensor) -> Tensor:
        """e_c + (w - 1) d, in one new tensor."""
        if isinstance(self.value, Tensor):
            return torch.addcmul(output, self.value, term)
        return output.add(term, alpha=self.value)


@dataclass(frozen=True, eq=False)
class Guidance:
    """How one run is guided: the whole network leaps, or a guide decides about the guidance term.

    leaps: of the whole network; None if there is a guide. guide: for the part of the run with guidance.
    start, end: the steps between which there is guidance.
    """

    leaps: Leaps | None
    guide: Guide | None
    start: int
    end: int
    scale: Scale
    schedule: Schedule

    @classmethod
    def of(
        cls,
        choice: Choice,
        schedule: Schedule,
        solver: Solver,
        guidance_scale: float | Sequence[float] | Tensor,
        interval: Interval | None,
        x: Tensor,
    ) -> Guidance:
        maker = guide_maker(choice)
        plan = maker.planner.value if isinstance(maker, Planned) and isinstance(maker.planner, Fixed) else None
        if plan is not None and plan.steps != schedule.steps:
            raise PlanError(
                f"the plan is for {plan.steps} steps, the schedule has {schedule.steps}; make the plan for "
                f"{schedule.steps} steps, or use a planner, which fits any run: "
                f"thg.tapered({plan.nfe / plan.cfg_nfe:.2f})"
            )
        if plan is not None and plan.skips == "unconditional" and interval is not None:
            raise PlanError(
                "a plan defines where guidance starts and ends; write Plan(..., start=, cutoff=) without "
                "guidance_interval, or use a planner"
            )
        scale = Scale.of(guidance_scale, x)
        whole = run_of(schedule, solver, scale.largest)
        start, end = (0, schedule.steps) if interval is None else steps_between(schedule, interval)
        if isinstance(maker, Planned) and maker.skips == "network":
            whole = replace(whole, branches=2 if scale.guides else 1)
            if (leaping := _leaping(schedule)) != schedule.normal:
                response = _known_response(solver, schedule, leaping)
                whole = replace(whole, response=response, noise_response=whole.response)
            return cls(maker.leaps(whole), None, start, end, scale, schedule)
        return cls(None, maker.guide(whole.part(start, end)), start, end, scale, schedule)

    @property
    def plan(self) -> Plan | None:
        """The plan of the whole run."""
        if self.leaps is not None:
            return self.leaps.plan
        plan = None if self.guide is None else self.guide.plan
        return None if plan is None else plan.placed(self.start, self.schedule.steps)

    @property
    def plain_evaluations(self) -> int:
        """Network evaluations per sample of the plain run."""
        return self.schedule.steps + (self.end - self.start if self.leaps is None or self.scale.guides else 0)

    def estimated_error(self, x: Tensor) -> Tensor | None:
        """The estimated difference from the final state of the plain run, per sample."""
        if self.leaps is not None:
            return self.leaps.estimated_error(x)
        error = self.guide.estimated_error(x) if isinstance(self.guide, HareGuide) else None
        if error is None or not isinstance(self.scale.value, Tensor) or self.scale.largest == 1:
            return error
        return error * self.scale.value.flatten().abs() / abs(self.scale.largest - 1)

    def summary(self, evaluations: Sequence[int], seconds: float, error: Tensor | None) -> Summary:
        """The cost of a run with these evaluations at its steps."""
        leaps = self.leaps
        return Summary(
            pipeline="thg.sample",
            steps=self.schedule.steps,
            nfe=sum(evaluations),
            cfg_nfe=self.plain_evaluations,
            evaluations=tuple(evaluations),
            seconds=seconds,
            plan=self.plan,
            note="" if leaps is None else "; ".join(filter(None, (leaps.doubt(), leaps.tuned))),
            estimated_error=None if error is None else tuple(error.tolist()),
            lost=() if leaps is None or error is None else lost_in(leaps.lost()),
            tuned=leaps is not None and bool(leaps.tuned),
        )

    def output(self, index: int, network: Network, x: Tensor, node: Node) -> Tensor:
        """The guided output at a step, evaluated or predicted: e_c + (w - 1) d."""
        if self.leaps is not None:
            return self._leapt(self.leaps, index, network, x, node)
        if not self.start <= index < self.end:
            return network(x, node, True)
        assert self.guide is not None
        step = index - self.start
        if isinstance(self.guide, Visitor):
            self._visit(self.guide, step, network, x, node)
        if self.guide.evaluates(step):
            e_c, d = network.terms(x, node)
            term: Term | None = self.guide.observe(step, (e_c,), (d,)) or (d,)
        else:
            e_c = network(x, node, True)
            term = self.guide.predict(step, (e_c,))
        return e_c if term is None else self.scale.added(e_c, term[0])

    def _leapt(self, leaps: Leaps, index: int, network: Network, x: Tensor, node: Node) -> Tensor:
        """The output at a step of a run in which the whole network leaps."""
        if index in (self.start, self.end):  # guidance begins or ends, and changes the output
            leaps.forget()
        normal, leaping = self.schedule.normal, _leaping(self.schedule)
        if not leaps.evaluates(index):
            return convert(node, leaping, normal, x, leaps.predict(index)[0])
        if self.scale.guides and self.start <= index < self.end:
            output = self.scale.added(*network.terms(x, node))
        else:
            output = network(x, node, True)
        evaluated = (convert(node, normal, leaping, x, output),)
        used = leaps.observe(index, evaluated)
        return output if used is evaluated else convert(node, leaping, normal, x, used[0])

    def _visit(self, guide: Visitor, step: int, network: Network, x: Tensor, node: Node) -> None:
        """Passes the state to the guide in the scale of profiles, with the position on the grid as its time."""

        def evaluate(sample: Tensor, position: float) -> tuple[Term, Term]:
            there = self.schedule.node(position)
            e_c, d = network.terms(sample * self._size(there), there)
            return (e_c,), (d,)

        guide.visit(step, x / self._size(node), node.position, evaluate)

    def _size(self, node: Node) -> float:
        return 1.0 if self.schedule.normal == "flow" else math.hypot(node.alpha, node.sigma)


def run_of(schedule: Schedule, solver: Solver, guidance_scale: float) -> RunInfo:
    """The description of a run on this schedule, for guides."""
    return RunInfo(
        steps=schedule.steps,
        positions=tuple(float(i) for i in range(schedule.steps)),
        guidance_scale=guidance_scale,
        log_snr=tuple(schedule.log_snr[:-1].tolist()),
        times=tuple(schedule.times[:-1].tolist()),
        response=_known_response(solver, schedule, schedule.normal),
        order=solver.order,
    )


Interval = tuple[float | None, float | None] | tuple[float | None, float | None, str]
"""Two times of the network, None for no limit; and which ends belong to it: "[]" (unless given), "()", "[)", "(]"."""


def steps_between(schedule: Schedule, interval: Interval) -> tuple[int, int]:
    """The first step with guidance, and the first one after it without, of an interval of the network's times."""
    try:
        one, other, ends = (*interval, "[]") if len(interval) == 2 else interval
        low, high = -math.inf if one is None else float(one), math.inf if other is None else float(other)
        if ends not in ("[]", "()", "[)", "(]") or math.isnan(low + high):
            raise ValueError
    except (TypeError, ValueError):
        raise PlanError(
            "guidance_interval must be two times of the network, such as (0.2, 0.8), (None, 0.8) or, without the "
            f"larger one itself, (0.2, 0.8, '[)'), not {interval!r}"
        ) from None
    low, high = (low, high) if None in (one, other) else sorted((low, high))
    times = schedule.times[:-1]
    above = times >= low if ends[0] == "[" else times > low
    inside = np.flatnonzero(above & (times <= high if ends[1] == "]" else times < high))
    if not len(inside):
        raise PlanError(
            f"no step lies in guidance_interval={tuple(interval)!r}: the network's times go from {times[0]:g} to "
            f"{times[-1]:g}"
        )
    return int(inside[0]), int(inside[-1]) + 1


def _leaping(schedule: Schedule) -> Prediction:
    """The kind of output that leaps with the whole network: a velocity, unless the network predicts the noise."""
    if schedule.prediction == "epsilon" or schedule.normal == "flow":
        return schedule.normal
    return "v_prediction"


_Known = dict[Prediction, tuple[Solver, Response]]
_RESPONSES: weakref.WeakKeyDictionary[Schedule, _Known] = weakref.WeakKeyDictionary()


def _known_response(solver: Solver, schedule: Schedule, kind: Prediction) -> Response:
    """`solver_response`; kept for the last solver of each schedule."""
    kept = _RESPONSES.setdefault(schedule, {})
    if kind not in kept or kept[kind][0] != solver:
        kept[kind] = solver, solver_response(solver, schedule, kind)
    return kept[kind][1]


def solver_response(solver: Solver, schedule: Schedule, kind: Prediction | None = None) -> Response:
    """How the states of a run respond to outputs of a kind: one pass with unit vectors in place of outputs.

    kind: `schedule.normal` unless given. A network of the kind v sees states of unit variance.
    """
    scales = 1 / np.hypot(schedule.alpha[:-1], schedule.sigma[:-1]) if kind == "v_prediction" else None
    track = Track(torch.zeros(schedule.steps, dtype=torch.float64))
    rows = []
    for i, unit in enumerate(torch.eye(schedule.steps, dtype=torch.float64)):
        output = convert(schedule.nodes[i], kind or schedule.normal, schedule.normal, track.x, unit)
        track = step(track, solver, schedule.nodes[i], output, schedule.landings[i], schedule.normal)
        rows.append(track.x)
    return Response(torch.stack(rows).numpy(), scales)


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
    if not isinstance(schedule, Schedule):
        given = "" if schedule is None else f" as a thg.Schedule, not as {type(schedule).__name__}"
        raise PlanError(
            f"sample needs the grid of the run{given}: thg.sample(..., schedule=thg.Schedule.vp(50), ...), or "
            "thg.read_schedule(scheduler, 50) for a scheduler of diffusers"
        )
    if solver is not None and not hasattr(solver, "works_in"):
        raise PlanError(f"solver must be one of thg.ode, such as thg.ode.ddim(), not {solver!r}")
    if form not in get_args(Form):
        raise PlanError(f"form must be 'predictor' or 'two-state', not {form!r}")
    solver = ddim() if solver is None else solver
    guidance = Guidance.of(plan, schedule, solver, guidance_scale, guidance_interval, x)
    steps_of = _predictor if form == "predictor" else _two_state
    evaluations: list[int] = []
    states = [x]
    started = time.perf_counter()
    with nullcontext() if gradients else torch.no_grad():
        network = Network(denoiser, schedule, x, condition, unconditional, batched=batched, check=check)
        start = network.state(x)
        for i, before, output, end in steps_of(progress or iter, network, start, guidance, solver):
            evaluations.append(network.evaluations - sum(evaluations))
            if trajectory:
                states.append(end.to(x.dtype))
            if callback is not None:
                p, q = express(schedule.nodes[i], schedule.normal, (1.0, 0.0))
                callback(Step(i, schedule.nodes[i], end, p * before + q * output))
            del before, output
        network.watch(end, schedule.nodes[-1], "latents")
        error = guidance.estimated_error(end) if form == "predictor" else None
    network.require_finite()
    summary = guidance.summary(evaluations, time.perf_counter() - started, error)
    return Sampled(end.to(x.dtype), network.evaluations, guidance.plan, summary, tuple(states) if trajectory else ())


Progress = Callable[[Iterable[int]], Iterable[int]]
Taken = tuple[int, Tensor, Tensor, Tensor]
"""A step: its number, the state before it, the guided output there, and the state after it."""


def _predictor(progress: Progress, network: Network, x: Tensor, guidance: Guidance, solver: Solver) -> Iterator[Taken]:
    """One state; what is not evaluated is predicted."""
    schedule = guidance.schedule
    track = Track(x)
    for i in progress(range(schedule.steps)):
        node, before = schedule.nodes[i], track.x
        output = guidance.output(i, network, before, node)
        track = step(track, solver, node, output, schedule.landings[i], schedule.normal)
        yield i, before, output, track.x
        del before, output


def _two_state(progress: Progress, network: Network, x: Tensor, guidance: Guidance, solver: Solver) -> Iterator[Taken]:
    """Algorithm 1. The hare states between coarse steps are filled one at a time, when they are needed."""
    plan, schedule = _printed(guidance), guidance.schedule
    normal = schedule.normal
    tortoise = Track(x)  # x^T_T <- x_T
    hare_track = Track(torch.zeros_like(x))  # x^H_T <- 0
    hare_x = term = hare_track.x
    whole = x
    for i in progress(range(schedule.steps)):
        node, landing = schedule.nodes[i], schedule.landings[i]
        if plan.evaluates(i):  # t_i in C
            e_c, d = network.terms(whole, node)
            term = guidance.scale.value * (plan.boost_at(i) * d)  # section 3.4: d <- b d
            hare_track = observe(replace(hare_track, x=hare_x), solver, node, term, normal)
        else:
            e_c = network(whole, node, True)
            if not plan.guides(i):  # section 3.4: d <- 0 from i_hi on, and before the start
                term = torch.zeros_like(x)
                hare_track = observe(replace(hare_track, x=hare_x), solver, node, term, normal)
        tortoise = step(tortoise, solver, node, e_c, landing, normal)
        hare_x = advance(hare_track, solver, landing, normal)  # x^H at t_(i+1), from the last coarse step
        before, whole = whole, tortoise.x + hare_x
        yield i, before, e_c + term, whole
        del before


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
