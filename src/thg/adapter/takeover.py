"""One enabled pipeline: what happens when its scheduler starts a run and when its network is called.

A run starts at `scheduler.set_timesteps`, and all state is made anew there; so a run that raised leaves nothing behind.
At each network call the guide decides whether the unconditional branch runs. If it does not, the conditional branch
alone is evaluated and the unconditional output is put in its place as e_u = e_c - d, with the predicted term d: the
pipeline's own guidance formula then does the rest.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thg.adapter import caller as calling
from thg.adapter import rows
from thg.adapter.caller import Caller
from thg.adapter.host import host_copy
from thg.adapter.identity import fingerprint
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.response import scheduler_response
from thg.adapter.schedulers import adds_noise, scheduler_log_snr
from thg.adapter.state import RunState
from thg.adapter.terms import difference, unconditional
from thg.errors import ConcurrentRunError, THGError, UnsupportedPipelineError
from thg.plans.guide import GuideMaker, Run, Term, Visitor
from thg.plans.report import Summary

Network = Callable[..., Any]

# Names of diffusers' cache contexts. The extra ones are calls of other guidance methods, with one branch each.
CONDITIONAL, UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")
EXTRA = ("uncond_stg", "uncond_modality")


class Takeover:
    """A pipeline that thg is enabled on."""

    def __init__(self, pipe: Any, layout: Batched | Sequential, maker: GuideMaker, refresh: Callable[[], None]) -> None:
        """refresh: takes over the networks and the scheduler that the pipeline has now, should they be new."""
        self._pipe = weakref.ref(pipe)
        self._refresh = refresh
        self.name = type(pipe).__name__
        self.layout = layout
        self.maker = maker
        self.state: RunState | None = None

    @property
    def pipe(self) -> Any:
        return self._pipe()

    # -- the run

    def begin(self) -> None:
        """The scheduler has set its time steps: a new run."""
        self._refuse_second_thread()
        self._refresh()
        self.state = RunState()

    def _refuse_second_thread(self) -> None:
        state = self.state
        if state is None or state.thread == threading.get_ident():
            return
        if calling.is_running(self.pipe, state.thread):
            raise ConcurrentRunError(
                f"this {self.name} is running in another thread; a pipeline holds the state of one run. Load one "
                "pipeline per thread (they can share their networks: type(pipe)(**pipe.components)), or use a lock"
            )

    def _current(self, who: Caller, args: tuple[Any, ...], kwargs: dict[str, Any]) -> RunState | None:
        """The run that this call belongs to, or None for a call outside of any."""
        state = self.state
        timesteps = who.timesteps()
        if timesteps is rows.timestep(args, kwargs):
            timesteps = None  # DiT has the time of one call under that name
        if state is None:
            if timesteps is None:
                return None
            self.begin()  # a scheduler that was put in after `enable` has started this run unnoticed
            return self._opened(who, timesteps)
        if state.thread != threading.get_ident():
            self._refuse_second_thread()
            return None
        if state.run is None:
            return self._opened(who, timesteps)
        if state.timesteps is not None and state.timesteps() is not timesteps:
            if timesteps is None:
                return None  # before the loop of a new run
            self.begin()
            return self._opened(who, timesteps)
        return state

    def _opened(self, who: Caller, timesteps: Any) -> RunState:
        """The state of the run that has just begun, with its guide."""
        state = self.state
        assert state is not None
        if timesteps is None or len(timesteps) == 0:
            timesteps = self.pipe.scheduler.timesteps
        elif isinstance(timesteps, Tensor):
            state.timesteps = weakref.ref(timesteps)
        scheduler, calls = host_copy(self.pipe.scheduler, timesteps)
        times = [float(t) for t in calls]
        order = {t: float(i) for i, t in enumerate(dict.fromkeys(times))}
        if noise := who.noise_argument():
            response, reason = None, f"the scheduler adds noise at every step ({noise} above 0)"
        else:
            response, reason = scheduler_response(scheduler, calls)
        state.run = Run(
            steps=len(times),
            positions=tuple(order[t] for t in times),
            guidance_scale=who.guidance_scale(),
            log_snr=_log_snr(scheduler, times),
            times=tuple(times),
            network=fingerprint(self.pipe),
            response=response,
            no_response=reason,
            adds_noise=bool(noise) or adds_noise(scheduler),
        )
        state.guide = self.maker.guide(state.run)
        return state

    # -- network calls

    def denoise(
        self, network: Network, args: tuple[Any, ...], kwargs: dict[str, Any], who: Caller, context: str
    ) -> Any:
        """A call of a denoiser, conditional or with all branches."""
        state = self._current(who, args, kwargs)
        if state is None or state.guide is None:
            return network(*args, **kwargs)
        try:
            if isinstance(self.layout, Sequential):
                output = self._sequential(state, self.layout, network, args, kwargs, context)
            elif context in EXTRA:
                return network(*args, **kwargs)
            else:
                output = self._batched(state, self.layout, network, args, kwargs, who)
        except BaseException:
            state.failed = True
            raise
        if state.at_last_step and state.answered:
            state.ended_with(output)
            state.release()
        return output

    def _batched(
        self,
        state: RunState,
        layout: Batched,
        network: Network,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        who: Caller,
    ) -> Any:
        branches = layout.branches_of(self.pipe) if who.guidance_is_on() else ()
        n, size = len(branches), rows.count(args, kwargs)
        if branches and state.rows is None:
            if size % n:
                raise UnsupportedPipelineError(
                    f"{self.name} sent {size} rows to its network where thg expected {n} branches of equal size"
                )
            state.rows = size
        if not branches or size != state.rows:
            return self._one_branch(state, network, args, kwargs)

        step = state.next_step(self.name)
        state.time = rows.timestep(args, kwargs)
        state.guided_steps += 1
        guide = state.guide
        assert guide is not None
        cond = branches.index("cond")
        predicted = [branches.index(name) for name in layout.predicted]
        if guide.evaluates(step):
            if isinstance(guide, Visitor):
                evaluate = functools.partial(_batched_pair, network, args, kwargs, n, cond, predicted)
                guide.visit(step, rows.first_input(args, kwargs), state.time, evaluate)
            output = network(*args, **kwargs)
            state.evaluated(n, n)
            parts = rows.branch_terms(output, n)
            term = tuple(d for k in predicted for d in difference(parts[cond], parts[k]))
            used = guide.observe(step, parts[cond], term)
            return output if used is None else self._with(output, parts, cond, predicted, used)

        keep = [k for k in range(n) if k not in predicted]
        args, kwargs = rows.cut(args, kwargs, size, n, keep)
        with layout.without_predicted(self.pipe):
            output = network(*args, **kwargs)
        state.evaluated(len(keep), n)
        kept = dict(zip(keep, rows.branch_terms(output, len(keep)), strict=True))
        parts = [kept.get(k, kept[cond]) for k in range(n)]
        return self._with(output, parts, cond, predicted, guide.predict(step, parts[cond]))

    def _one_branch(self, state: RunState, network: Network, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with a single branch: a step without guidance, or one more call within a guided step."""
        now = rows.timestep(args, kwargs)
        extra = state.time is not None and _same_time(now, state.time)
        if not extra:
            state.next_step(self.name)
        output = network(*args, **kwargs)
        state.evaluated(1, 1)
        return output

    @staticmethod
    def _with(template: Any, parts: list[Term], cond: int, predicted: list[int], term: Term | None) -> Any:
        """The output with the predicted branches put in place: e_u = e_c - d."""
        parts = list(parts)
        share = len(parts[cond])
        for place, k in enumerate(predicted):
            own = None if term is None else term[place * share : (place + 1) * share]
            parts[k] = unconditional(parts[cond], own)
        return rows.assemble(template, parts)

    def _sequential(
        self,
        state: RunState,
        layout: Sequential,
        network: Network,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: str,
    ) -> Any:
        sample, now = rows.first_input(args, kwargs), rows.timestep(args, kwargs)
        if context in CONDITIONAL or context in UNCONDITIONAL:
            second = context in UNCONDITIONAL
        else:  # the unconditional call comes second, with the sample and the time of the first
            alike = layout.inputs_differ or _same(sample, state.sample)
            second = alike and state.sample is not None and _same_time(now, state.time)
        if second:
            if state.answered:  # a third call at the same step
                output = network(*args, **kwargs)
                state.evaluated(1, 1)
                return output
            return self._unconditional(state, network, args, kwargs)
        state.next_step(self.name)
        if isinstance(state.guide, Visitor):
            state.conditional = (network, *rows.moved(args, kwargs, sample, now))
        output = network(*args, **kwargs)
        state.evaluated(1, 1)
        state.sample, state.time, state.output, state.answered = sample, now, output, False
        return output

    def _unconditional(self, state: RunState, network: Network, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        guide = state.guide
        assert guide is not None
        step, output = state.step, state.output
        (conditional,) = rows.branch_terms(output, 1)
        state.guided_steps += 1
        state.answered = True
        if guide.evaluates(step):
            if isinstance(guide, Visitor):
                evaluate = functools.partial(_sequential_pair, state.conditional, (network, args, kwargs))
                guide.visit(step, rows.first_input(args, kwargs), rows.timestep(args, kwargs), evaluate)
            own = network(*args, **kwargs)
            state.evaluated(1, 1)
            (parts,) = rows.branch_terms(own, 1)
            term = difference(conditional, parts)
            used = guide.observe(step, conditional, term)
            result = own if used is None else rows.assemble(own, [unconditional(conditional, used)])
        else:
            state.evaluated(0, 1)
            result = rows.assemble(output, [unconditional(conditional, guide.predict(step, conditional))])
        state.output = None
        return result

    def control(self, network: Network, args: tuple[Any, ...], kwargs: dict[str, Any], who: Caller) -> Any:
        """A call of a ControlNet, which comes before the denoiser's call of the same step."""
        state = self._current(who, args, kwargs)
        guide = state.guide if state is not None else None
        if state is None or guide is None or not isinstance(self.layout, Batched) or not who.guidance_is_on():
            return network(*args, **kwargs)
        branches = self.layout.branches_of(self.pipe)
        n, size = len(branches), rows.count(args, kwargs)
        if size != state.rows or guide.evaluates(state.step + 1):
            return network(*args, **kwargs)
        keep = [k for k, name in enumerate(branches) if name not in self.layout.predicted]
        args, kwargs = rows.cut(args, kwargs, size, n, keep)
        # what stands in the rows of the predicted branches is never read: the denoiser leaves them out, too
        return rows.spread(network(*args, **kwargs), n, keep)

    # -- the report

    def summary(self) -> Summary:
        state = self.state
        if state is None or state.run is None:
            return Summary(self.name, 0, 0, 0, (), 0.0, note="enabled, and no run yet")
        note, finite = "", state.is_finite()
        if not finite:
            note = "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
        elif not state.guided_steps:
            note = "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        plan = state.plan if state.guide is None else state.guide.plan
        if not note and plan is not None and plan.corrector and state.run.response is None:
            note = f"the corrector was left out: {state.run.no_response}"
        return Summary(
            pipeline=self.name,
            steps=state.run.steps,
            nfe=sum(state.evaluations),
            cfg_nfe=sum(state.plain),
            evaluations=tuple(state.evaluations),
            seconds=state.ended - state.started,
            plan=plan if state.guided_steps else None,
            finished=state.at_last_step and not state.failed,
            note=note,
            finite=finite,
        )


def _batched_pair(
    network: Network,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    n: int,
    cond: int,
    predicted: list[int],
    sample: Any,
    time: Any,
) -> tuple[Term, Term]:
    """e_c and d of a batched call, for another sample at another time."""
    args, kwargs = rows.moved(args, kwargs, sample, time)
    parts = rows.branch_terms(network(*args, **kwargs), n)
    return parts[cond], tuple(d for k in predicted for d in difference(parts[cond], parts[k]))


def _sequential_pair(conditional: Any, unconditional: Any, sample: Any, time: Any) -> tuple[Term, Term]:
    """The same of two calls, each with its network and arguments."""
    pair = []
    for network, args, kwargs in (conditional, unconditional):
        args, kwargs = rows.moved(args, kwargs, sample, time)
        pair += rows.branch_terms(network(*args, **kwargs), 1)
    return pair[0], difference(pair[0], pair[1])


def _log_snr(scheduler: Any, times: list[float]) -> tuple[float, ...] | None:
    """The log-SNR at these times, if the scheduler lets it be known."""
    try:
        known = zip(map(_number, scheduler.timesteps), scheduler_log_snr(scheduler).tolist(), strict=True)
        levels = dict(known)
        return tuple(levels[time] for time in times)
    except (THGError, AttributeError, KeyError, IndexError, TypeError, ValueError):
        return None


def _number(value: Any) -> float:
    return float(value.reshape(-1)[0]) if isinstance(value, Tensor) else float(value)


def _same_time(a: Any, b: Any) -> bool:
    """Is this the same time, for whatever number of rows?"""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape != b.shape:
        return _number(a) == _number(b)
    return _same(a, b)


def _same(a: Any, b: Any) -> bool:
    """Is this the same input? Free for the same tensor, which is the usual case."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bool(torch.equal(a, b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return isinstance(a, int | float) and isinstance(b, int | float) and a == b
