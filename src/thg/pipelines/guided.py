"""One call of a pipeline in which the guidance term leaps, as in the paper: the conditional branch runs at each step.

At each step the guide decides whether the unconditional branch runs. If not, its output is e_u = e_c - d with the
predicted term d; the pipeline's own guidance formula is applied to it as usual. A pass is a loop over the time steps of
the scheduler; a pipeline that sets them several times makes several passes, each with its own plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

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
from thg.pipelines.check import Guided, Step, scale_of, verify
from thg.pipelines.describe import obstacle_in
from thg.pipelines.layouts import Batched, Sequential, in_words
from thg.pipelines.run import BROKEN, PipelineRun
from thg.plans.guide import Guide, GuideMaker, HareGuide, Visitor
from thg.plans.plan import Plan
from thg.plans.report import Summary
from thg.plans.run import ADDS_NOISE, RunInfo, Term

CLOSE = 0.02  # largest difference of a measured guidance scale from the stated one, relative to w - 1
CHANGED = 0.05  # of w - 1: a change of the guidance scale that is reported
SLACK = 30  # allowed residual of later steps: some formulas round more at low noise
RESCALES = "the pipeline rescales the network's output at every step"

_SCALES = ("true_cfg_scale", "true_cfg", "guidance_scale")
_CONDITIONAL, _UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")  # diffusers' cache contexts
Layout = Batched | Sequential


@dataclass(eq=False)
class Pass:
    """One loop over the time steps of the scheduler.

    index: of the current step. timed: the network gets the scheduler's own times. plan: known when it ends. finite:
    whether the tensors of the last output were. error: the guide's estimate of the difference from plain CFG.
    """

    info: RunInfo
    index: int = -1
    guided_steps: int = 0
    timed: bool = False
    plan: Plan | None = None
    finite: list[Tensor] = field(default_factory=list)
    error: Tensor | None = None

    @property
    def finished(self) -> bool:
        return self.index == self.info.steps - 1


class Evaluated(NamedTuple):
    """A step with all branches: as the network has put them out, and as the pipeline gets them."""

    branches: Sequence[Term]
    used: Sequence[Term]
    layout: Layout


class GuidedRun(PipelineRun):
    """A run that evaluates the guidance term at the steps of a plan."""

    guide: Guide  # of the current pass

    def __init__(self, owner: Any, pipe: Any, layout: Layout, maker: GuideMaker, arguments: Mapping[str, Any]) -> None:
        """arguments: of the pipeline's call."""
        super().__init__(owner, pipe)
        self._layout, self._maker = layout, maker
        given = next((arguments[name] for name in _SCALES if arguments.get(name) is not None), None)
        self._stated_scale = float(given) if isinstance(given, int | float) else None
        self._checked: Guided | None = None  # the result of the check of the layout
        self._scales: list[Tensor] = []  # of later evaluated steps; on the device until the summary reads them
        self._passes: list[Pass] = []
        # the current pass
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # identify it; now: those of an earlier run
        self._rows: int | None = None  # of a guided call with all branches
        self._unguided_rows: int | None = None  # of a call that was found to have samples of one branch
        self._clear_step()

    def _clear_step(self) -> None:
        """Nothing was called yet since the last step of the scheduler."""
        self._begun = self._guided = False
        self._conditional: tuple[Call, Any] | None = None  # a call that waits for the unconditional one, and its output
        self._evaluated: Evaluated | None = None
        self._further: list[Tensor] = []  # outputs of calls that are no branches

    # -- network calls

    def answer(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Any:
        call = Call(network, args, kwargs, name, self.context)
        self._follow_timesteps(call)
        if not self._passes:
            return call()
        if self.plain_because:
            return self._as_it_comes(call)
        try:
            if isinstance(self._layout, Sequential):
                output = self._in_two_calls(call, self._layout)
            elif call.name in self._layout.networks:
                output = self._in_one_call(call, self._layout.at_present(self.pipe))
            else:
                return self._control(call, self._layout.at_present(self.pipe))
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(error)
            return self._as_it_comes(call)
        self.ended = time.perf_counter()
        own = self._passes[-1]
        if own.finished:
            own.finite = _finite(output)  # NaN spreads to all later states, so this covers the whole pass
            if isinstance(self.guide, HareGuide) and is_sample(call.sample):
                own.error = self.guide.estimated_error(call.sample)
        return output

    def _as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes."""
        output = call()
        self.ended = time.perf_counter()
        if call.name in self._layout.networks:
            own = self._passes[-1]
            if not self._begun and not own.finished:
                self._advance(own)
            own.finite = _finite(output)  # the last one counts
            branches = 1
            if isinstance(self._layout, Batched) and rows_of(output) == self._rows:
                branches = len(self._layout.at_present(self.pipe).branches)
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
        if call.rows != self._rows:  # a step without guidance, or one more call within a guided step
            further = self._begun
            if not further:
                self._begin_step(call.time)
            return self._make_one(call, further=further)
        self._begin_guided_step(call.time)
        if self.guide.evaluates(self._index):
            self._visit([call], n)
            output = call()
            changed = self._observe(branch_terms(output, n), layout)
            if changed is not None and self._checked is None and not self._says_guided():
                raise UnsupportedPipelineError(
                    "its plan changes the first step, and this pipeline does not say before it whether guidance is on"
                )
            self._count(n, instead_of=n)
            return output if changed is None else assemble(output, changed)
        output = self._without_predicted(call, layout)
        self._count(len(layout.kept), instead_of=n)
        kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
        return assemble(output, self._predict([kept.get(k, kept[layout.cond]) for k in range(n)], layout))

    def _without_predicted(self, call: Call, layout: Batched) -> Any:
        """A call without the branches that are predicted. The first one shows whether the network supports that."""
        try:
            with layout.without_predicted(self.pipe):
                return call.keeping(layout.kept, of=len(layout.branches))()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if self._has_leapt:
                raise
            raise UnsupportedPipelineError(
                f"its network does not run with a part of its branches ({type(error).__name__}: {error}); a cache in "
                "it that thg does not know may be why"
            ) from error

    def _control(self, call: Call, layout: Batched) -> Any:
        """A call of a ControlNet, which comes before the denoiser's call of the same step."""
        if call.rows != self._rows or self.guide.evaluates(self._index + 1):
            return call()
        # the rows of the predicted branches are never read: the denoiser skips them as well
        n = len(layout.branches)
        return expand_rows(call.keeping(layout.kept, of=n)(), n, layout.kept)

    @property
    def _has_leapt(self) -> bool:
        return sum(self.evaluations) < sum(self.plain_evaluations)

    # -- a call for each branch, the conditional one first: e_u = e_c - d needs its output

    def _in_two_calls(self, call: Call, layout: Sequential) -> Any:
        first, self._conditional = self._conditional, None
        second = call.name == layout.unconditional or call.context in _UNCONDITIONAL
        if not second and call.context not in _CONDITIONAL:
            second = self._begun
        if not second:
            self._begin_step(call.time)
            kept = call.kept()
            output = self._make_one(call)
            self._conditional = (kept, output)
            return output
        if first is None:
            if not self._begun:
                self._begin_step(call.time)
            return self._make_one(call, further=True)
        self._begin_guided_step(call.time)
        first_call, output = first
        (conditional,) = branch_terms(output, 1)
        if not self.guide.evaluates(self._index):
            self._count(0, instead_of=1)
            return assemble(output, self._predict([conditional, conditional], layout)[1:])
        self._visit([first_call, call], 1)
        output = self._make_one(call)
        changed = self._observe([conditional, *branch_terms(output, 1)], layout)
        return output if changed is None else assemble(output, changed[1:])

    # -- what the guide gets

    def _visit(self, calls: Sequence[Call], n: int) -> None:
        """Lets a guide that measures make the calls of a step, with n branches each, for other samples and times."""
        if isinstance(self.guide, Visitor):

            def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
                branches = [term for call in calls for term in branch_terms(call.with_sample(sample, time)(), n)]
                return branches[self._layout.cond], _term(branches, self._layout)

            self.guide.visit(self._index, calls[-1].sample, calls[-1].time, evaluate)

    def _observe(self, branches: Sequence[Term], layout: Layout) -> list[Term] | None:
        """Passes an evaluated step to the guide. Returns the branches to use in place of these, if any."""
        used = self.guide.observe(self._index, branches[layout.cond], _term(branches, layout))
        changed = None if used is None else _filled(branches, layout, used)
        self._evaluated = Evaluated(branches, changed or branches, layout)
        return changed

    def _predict(self, branches: Sequence[Term], layout: Layout) -> list[Term]:
        """The branches with those that the guide predicts for this step."""
        return _filled(branches, layout, self.guide.predict(self._index, branches[layout.cond]))

    # -- steps

    @property
    def _index(self) -> int:
        """Of the current step."""
        return self._passes[-1].index

    def _says_guided(self) -> bool | None:
        """Is guidance on at the moment? None if the pipeline does not say. Callbacks may change it."""
        # a subclass with its own loop may have the property without the attributes that it reads
        decided = getattr(self.pipe, "do_classifier_free_guidance", None)
        if decided is not None:
            return bool(decided)
        return True if self._stated_scale is not None and self._stated_scale > 1 else None

    def _begin_step(self, time: Any) -> None:
        """The first network call of a step, at this time.

        Calls are assigned to steps by their number: a loop that skips time steps, or goes back, is not followed. That
        is checked where the network gets the scheduler's own times, and they can be read without a wait.
        """
        own = self._passes[-1]
        now, times, index = _on_host(time), own.info.times or (), own.index + 1
        if own.finished:  # the next of several loops over the same time steps (parts of a long video)
            if (own.timed and now != times[0]) or isinstance(self.guide, Visitor):
                raise UnsupportedPipelineError(
                    f"it calls its network more often than the {own.info.steps} time steps of its run, so that the "
                    "calls cannot be assigned to steps"
                )
            guide = self._maker.guide(own.info)
            self._begin_pass(Pass(own.info, timed=own.timed), guide)
        elif index == 0:
            own.timed = now is not None and now == times[0] != 0  # 0 is 0 in all units
        elif own.timed and not self._begun and now != times[index]:
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )
        self._advance(self._passes[-1])

    def _begin_guided_step(self, time: Any) -> None:
        """The call that shows that a step is guided; a call before it may have begun the step."""
        plan = self.guide.plan
        if self.caches and (plan is None or plan.nfe < plan.cfg_nfe):
            raise UnsupportedPipelineError(
                f"{self.cache_names[0]} is inside its network, which plans of the guidance term do not support; "
                "disable it, or use a plan that skips the whole network: thg.enable(pipe, thg.within(0.01))"
            )
        if not self._begun:
            self._begin_step(time)
        self._guided = True
        self._passes[-1].guided_steps += 1

    def _advance(self, own: Pass) -> None:
        own.index += 1
        self._begun = True
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
        own = any(scheduler is part for part in vars(self.pipe).values())  # not a copy for some of the frames
        if own and self._passes:
            if not self.plain_because:
                try:
                    self._check(arguments, output)
                except UnsupportedPipelineError as error:
                    self._go_on_plain(error)
            self._clear_step()
        return output

    def _check(self, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks the layout at the first guided step, and completes the description of the pass."""
        own, seen, sample = self._passes[-1], self._evaluated, arguments.get("sample")
        if own.index == 0 and (obstacle := obstacle_in(arguments)):
            self._describe_anew(_without_response(own.info, obstacle))
        if seen is None or not self._layout.explained:
            return
        branches = tuple(branch[0] for branch in seen.used)
        sample = sample if isinstance(sample, Tensor) else None
        step = Step(branches, seen.layout.cond, tuple(self._further), passed, sample)
        if self._checked is not None:
            scale = scale_of(step, self._checked)
            self._scales += [] if scale is None else [scale]
            return
        self._checked = verify(step)
        if self._checked is not None:
            info = replace(own.info, guidance_scale=self._scale(self._checked))
            if self._checked.with_sample and self._checked.rescaled and isinstance(self._layout, Sequential):
                info = _without_response(info, RESCALES)
            self._describe_anew(info)
            return
        # the step was not guided, or without effect: the guide has not seen it
        own.guided_steps -= 1
        self.guide = self._maker.guide(own.info)
        if self._rows is not None:
            self._unguided_rows = self._rows if step.passed_on_whole else self._unguided_rows
            self._rows = None
            self.evaluations[-1] = self.plain_evaluations[-1] = 1 if step.passed_on_whole else len(branches)

    def _scale(self, checked: Guided | None) -> float | None:
        """w: the stated scale s if it is that, or 1 + s (some formulas are e_c + s (e_c - e_u)); else as measured.

        Rounded, so that a plan does not depend on the rounding of the network's outputs.
        """
        stated = self._stated_scale
        if checked is None or checked.w is None:
            return stated
        for scale in () if stated is None else (stated, 1 + stated):
            if abs(checked.w - scale) <= CLOSE * max(1.0, abs(checked.w - 1)):
                return scale
        return round(checked.w, 1)

    def _describe_anew(self, info: RunInfo) -> None:
        """Makes the guide again if the pass is another than expected; it sees the evaluated step again."""
        own = self._passes[-1]
        if info == own.info or isinstance(self.guide, Visitor):
            return
        own.info, self.guide = info, self._maker.guide(info)
        if self._evaluated is not None:
            branches, _, layout = self._evaluated
            self.guide.evaluates(own.index)
            self.guide.observe(own.index, branches[layout.cond], _term(branches, layout))

    # -- passes

    def _follow_timesteps(self, call: Call) -> None:
        """Begins a pass if the scheduler has new time steps. call: the first one of the pass."""
        scheduler, layout = self.pipe.scheduler, self._layout
        timesteps = getattr(scheduler, "timesteps", None)
        if timesteps is self._timesteps:
            return
        begin = getattr(scheduler, "begin_index", None)
        obstacle = RESCALES if isinstance(layout, Sequential) and layout.rescales else ""
        info = self.described(
            scheduler, scheduler.timesteps[begin or 0 :], obstacle, call.time if begin is None else None
        )
        info = replace(info, guidance_scale=self._scale(self._checked))
        self._begin_pass(Pass(info), self._maker.guide(info))
        self._timesteps, self._rows, self._unguided_rows = timesteps, None, None

    def _begin_pass(self, own: Pass, guide: Guide) -> None:
        self._end_pass()
        self._clear_step()
        self._passes.append(own)
        self.guide = guide

    def _end_pass(self) -> None:
        if self._passes and self._passes[-1].guided_steps:
            self._passes[-1].plan = self.guide.plan

    def close(self) -> None:
        """Drops everything that holds tensors, and keeps what the summary needs."""
        self._end_pass()
        self._clear_step()
        self._timesteps = None
        vars(self).pop("guide", None)

    # -- afterwards

    def summary(self) -> Summary:
        guided = [own for own in self._passes if own.guided_steps]
        finite = all(all(own.finite) for own in self._passes)
        error = guided[-1].error if guided else None
        checked, words = self._checked, ""
        if checked is not None and checked.w is not None:
            words = f"{in_words(self._layout)}, w = {checked.w:.3g}" + (", rescaled" if checked.rescaled else "")
        return self.summed_up(
            self._notes(guided, finite),
            steps=sum(own.info.steps for own in self._passes),
            plan=guided[-1].plan if guided else None,
            finished=not self.failed and (bool(self.plain_because) or all(own.finished for own in self._passes)),
            finite=finite,
            sections=len(self._passes),
            estimated_error=None if error is None else tuple(error.tolist()),
            layout=self._layout,
            checked=words,
        )

    def _notes(self, guided: list[Pass], finite: bool) -> Iterator[str]:
        if self.plain_because:
            yield f"{'the rest of ' if self._has_leapt else ''}this run was plain CFG: {self.plain_because}"
        elif self._passes and not guided:
            yield "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        if not finite:
            yield BROKEN
        for own in guided:
            if finite and own.plan is not None and own.plan.corrector and own.info.response is None:
                yield f"the corrector was left out: {own.info.no_response}"
        yield self._note_on_scales()
        yield from self.notes_on_calls()

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


def _term(branches: Sequence[Term], layout: Layout) -> Term:
    """The differences of the predicted branches, one after the other."""
    return tuple(d for k in layout.skipped for d in difference(branches[layout.cond], branches[k]))


def _filled(branches: Sequence[Term], layout: Layout, term: Term | None) -> list[Term]:
    """The branches with the predicted ones inserted: e_u = e_c - d."""
    filled, conditional = list(branches), branches[layout.cond]
    for place, k in enumerate(layout.skipped):
        own = None if term is None else term[place * len(conditional) : (place + 1) * len(conditional)]
        filled[k] = unconditional(conditional, own)
    return filled


def _finite(output: Any) -> list[Tensor]:
    return [torch.isfinite(tensor).all() for tensor in tensors_of(output)]


def _on_host(time: Any) -> float | None:
    """A time argument as a number; None if reading it would wait for a device, or lose precision."""
    if isinstance(time, Tensor):
        exact = not time.is_floating_point() or torch.finfo(time.dtype).bits >= 32
        return float(time.reshape(-1)[0]) if time.device.type == "cpu" and time.numel() and exact else None
    return float(time) if isinstance(time, int | float) else None


def _without_response(info: RunInfo, reason: str) -> RunInfo:
    """A pass on which the corrector cannot be used."""
    noisy = info.adds_noise or ADDS_NOISE in reason
    return replace(info, response=None, no_response=reason, adds_noise=noisy)
