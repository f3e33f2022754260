"""One call of a pipeline in which the guidance term leaps, as in the paper: the conditional branch runs at each step.

At each step the guide decides whether the unconditional branch runs. If not, its output is e_u = e_c - d with the
predicted term d; the pipeline's own guidance formula is applied to it as usual. `OneCall` answers pipelines with all
branches in one call, `TwoCalls` those with a call for each; both know the current step alone. A pass is a loop over the
time steps of the scheduler; a pipeline that sets them several times makes several passes, each with its own plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
_EXTRA = ("uncond_stg", "uncond_modality")  # cache contexts of other guidance methods, with one branch per call


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

    @property
    def note(self) -> str:
        if self.plan is not None and self.plan.corrector and self.info.response is None:
            return f"the corrector was left out: {self.info.no_response}"
        return ""


class GuidedRun(PipelineRun):
    """A run that evaluates the guidance term at the steps of a plan."""

    guide: Guide  # of the current pass

    def __init__(
        self, owner: Any, pipe: Any, layout: Batched | Sequential, maker: GuideMaker, arguments: Mapping[str, Any]
    ) -> None:
        """arguments: of the pipeline's call."""
        super().__init__(owner, pipe)
        self._layout, self._maker = layout, maker
        given = next((arguments[name] for name in _SCALES if arguments.get(name) is not None), None)
        self._stated_scale = float(given) if isinstance(given, int | float) else None
        self.checked: Guided | None = None  # the result of the check of the layout
        self._scales: list[Tensor] = []  # of later evaluated steps; on the device until the summary reads them
        self.passes: list[Pass] = []
        # the current pass
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # identify it; now: those of an earlier run
        self._branches: OneCall | TwoCalls | None = None  # None before the first pass
        self._observed: tuple[int, Term, Term] | None = None  # the last evaluated step, while the plan may change
        # the current step: what was called since the last step of the scheduler
        self.begun = self.guided = False
        self._evaluated: Step | None = None  # all branches
        self._further: list[Tensor] = []  # outputs of calls that are no branches
        self._plain_rows = 0  # evaluated without changes

    @property
    def index(self) -> int:
        """Of the current step."""
        return self.passes[-1].index

    # -- network calls

    def answer(self, call: Call) -> Any:
        self._follow_timesteps(call)
        if self._branches is None:
            return call()
        if self.plain_because:
            return self._as_it_comes(call)
        try:
            if call.name not in self._layout.networks and isinstance(self._branches, OneCall):
                return self._branches.control(call)
            if not self.begun:
                self._require_time(self.passes[-1], call.time)
            output = self._branches.answer(call)
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(error)
            return self._as_it_comes(call)
        self.ended = time.perf_counter()
        own = self.passes[-1]
        if own.finished:
            own.finite = _finite(output)  # NaN spreads to all later states, so this covers the whole pass
            if isinstance(self.guide, HareGuide) and is_sample(call.sample):
                own.error = self.guide.estimated_error(call.sample)
        return output

    def _as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes; it is counted when its step is made."""
        output = call()
        self.ended = time.perf_counter()
        if call.name in self._layout.networks:
            self._plain_rows += rows_of(output)
            self.passes[-1].finite = _finite(output)  # the last one counts
        return output

    def _go_on_plain(self, error: UnsupportedPipelineError) -> None:
        """Evaluates all branches from now on. Calibration has no use for such a run: there it is an error."""
        if isinstance(self.guide, Visitor):
            raise UnsupportedPipelineError(f"thg cannot follow this {self.name}: {error}") from error
        self.plain_because = str(error)

    # -- steps

    def says_guided(self) -> bool | None:
        """Is guidance on at the moment? None if the pipeline does not say. Callbacks may change it."""
        # a subclass with its own loop may have the property without the attributes that it reads
        decided = getattr(self.pipe, "do_classifier_free_guidance", None)
        if decided is not None:
            return bool(decided)
        return True if self._stated_scale is not None and self._stated_scale > 1 else None

    def begin_step(self, time: Any) -> None:
        """The first network call of a step, at this time."""
        if self.passes[-1].finished:
            self._begin_again(self.passes[-1], time)
        self.passes[-1].index += 1
        self.begun = True
        self.evaluations.append(0)
        self.plain_evaluations.append(0)

    def _require_time(self, own: Pass, now: Any) -> None:
        """Calls are assigned to steps by their number: a loop that skips time steps, or goes back, is not followed.

        Checked where the network gets the scheduler's own times, and they can be read without a wait.
        """
        found, index = _on_host(now), own.index + 1
        times = own.info.times or ()
        if index == 0:
            own.timed = found is not None and found == times[0] != 0  # 0 is 0 in all units
        elif own.timed and index < len(times) and found != times[index]:
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )

    def begin_guided_step(self, time: Any) -> None:
        """The call that shows that a step is guided; a call before it may have begun the step."""
        if not self.begun:
            self.begin_step(time)
        self.guided = True
        self.passes[-1].guided_steps += 1

    def count(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain_evaluations[-1] += instead_of

    def count_one(self, call: Call, *, further: bool = False) -> Any:
        """Makes a call with one branch. further: it is none of the layout's."""
        output = call()
        self.count(1, instead_of=1)
        if further:
            self.note_further(output)
        return output

    def note_further(self, output: Any) -> None:
        self._further.append(branch_terms(output, 1)[0][0])

    def visit(self, call: Call, branches_at: Callable[[Any, Any], Sequence[Term]]) -> None:
        """Lets a guide that measures evaluate the branches for other samples and times."""
        if isinstance(self.guide, Visitor):

            def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
                branches = branches_at(sample, time)
                return branches[self._layout.cond], _term(branches, self._layout)

            self.guide.visit(self.index, call.sample, call.time, evaluate)

    def observe(self, branches: Sequence[Term], layout: Batched | Sequential) -> list[Term] | None:
        """Passes an evaluated step to the guide. Returns the branches to use in place of these, if any."""
        conditional, term = branches[layout.cond], _term(branches, layout)
        if self.checked is None:
            self._observed = (self.index, conditional, term)
        used = self.guide.observe(self.index, conditional, term)
        changed = None if used is None else _filled(branches, layout, used)
        self._evaluated = Step(tuple(branch[0] for branch in changed or branches), layout.cond)
        return changed

    def predict(self, branches: Sequence[Term], layout: Batched | Sequential) -> list[Term]:
        """The branches with those that the guide predicts for this step."""
        return _filled(branches, layout, self.guide.predict(self.index, branches[layout.cond]))

    def step(self, scheduler: Any, output: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Called when the pipeline passes its combined output to a scheduler, which gets the same."""
        branches = self._branches
        own = any(scheduler is part for part in vars(self.pipe).values())  # not a copy for some of the frames
        if not own or branches is None:
            return output
        if not self.plain_because:
            try:
                self._check(branches, arguments, output)
            except UnsupportedPipelineError as error:
                self._go_on_plain(error)
        if self._plain_rows:
            if not self.begun and not self.passes[-1].finished:
                self.begin_step(None)
            count = max(1, self._plain_rows // max(1, len(output)))
            self.count(count, instead_of=count)
        self.begun = self.guided = False
        self._evaluated, self._plain_rows = None, 0
        self._further.clear()
        return output

    def _check(self, branches: OneCall | TwoCalls, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks the layout at the first guided step, and completes the description of the pass."""
        sample = arguments.get("sample")
        sample = sample if isinstance(sample, Tensor) else None
        if self.index == 0 and (obstacle := obstacle_in(arguments)):
            self._describe_anew(_without_response(self.passes[-1].info, obstacle))
        if self._evaluated is None or not self._layout.explained:
            return
        step = replace(self._evaluated, further=tuple(self._further))
        if self.checked is not None:
            scale = scale_of(step, passed, sample, self.checked)
            self._scales += [] if scale is None else [scale]
            return
        self.checked = verify(step, passed, sample)
        if self.checked is None:
            self._take_back(branches, step, passed)
            return
        self._describe_anew(self._as_measured(self.checked))
        self._observed = None

    def _take_back(self, branches: OneCall | TwoCalls, step: Step, passed: Tensor) -> None:
        """The step was not guided, or without effect: the guide has not seen it."""
        self.passes[-1].guided_steps -= 1
        self._observed = None
        self.guide = self._maker.guide(self.passes[-1].info)
        if isinstance(branches, OneCall):
            branches.not_guided(step.passed_on_whole(passed))
            rows = sum(map(len, step.branches))
            self.evaluations[-1] = self.plain_evaluations[-1] = max(1, rows // max(1, len(passed)))

    def _as_measured(self, checked: Guided) -> RunInfo:
        """The description of the pass with what the check has shown."""
        info = replace(self.passes[-1].info, guidance_scale=self._scale(checked))
        if checked.with_sample and checked.rescaled and isinstance(self._layout, Sequential):
            info = _without_response(info, RESCALES)
        return info

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
        own = self.passes[-1]
        if info == own.info or isinstance(self.guide, Visitor):
            return
        own.info, self.guide = info, self._maker.guide(info)
        if self._observed is not None:
            index, conditional, term = self._observed
            self.guide.evaluates(index)
            self.guide.observe(index, conditional, term)

    # -- passes

    def _follow_timesteps(self, call: Call) -> None:
        """Begins a pass if the scheduler has new time steps. call: the first one of the pass."""
        timesteps = getattr(self.pipe.scheduler, "timesteps", None)
        if timesteps is self._timesteps:
            return
        info = self._described(call)
        guide = self._maker.guide(info)
        self.close()
        self._timesteps, self.guide = timesteps, guide
        layout = self._layout
        self._branches = OneCall(self, layout) if isinstance(layout, Batched) else TwoCalls(self, layout)
        self.begun = self.guided = False
        self.passes.append(Pass(info))
        if self.caches and (guide.plan is None or guide.plan.nfe < guide.plan.cfg_nfe):
            self._go_on_plain(
                UnsupportedPipelineError(
                    f"{self.cache_names[0]} is inside its network, which plans of the guidance term do not support; "
                    "disable it, or use a plan that skips the whole network: thg.enable(pipe, thg.within(0.01))"
                )
            )

    def _begin_again(self, own: Pass, time: Any) -> None:
        """A call after the last step: the next of several loops over the same time steps (parts of a long video)."""
        first_again = not own.timed or (own.info.times is not None and _on_host(time) == own.info.times[0])
        if not first_again or isinstance(self.guide, Visitor):
            raise UnsupportedPipelineError(
                f"it calls its network more often than the {own.info.steps} time steps of its run, so that the calls "
                "cannot be assigned to steps"
            )
        self._end_pass()
        self.guide = self._maker.guide(own.info)
        self.passes.append(Pass(own.info, timed=own.timed))

    def _described(self, call: Call) -> RunInfo:
        scheduler, layout = self.pipe.scheduler, self._layout
        obstacle = RESCALES if isinstance(layout, Sequential) and layout.rescales else ""
        begin = getattr(scheduler, "begin_index", None)
        first = call.time if begin is None else None
        run = self.described(scheduler, scheduler.timesteps[begin or 0 :], obstacle, first)
        return replace(run, guidance_scale=self._scale(self.checked))

    def close(self) -> None:
        """Drops everything that holds tensors, and keeps what the summary needs."""
        self._timesteps = self._observed = self._evaluated = None
        self._further.clear()
        if self._branches is not None:
            self._end_pass()
            self._branches = None
            del self.guide

    def _end_pass(self) -> None:
        if self.passes[-1].guided_steps:
            self.passes[-1].plan = self.guide.plan

    # -- afterwards

    def summary(self) -> Summary:
        guided = [own for own in self.passes if own.guided_steps]
        error = guided[-1].error if guided else None
        uncounted = 0 if self.failed else self._plain_rows  # no step of the scheduler was seen after them
        checked, words = self.checked, ""
        if checked is not None and checked.w is not None:
            words = f"{in_words(self._layout)}, w = {checked.w:.3g}" + (", rescaled" if checked.rescaled else "")
        return self.summed_up(
            self._notes(guided),
            steps=sum(own.info.steps for own in self.passes),
            nfe=sum(self.evaluations) + uncounted,
            cfg_nfe=sum(self.plain_evaluations) + uncounted,
            plan=guided[-1].plan if guided else None,
            finished=not self.failed and (uncounted > 0 or all(own.finished for own in self.passes)),
            finite=all(all(own.finite) for own in self.passes),
            sections=len(self.passes),
            estimated_error=None if error is None else tuple(error.tolist()),
            layout=self._layout,
            checked=words,
        )

    def _notes(self, guided: list[Pass]) -> Iterator[str]:
        if self.plain_because:
            skipped = sum(self.evaluations) < sum(self.plain_evaluations)
            yield f"{'the rest of ' if skipped else ''}this run was plain CFG: {self.plain_because}"
        elif self.passes and not guided:
            yield "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        if not all(all(own.finite) for own in self.passes):
            yield BROKEN
        else:
            yield from (own.note for own in guided)
        yield self._note_on_scales()
        yield from self.notes_on_calls()

    def _note_on_scales(self) -> str:
        """Whether later steps were combined as the first one was; waits for the device."""
        if not self._scales or self.checked is None or self.checked.w is None:
            return ""
        w, known = self.checked.w, torch.stack(self._scales).tolist()
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


class OneCall:
    """All branches of a step in one call, stacked along the batch."""

    def __init__(self, run: GuidedRun, layout: Batched) -> None:
        self._run, self._layout = run, layout
        self._rows: int | None = None  # of a guided call
        self._unguided_rows: int | None = None  # of a call that was found to have samples of one branch
        self._has_leapt = False

    def answer(self, call: Call) -> Any:
        """A call with all branches of a step, or with one branch if guidance is off."""
        run = self._run
        if call.context in _EXTRA:
            output = call()
            run.note_further(output)
            return output
        layout = self._layout.at_present(run.pipe)
        n = len(layout.branches)
        if run.guided and call.rows == self._rows:
            raise UnsupportedPipelineError(
                "it calls its network with all branches more than once between two steps of its scheduler"
            )
        if self._rows is None and call.rows % n == 0 and call.rows != self._unguided_rows:
            says = run.says_guided()
            if says or (says is None and layout.explained):  # then the scheduler's input will show it
                self._rows = call.rows
        if call.rows != self._rows:  # a step without guidance, or one more call within a guided step
            further = run.begun
            if not further:
                run.begin_step(call.time)
            return run.count_one(call, further=further)
        run.begin_guided_step(call.time)
        if run.guide.evaluates(run.index):
            return self._evaluated(call, layout)
        output = self._in_leap(call, layout)
        run.count(len(layout.kept), instead_of=n)
        kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
        return assemble(output, run.predict([kept.get(k, kept[layout.cond]) for k in range(n)], layout))

    def control(self, call: Call) -> Any:
        """A call of a ControlNet, which comes before the denoiser's call of the same step."""
        run = self._run
        if call.rows != self._rows or run.guide.evaluates(run.index + 1):
            return call()
        layout = self._layout.at_present(run.pipe)
        # the rows of the predicted branches are never read: the denoiser skips them as well
        n = len(layout.branches)
        return expand_rows(call.keeping(layout.kept, of=n)(), n, layout.kept)

    def _evaluated(self, call: Call, layout: Batched) -> Any:
        """Runs all branches and passes the new term to the guide."""
        run, n = self._run, len(layout.branches)
        run.visit(call, lambda sample, time: branch_terms(call.with_sample(sample, time)(), n))
        output = call()
        changed = run.observe(branch_terms(output, n), layout)
        if changed is not None and run.checked is None and not run.says_guided():
            raise UnsupportedPipelineError(
                "its plan changes the first step, and this pipeline does not say before it whether guidance is on"
            )
        run.count(n, instead_of=n)
        return output if changed is None else assemble(output, changed)

    def _in_leap(self, call: Call, layout: Batched) -> Any:
        """Runs a part of the branches. The first time shows whether the network supports that."""
        try:
            with layout.without_predicted(self._run.pipe):
                output = call.keeping(layout.kept, of=len(layout.branches))()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            if self._has_leapt:
                raise
            raise UnsupportedPipelineError(
                f"its network does not run with a part of its branches ({type(error).__name__}: {error}); a cache in "
                "it that thg does not know may be why"
            ) from error
        self._has_leapt = True
        return output

    def not_guided(self, samples_of_one_branch: bool) -> None:
        """The last call was not guided: it had one branch, or guidance had no effect."""
        self._unguided_rows = self._rows if samples_of_one_branch else self._unguided_rows
        self._rows = None


class TwoCalls:
    """A call for each branch, the conditional one first: e_u = e_c - d needs its output."""

    def __init__(self, run: GuidedRun, layout: Sequential) -> None:
        self._run, self._layout = run, layout
        self._conditional: tuple[Call, Any] | None = None  # the first call of the current step, and its output

    def answer(self, call: Call) -> Any:
        """A call with one branch."""
        run, first = self._run, self._conditional
        second = call.name == self._layout.unconditional or call.context in _UNCONDITIONAL
        if not second and call.context not in _CONDITIONAL:
            second = run.begun
        if not second:
            run.begin_step(call.time)
            kept = call.kept()
            self._conditional = (kept, run.count_one(call))
            return self._conditional[1]
        if not run.begun:
            run.begin_step(call.time)
            first = None
        if first is None:
            return run.count_one(call, further=True)
        self._conditional = None
        run.begin_guided_step(call.time)
        return self._unconditional(*first, call)

    def _unconditional(self, first: Call, output: Any, call: Call) -> Any:
        """The unconditional output of a step, evaluated or predicted. first: the conditional call, and its output."""
        run, layout = self._run, self._layout
        (conditional,) = branch_terms(output, 1)
        if not run.guide.evaluates(run.index):
            run.count(0, instead_of=1)
            return assemble(output, run.predict([conditional, conditional], layout)[1:])
        run.visit(call, lambda sample, time: [branch_terms(c.with_sample(sample, time)(), 1)[0] for c in (first, call)])
        own = run.count_one(call)
        changed = run.observe([conditional, *branch_terms(own, 1)], layout)
        return own if changed is None else assemble(own, changed[1:])


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
