"""One call of a pipeline in which the guidance term leaps, as in the paper: the conditional branch runs at each step.

At each step the guide decides whether the unconditional branch runs. If not, its output is e_u = e_c - d with the
predicted term d; the pipeline's own guidance formula is applied to it as usual. A pipeline that sets its time steps
several times makes several loops, each with its own plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.pipelines.calls import (
    Call,
    assemble,
    branch_terms,
    difference,
    expand_rows,
    is_sample,
    rows_of,
    tensors_of,
    unconditional,
)
from thg.pipelines.check import CheckedStep, Guided, scale_of, verify
from thg.pipelines.describe import obstacle_in
from thg.pipelines.layouts import Batched, Sequential, in_words
from thg.pipelines.run import Loop, PipelineRun
from thg.plans.guide import Guide, GuideMaker, HareGuide, Visitor
from thg.plans.plan import Plan
from thg.plans.response import ADDS_NOISE
from thg.plans.run_info import RunInfo, Term
from thg.plans.summary import Summary

CLOSE = 0.02  # largest difference of a measured guidance scale from the stated one, relative to w - 1
CHANGED = 0.05  # of w - 1: a change of the guidance scale that is reported
SLACK = 30  # allowed residual of later steps: some formulas round more at low noise
RESCALES = "the pipeline rescales the network's output at every step"


@dataclass(eq=False)
class GuidedLoop(Loop):
    """The steps over the time steps of the scheduler.

    timed: the network gets the scheduler's own times. guided: a step with guidance was made. plan: the one it followed.
    """

    timed: bool = False
    guided: bool = False
    plan: Plan | None = None


class GuidedRun(PipelineRun):
    """A run that evaluates the guidance term at the steps of a plan."""

    guide: Guide  # of the current loop

    def __init__(
        self, owner: Any, pipe: Any, layout: Batched | Sequential, maker: GuideMaker, arguments: Mapping[str, Any]
    ) -> None:
        super().__init__(owner, pipe, arguments)
        self._given_layout, self._maker = layout, maker
        self._checked: Guided | None = None  # the result of the check of the layout
        self._scales: list[Tensor] = []  # of later evaluated steps; on the device until the summary reads them
        self.loops: list[GuidedLoop] = []
        # the current loop
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # identify it; now: those of an earlier run
        self._rows: int | None = None  # of a guided call with all branches
        self._unguided_rows: int | None = None  # of a call that was found to have samples of one branch
        self._clear_step()

    def _clear_step(self) -> None:
        """Nothing was called yet since the last step of the scheduler."""
        self._begun = self._guided = False
        self._conditional: tuple[Call, Any] | None = None  # a call that waits for the unconditional one, and its output
        self._evaluated: Sequence[Term] = ()  # all branches of the step, as the network has put them out
        self._used: Sequence[Term] = ()  # and as the pipeline gets them
        self._further: list[Tensor] = []  # outputs of calls that are no branches

    @property
    def _layout(self) -> Batched | Sequential:
        """As it is in the current call of the pipeline."""
        layout: Batched | Sequential = self._given_layout.at_present(self.pipe)
        return layout

    # -- network calls

    def answer(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        call = Call(network, args, kwargs, name)
        self._follow_timesteps(call)
        if not self.loops:
            return call()
        try:
            output = self._as_it_comes(call) if self.plain_because else self._by_layout(call, self._layout)
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(error)
            output = self._as_it_comes(call)
        self.ended, loop = time.perf_counter(), self.loops[-1]
        if loop.finished or self.plain_because:  # the last one counts: NaN spreads to all later states
            loop.finite = torch.stack([torch.isfinite(tensor).all() for tensor in tensors_of(output)]).all()
            if isinstance(self.guide, HareGuide) and not self.plain_because and is_sample(call.sample):
                loop.error = self.guide.estimated_error(call.sample)
        return output

    def _by_layout(self, call: Call, layout: Batched | Sequential) -> Any:
        if isinstance(layout, Sequential):
            return self._in_two_calls(call, layout)
        return self._in_one_call(call, layout) if call.name in layout.networks else self._control(call, layout)

    def _as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes."""
        output = call()
        if call.name in self._layout.networks:
            if not self._begun:
                self._advance()
            branches = len(self._layout.branches) if rows_of(output) == self._rows else 1
            self._count(branches, instead_of=branches)
        return output

    def _go_on_plain(self, error: UnsupportedPipelineError) -> None:
        """Evaluates all branches from now on. Calibration has no use for such a run: there it is an error."""
        if isinstance(self.guide, Visitor):
            raise UnsupportedPipelineError(f"thg cannot follow this {self.name}: {error}") from error
        self.plain_because = str(error)

    # -- all branches in one call, stacked along the batch

    def _in_one_call(self, call: Call, layout: Batched) -> Any:
        """A call with all branches of a step, or with one branch if guidance is off."""
        if self._guided and call.rows == self._rows:
            raise UnsupportedPipelineError(
                "it calls its network with all branches more than once between two steps of its scheduler"
            )
        n = len(layout.branches)
        if self._rows is None and call.rows % n == 0 and call.rows != self._unguided_rows:
            says = self._says_guided()
            if says or (says is None and layout.explained):  # then the scheduler's input will show it
                self._rows = call.rows
        begun = self._begun
        self._begin_step(call.time)
        if call.rows != self._rows:  # a step without guidance, or one more call within a guided step
            return self._make_one(call, further=begun)
        self._begin_guidance()
        if self.guide.evaluates(self._index):
            self._visit([call], n)
            output = call()
            changed = self._observe(branch_terms(output, n))
            if changed is not None and self._checked is None and not self._says_guided():
                raise UnsupportedPipelineError(
                    "its plan changes the first step, and this pipeline does not say before it whether guidance is on"
                )
            self._count(n, instead_of=n)
            return output if changed is None else assemble(output, changed)
        output = self._without_predicted(call, layout)
        self._count(len(layout.kept), instead_of=n)
        kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
        return assemble(output, self._predict([kept.get(k, kept[layout.cond]) for k in range(n)]))

    def _without_predicted(self, call: Call, layout: Batched) -> Any:
        """A call without the branches that are predicted. The first one shows whether the network supports that."""
        try:
            with layout.without_predicted(self.pipe):
                return call.keeping(layout.kept, of=len(layout.branches))()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if self.has_leapt:
                raise
            raise UnsupportedPipelineError(
                f"its network does not run with a part of its branches ({type(error).__name__}: {error}); a cache in "
                "it that thg does not know may be why"
            ) from error

    def _control(self, call: Call, layout: Batched) -> Any:
        """A call of a ControlNet, which comes before the denoiser's call of the same step."""
        if call.rows != self._rows or self.guide.evaluates(self.loops[-1].index):
            return call()
        # the rows of the predicted branches are never read: the denoiser skips them as well
        n = len(layout.branches)
        return expand_rows(call.keeping(layout.kept, of=n)(), n, layout.kept)

    # -- a call for each branch, the conditional one first: e_u = e_c - d needs its output

    def _in_two_calls(self, call: Call, layout: Sequential) -> Any:
        first, self._conditional = self._conditional, None
        begun = self._begun
        self._begin_step(call.time)
        if first is None:
            kept = call.kept()
            output = self._make_one(call, further=begun)
            if not begun and call.name != layout.unconditional:
                self._conditional = (kept, output)
            return output
        self._begin_guidance()
        first_call, output = first
        (conditional,) = branch_terms(output, 1)
        if not self.guide.evaluates(self._index):
            self._count(0, instead_of=1)
            return assemble(output, self._predict([conditional, conditional])[1:])
        self._visit([first_call, call], 1)
        output = self._make_one(call)
        changed = self._observe([conditional, *branch_terms(output, 1)])
        return output if changed is None else assemble(output, changed[1:])

    # -- what the guide gets

    def _visit(self, calls: Sequence[Call], n: int) -> None:
        """Lets a guide that measures make the calls of a step, with n branches each, for other samples and times."""
        if isinstance(self.guide, Visitor):

            def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
                branches = [term for call in calls for term in branch_terms(call.with_sample(sample, time)(), n)]
                return branches[self._layout.cond], _term(branches, self._layout)

            self.guide.visit(self._index, calls[-1].sample, calls[-1].time, evaluate)

    def _observe(self, branches: Sequence[Term]) -> list[Term] | None:
        """Passes an evaluated step to the guide. Returns the branches to use in place of these, if any."""
        used = self.guide.observe(self._index, branches[self._layout.cond], _term(branches, self._layout))
        changed = None if used is None else _filled(branches, self._layout, used)
        self._evaluated, self._used = branches, changed or branches
        return changed

    def _predict(self, branches: Sequence[Term]) -> list[Term]:
        """The branches with those that the guide predicts for this step."""
        predicted = self.guide.predict(self._index, branches[self._layout.cond])
        return _filled(branches, self._layout, predicted)

    # -- steps

    @property
    def _index(self) -> int:
        """Of the current step."""
        return self.loops[-1].index - 1

    def _says_guided(self) -> bool | None:
        """Is guidance on at the moment? None if the pipeline does not say. Callbacks may change it."""
        # a subclass with its own loop may have the property without the attributes that it reads
        decided = getattr(self.pipe, "do_classifier_free_guidance", None)
        if decided is not None:
            return bool(decided)
        return True if self._stated_scale is not None and self._stated_scale > 1 else None

    def _begin_step(self, time: Any) -> None:
        """A network call of a step, at this time; the first one begins the step.

        Calls are assigned to steps by their number: a loop that skips time steps, or goes back, is not followed. That
        is checked where the network gets the scheduler's own times, and they can be read without a wait.
        """
        if self._begun:
            return
        loop = self.loops[-1]
        now, times = _on_host(time), loop.run.times or ()
        if loop.finished:  # the next of several loops over the same time steps (parts of a video)
            if (loop.timed and now != times[0]) or isinstance(self.guide, Visitor):
                raise UnsupportedPipelineError(
                    f"it calls its network more often than the {loop.run.steps} time steps of its run, so that the "
                    "calls cannot be assigned to steps"
                )
            self._begin_loop(GuidedLoop(loop.run, timed=loop.timed))
        elif loop.index == 0:
            loop.timed = now is not None and now == times[0] != 0  # 0 is 0 in all units
        elif loop.timed and now != times[loop.index]:
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )
        self._advance()

    def _begin_guidance(self) -> None:
        """A call shows that the step is guided."""
        plan = self.guide.plan
        if self.caches and (plan is None or plan.nfe < plan.cfg_nfe):
            raise UnsupportedPipelineError(
                f"{self.cache_names[0]} is inside its network, which plans of the guidance term do not support; "
                "disable it, or use a plan that skips the whole network: thg.enable(pipe, thg.within(0.01))"
            )
        self._guided = self.loops[-1].guided = True

    def _advance(self) -> None:
        loop, self._begun = self.loops[-1], True
        loop.index += 1
        loop.finished = loop.index >= loop.run.steps
        self.evaluations.append(0)
        self.plain_evaluations.append(0)

    def _count(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain_evaluations[-1] += instead_of

    def _make_one(self, call: Call, *, further: bool = False) -> Any:
        """Makes a call with one branch. further: it is none of the layout's."""
        output = call()
        self._count(1, instead_of=1)
        if further:
            self._further.append(branch_terms(output, 1)[0][0])
        return output

    def step(self, scheduler: Any, output: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Called when the pipeline passes its combined output to a scheduler, which gets the same."""
        own = any(scheduler is part for part in vars(self.pipe).values())  # not a copy for some frames, or for sound
        if own and self.loops and not self.plain_because:
            try:
                self._check(arguments, output)
            except UnsupportedPipelineError as error:
                self._go_on_plain(error)
        self._clear_step()
        return output

    def _check(self, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks the layout at the first guided step, and completes the description of the loop."""
        loop, layout, sample = self.loops[-1], self._layout, arguments.get("sample")
        if loop.index == 1 and (obstacle := obstacle_in(arguments)):
            self._describe_anew(_without_response(loop.run, obstacle))
        if not self._evaluated or not layout.explained:
            return
        branches = tuple(branch[0] for branch in self._used)
        sample = sample if isinstance(sample, Tensor) else None
        step = CheckedStep(branches, layout.cond, tuple(self._further), passed, sample)
        if self._checked is not None:
            scale = scale_of(step, self._checked)
            self._scales += [] if scale is None else [scale]
            return
        self._checked = verify(step)
        if self._checked is not None:
            info = replace(loop.run, guidance_scale=self._scale())
            if self._checked.with_sample and self._checked.rescaled and isinstance(layout, Sequential):
                info = _without_response(info, RESCALES)
            self._describe_anew(info)
            return
        # the step was not guided, or without effect: the guide has not seen it
        loop.guided = False
        self.guide = self._maker.guide(loop.run)
        if self._rows is not None:
            self._unguided_rows = self._rows if step.passed_on_whole else self._unguided_rows
            self._rows = None
            self.evaluations[-1] = self.plain_evaluations[-1] = 1 if step.passed_on_whole else len(branches)

    def _scale(self) -> float | None:
        """w: the stated scale s if it is that, or 1 + s (some formulas are e_c + s (e_c - e_u)); else as measured.

        Rounded, so that a plan does not depend on the rounding of the network's outputs.
        """
        stated, checked = self._stated_scale, self._checked
        if checked is None or checked.w is None:
            return stated
        for scale in () if stated is None else (stated, 1 + stated):
            if abs(checked.w - scale) <= CLOSE * max(1.0, abs(checked.w - 1)):
                return scale
        return round(checked.w, 1)

    def _describe_anew(self, info: RunInfo) -> None:
        """Makes the guide again if the pass is another than expected; it sees the evaluated step again."""
        loop, layout = self.loops[-1], self._layout
        if info == loop.run or isinstance(self.guide, Visitor):
            return
        loop.run, self.guide = info, self._maker.guide(info)
        if self._evaluated:
            self.guide.evaluates(self._index)
            self.guide.observe(self._index, self._evaluated[layout.cond], _term(self._evaluated, layout))

    # -- loops

    def _follow_timesteps(self, call: Call) -> None:
        """Begins a loop if the scheduler has new time steps. call: the first one of the loop."""
        scheduler, layout = self.pipe.scheduler, self._layout
        timesteps = getattr(scheduler, "timesteps", None)
        if timesteps is self._timesteps:
            return
        begin = getattr(scheduler, "begin_index", None)
        obstacle = RESCALES if isinstance(layout, Sequential) and layout.rescales else ""
        info = self.described(
            scheduler, scheduler.timesteps[begin or 0 :], obstacle, call.time if begin is None else None
        )
        self._begin_loop(GuidedLoop(replace(info, guidance_scale=self._scale())))
        self._timesteps, self._rows, self._unguided_rows = timesteps, None, None

    def _begin_loop(self, loop: GuidedLoop) -> None:
        guide = self._maker.guide(loop.run)
        self._end_loop()
        self._clear_step()
        self.loops.append(loop)
        self.guide = guide

    def _end_loop(self) -> None:
        if self.loops and self.loops[-1].guided:
            self.loops[-1].plan = self.guide.plan

    def close(self) -> None:
        """Drops everything that holds tensors, and keeps what the summary needs."""
        self._end_loop()
        self._clear_step()
        self._timesteps = None
        vars(self).pop("guide", None)

    # -- afterwards

    def summary(self) -> Summary:
        guided = [loop for loop in self.loops if loop.guided]
        checked, words = self._checked, ""
        if checked is not None and checked.w is not None:
            words = f"{in_words(self._given_layout)}, w = {checked.w:.3g}" + (", rescaled" if checked.rescaled else "")
        return self.summed_up(
            self._notes(guided), plan=guided[-1].plan if guided else None, layout=self._given_layout, checked=words
        )

    def _notes(self, guided: list[GuidedLoop]) -> Iterator[str]:
        yield self.reason()
        if self.loops and not guided and not self.plain_because:
            yield "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
            if max(self.plain_evaluations, default=0) > 1:
                yield (
                    f"if it was on, its branches do not come as the layout says ({in_words(self._given_layout)}); name "
                    "it: thg.enable(pipe, plan, layout=...)"
                )
        for loop in guided:
            if loop.plan is not None and loop.plan.corrector and loop.run.response is None:
                yield f"the corrector was left out: {loop.run.no_response}"
        yield self._note_on_scales()

    def _note_on_scales(self) -> str:
        """Whether later steps were combined as the first one was; waits for the device."""
        if not self._scales or self._checked is None or self._checked.w is None:
            return ""
        w, known = self._checked.w, torch.stack(self._scales).tolist()
        wrong = sum(not error < SLACK for error, _, _ in known)
        if wrong:
            return f"{wrong} of {len(known)} later steps passed something to the scheduler that thg cannot explain"
        far = max((own for error, doubt, own in known if doubt < CHANGED), key=lambda own: abs(own - w), default=w)
        if abs(far - w) > CHANGED * max(1.0, abs(w - 1)):
            return (
                f"the guidance scale changed during the run, from {w:.3g} to {far:.3g}; plan and estimate are those of "
                "the first"
            )
        return ""


def _term(branches: Sequence[Term], layout: Batched | Sequential) -> Term:
    """The differences of the predicted branches, one after the other."""
    return tuple(d for k in layout.skipped for d in difference(branches[layout.cond], branches[k]))


def _filled(branches: Sequence[Term], layout: Batched | Sequential, term: Term | None) -> list[Term]:
    """The branches with the predicted ones inserted: e_u = e_c - d."""
    filled, conditional = list(branches), branches[layout.cond]
    for place, k in enumerate(layout.skipped):
        own = None if term is None else term[place * len(conditional) : (place + 1) * len(conditional)]
        filled[k] = unconditional(conditional, own)
    return filled


def _on_host(time: Any) -> float | None:
    """A time argument as a number; None if reading it would wait for a device, or lose precision."""
    if isinstance(time, Tensor):
        exact = not time.is_floating_point() or torch.finfo(time.dtype).bits >= 32
        return float(time.reshape(-1)[0]) if time.device.type == "cpu" and time.numel() and exact else None
    return float(time) if isinstance(time, int | float) else None


def _without_response(info: RunInfo, reason: str) -> RunInfo:
    """A loop on which the corrector cannot be used."""
    noisy = info.adds_noise or ADDS_NOISE in reason
    return replace(info, response=None, no_response=reason, adds_noise=noisy)
