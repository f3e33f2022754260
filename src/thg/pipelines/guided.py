"""One call of a pipeline in which the guidance term leaps, as in the paper: the conditional branch runs at each step.

At each step the guide decides whether the unconditional branch runs. If not, its output is e_u = e_c - d with the
predicted term d; the pipeline's own guidance formula is applied to it as usual. `OneCall` answers pipelines with all
branches in one call, `TwoCalls` those with a call for each; both know the current step alone. A pass is a loop over the
time steps of the scheduler; a pipeline that sets them several times makes several passes, each with its own plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
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
    samples_of,
    tensors_of,
    unconditional,
)
from thg.pipelines.check import Guided, Step, scale_of, verify
from thg.pipelines.describe import describe
from thg.pipelines.identity import fingerprint
from thg.pipelines.layouts import Batched, Sequential, in_words
from thg.pipelines.run import LENGTH, PipelineRun
from thg.pipelines.watch import obstacle_in
from thg.plans.guide import Guide, GuideMaker, HareGuide, Visitor
from thg.plans.plan import Plan
from thg.plans.report import Summary
from thg.plans.response import ADDS_NOISE
from thg.plans.run import RunInfo, Term

CLOSE = 0.02  # largest difference of a measured guidance scale from the stated one, relative to w - 1
CHANGED = 0.05  # of w - 1: a change of the guidance scale that is reported
SLACK = 30  # allowed residual of later steps: some formulas round more at low noise

_SCALES = ("true_cfg_scale", "true_cfg", "guidance_scale")
_CONDITIONAL, _UNCONDITIONAL = ("cond", "pred_cond"), ("uncond", "pred_uncond")  # diffusers' cache contexts
_EXTRA = ("uncond_stg", "uncond_modality")  # cache contexts of other guidance methods, with one branch per call


class GuidedRun(PipelineRun):
    """A run that evaluates the guidance term at the steps of a plan."""

    guide: Guide  # of the current pass
    info: RunInfo  # the description of the current pass

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
        self.passes: list[_Pass] = []
        # the current pass
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # identify it; now: those of an earlier run
        self._branches: OneCall | TwoCalls | None = None  # None before the first pass
        self._observed: tuple[int, Term, Term] | None = None  # the last evaluated step, while the plan may change
        self.index = -1  # of the current step
        self.begun = False  # the network has been called since the last step of the scheduler
        self._guided_at = -1  # the last step with guidance
        self._first_step = True  # of the scheduler in this pass
        self._times_are_known = False  # the network gets the scheduler's own times
        self._lists = False  # the network takes and returns a list of samples
        self._plain_rows = 0  # of the current step, evaluated without changes

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
                self._require_time(call.time)
                self._lists = isinstance(call.sample, list)
            output = self._branches.answer(call)
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(error)
            return self._as_it_comes(call)
        self.ended = time.perf_counter()
        if self.index + (not self.begun) == self.info.steps - 1:
            last = self.passes[-1]
            last.finite = _finite(output)  # NaN spreads to all later states, so this covers the whole pass
            if isinstance(self.guide, HareGuide) and is_sample(call.sample):
                (*sample,) = self._as_batch(tuple(call.sample)) if self._lists else (call.sample,)
                last.error = self.guide.estimated_error(sample[0] if len(sample) == 1 else sample)
        return output

    def _as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes; it is counted when its step is made."""
        output = call()
        self.ended = time.perf_counter()
        if call.name in self._layout.networks:
            self._plain_rows += rows_of(output)
            if self.passes:  # the last one counts
                self.passes[-1].finite = _finite(output)
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

    def begin_step(self) -> None:
        """The first network call of a step."""
        if self.index + 1 >= self.info.steps:
            raise UnsupportedPipelineError(
                f"it calls its network more often than the {self.info.steps} time steps of its run, so that the calls "
                "cannot be assigned to steps"
            )
        self._add_step()

    def _add_step(self) -> None:
        self.index += 1
        self.begun = True
        self.evaluations.append(0)
        self.plain_evaluations.append(0)

    def _require_time(self, now: Any) -> None:
        """Calls are assigned to steps by their number: a loop that skips time steps, or goes back, is not followed.

        Checked where the network gets the scheduler's own times, and they can be read without a wait.
        """
        found, index = _on_host(now), self.index + 1
        times = self.info.times or ()
        if index == 0:
            self._times_are_known = found is not None and found == times[0]
        elif self._times_are_known and index < len(times) and found != times[index]:
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )

    def begin_guided_step(self) -> None:
        """The call that shows that a step is guided; a call before it may have begun the step."""
        if not self.begun:
            self.begin_step()
        self._guided_at = self.index
        self.passes[-1].guided_steps += 1

    def count(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain_evaluations[-1] += instead_of

    def observe(self, conditional: Term, term: Term) -> Term | None:
        """Passes an evaluated step to the guide. Returns the term to use instead of its own, if any."""
        term = self._as_batch(term)
        if self.checked is None:
            self._observed = (self.index, conditional, term)
        return _as_samples(self.guide.observe(self.index, conditional, term), conditional)

    def predict(self, conditional: Term) -> Term | None:
        """The term that the guide predicts for this step."""
        return _as_samples(self.guide.predict(self.index, conditional), conditional)

    def _as_batch(self, term: Term) -> Term:
        """A list of samples of one size as one tensor: guides take several tensors for parts of each sample."""
        one_size = len({tensor.shape for tensor in term}) == 1
        return (torch.stack(term),) if self._lists and one_size and isinstance(self.guide, HareGuide) else term

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
            if not self.begun and self.index + 1 < self.info.steps:
                self._add_step()
            count = max(1, self._plain_rows // max(1, len(output)))
            self.count(count, instead_of=count)
            self._plain_rows = 0
        branches.end_step()
        self._first_step = self.begun = False
        return output

    def _check(self, branches: OneCall | TwoCalls, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks the layout at the first guided step, and completes the description of the pass."""
        sample = arguments.get("sample")
        sample = sample if isinstance(sample, Tensor) else None
        if self._first_step and (obstacle := obstacle_in(arguments)):
            self._describe_anew(_without_response(self.info, obstacle))
        step = branches.evaluated_step()
        if step is None or not self._layout.explained:
            return
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
        branches.not_guided(passed)
        self.passes[-1].guided_steps -= 1
        self._guided_at, self._observed = -1, None
        self.guide = self._maker.guide(self.info)
        if step.whole is not None:
            self.evaluations[-1] = self.plain_evaluations[-1] = max(1, len(step.whole) // max(1, len(passed)))

    def _as_measured(self, checked: Guided) -> RunInfo:
        """The description of the pass with what the check has shown."""
        info = replace(self.info, guidance_scale=self._scale(checked))
        if checked.with_sample and checked.rescaled and isinstance(self._layout, Sequential):
            info = _without_response(info, "the pipeline rescales the network's output at every step")
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
        if info == self.info or isinstance(self.guide, Visitor):
            return
        self.info, self.guide = info, self._maker.guide(info)
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
        self._timesteps, self.info, self.guide = timesteps, info, guide
        layout = self._layout
        self._branches = OneCall(self, layout) if isinstance(layout, Batched) else TwoCalls(self, layout)
        self.index = self._guided_at = -1
        self.begun, self._first_step = False, True
        self.passes.append(_Pass(info.steps))
        if self.caches and (guide.plan is None or guide.plan.nfe < guide.plan.cfg_nfe):
            self._go_on_plain(
                UnsupportedPipelineError(
                    f"{self.cache_names[0]} is inside its network, which plans of the guidance term do not support; "
                    "disable it, or use a plan that skips the whole network: thg.enable(pipe, thg.within(0.01))"
                )
            )

    def _described(self, call: Call) -> RunInfo:
        scheduler, layout = self.pipe.scheduler, self._layout
        rescales = isinstance(layout, Sequential) and layout.rescales
        obstacle = "the pipeline rescales the network's output at every step" if rescales else ""
        begin = getattr(scheduler, "begin_index", None)
        steps = getattr(self.pipe, LENGTH, None)  # of its loop, which may end before the scheduler's last time step
        run = describe(
            scheduler,
            scheduler.timesteps[begin or 0 :],
            obstacle,
            call.time if begin is None else None,
            steps if isinstance(steps, int) and steps > 0 else None,
        )
        return replace(run, guidance_scale=self._scale(self.checked), network=fingerprint(self.pipe))

    def close(self) -> None:
        """Ends a pass: drops everything that holds tensors, and keeps what the summary needs."""
        self._timesteps = self._observed = None
        if self._branches is None:
            return
        last = self.passes[-1]
        last.finished = self.index == self.info.steps - 1
        if last.guided_steps:
            last.plan = self.guide.plan
            if last.plan is not None and last.plan.corrector and self.info.response is None:
                last.note = f"the corrector was left out: {self.info.no_response}"
        self._branches = None
        del self.guide

    # -- afterwards

    def summary(self) -> Summary:
        guided = [own for own in self.passes if own.guided_steps]
        error = guided[-1].error if guided else None
        uncounted = 0 if self.failed else self._plain_rows  # no step of the scheduler was seen after them
        checked, words = self.checked, ""
        if checked is not None and checked.w is not None:
            words = f"{in_words(self._layout)}, w = {checked.w:.3g}" + (", rescaled" if checked.rescaled else "")
        return Summary(
            pipeline=self.name,
            steps=sum(own.steps for own in self.passes),
            nfe=sum(self.evaluations) + uncounted,
            cfg_nfe=sum(self.plain_evaluations) + uncounted,
            evaluations=tuple(self.evaluations),
            seconds=self.ended - self.started,
            plan=guided[-1].plan if guided else None,
            finished=not self.failed and (uncounted > 0 or all(own.finished for own in self.passes)),
            note="; ".join(note for note in dict.fromkeys(self._notes(guided)) if note),
            finite=all(all(own.finite) for own in self.passes),
            sections=len(self.passes),
            caches=self.cache_names,
            estimated_error=None if error is None else tuple(error.tolist()),
            layout=self._layout,
            checked=words,
        )

    def _notes(self, guided: list[_Pass]) -> Iterator[str]:
        if self.plain_because:
            skipped = sum(self.evaluations) < sum(self.plain_evaluations)
            yield f"{'the rest of ' if skipped else ''}this run was plain CFG: {self.plain_because}"
        elif self.passes and not guided:
            yield "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        if not all(all(own.finite) for own in self.passes):
            yield "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
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


@dataclass
class _Pass:
    """What the summary needs of one pass over the time steps."""

    steps: int
    guided_steps: int = 0
    plan: Plan | None = None
    finished: bool = False
    note: str = ""
    finite: list[Tensor] = field(default_factory=list)  # whether the tensors of the last output were
    error: Tensor | None = None  # the guide's estimate of the difference from plain CFG, per sample


class OneCall:
    """All branches of a step in one call, stacked along the batch."""

    def __init__(self, run: GuidedRun, layout: Batched) -> None:
        self._run, self._layout = run, layout
        self._rows: int | None = None  # of a guided call
        self._unguided_rows: int | None = None  # of a call that was found to have samples of one branch
        self._has_leapt = False
        self._guided = False  # in the current step
        self._output: Any = None  # of an evaluated step
        self._further: list[Any] = []

    def answer(self, call: Call) -> Any:
        """A call with all branches of a step, or with one branch if guidance is off."""
        run = self._run
        if call.context in _EXTRA:
            return self._noted(call())
        layout = self._layout.at_present(run.pipe)
        n = len(layout.branches)
        if self._guided and call.rows == self._rows:
            raise UnsupportedPipelineError(
                "it calls its network with all branches more than once between two steps of its scheduler"
            )
        if self._rows is None and call.rows % n == 0 and call.rows != self._unguided_rows:
            says = run.says_guided()
            if says or (says is None and layout.explained):  # then the scheduler's input will show it
                self._rows = call.rows
        if call.rows != self._rows:
            return self._one_branch(call)
        run.begin_guided_step()
        self._guided = True
        if run.guide.evaluates(run.index):
            return self._evaluated(call, layout)
        output = self._in_leap(call, layout)
        run.count(len(layout.kept), instead_of=n)
        kept = dict(zip(layout.kept, branch_terms(output, len(layout.kept)), strict=True))
        conditional = kept[layout.cond]
        parts = [kept.get(k, conditional) for k in range(n)]
        return _filled(output, parts, layout, run.predict(conditional))

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

        def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
            parts = branch_terms(call.with_sample(sample, time)(), n)
            return parts[layout.cond], _term(parts, layout)

        if isinstance(run.guide, Visitor):
            run.guide.visit(run.index, call.sample, call.time, evaluate)
        output = call()
        parts = branch_terms(output, n)
        used = run.observe(parts[layout.cond], _term(parts, layout))
        if used is not None and run.checked is None and not run.says_guided():
            raise UnsupportedPipelineError(
                "its plan changes the first step, and this pipeline does not say before it whether guidance is on"
            )
        run.count(n, instead_of=n)
        self._output = output if used is None else _filled(output, parts, layout, used)
        return self._output

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

    def _one_branch(self, call: Call) -> Any:
        """A call with a single branch: a step without guidance, or one more call within a guided step."""
        run, further = self._run, self._run.begun
        if not further:
            run.begin_step()
        output = call()
        run.count(1, instead_of=1)
        return self._noted(output) if further else output

    def _noted(self, output: Any) -> Any:
        self._further.append(output)
        return output

    def evaluated_step(self) -> Step | None:
        """The outputs of this step, if all branches were evaluated in it."""
        whole = _as_one(self._output)
        if whole is None:
            return None
        layout = self._layout.at_present(self._run.pipe)
        return Step(whole.chunk(len(layout.branches)), layout.cond, _each_as_one(self._further), whole)

    def not_guided(self, passed: Tensor) -> None:
        """The step had one branch, or guidance had no effect."""
        whole = _as_one(self._output)
        if whole is not None and whole.shape == passed.shape:
            self._unguided_rows = self._rows
        self._rows = None

    def end_step(self) -> None:
        self._output, self._guided = None, False
        self._further.clear()


class TwoCalls:
    """A call for each branch, the conditional one first: e_u = e_c - d needs its output."""

    def __init__(self, run: GuidedRun, layout: Sequential) -> None:
        self._run, self._layout = run, layout
        self._conditional: tuple[Call, Any] | None = None  # the first call of the current step, and its output
        self._evaluated: list[Any] = []  # the outputs of this step, conditional first, if both ran
        self._further: list[Any] = []

    def answer(self, call: Call) -> Any:
        """A call with one branch."""
        run = self._run
        second = call.name == self._layout.unconditional or call.context in _UNCONDITIONAL
        if not second and call.context not in _CONDITIONAL:
            second = run.begun
        if not second:
            run.begin_step()
            kept = call.kept()
            self._conditional = (kept, self._counted(call))
            return self._conditional[1]
        if self._conditional is None:
            self._further.append(self._counted(call))
            return self._further[-1]
        (first, output), self._conditional = self._conditional, None
        run.begin_guided_step()
        return self._unconditional(first, output, call)

    def _unconditional(self, first: Call, output: Any, call: Call) -> Any:
        """The unconditional output of a step, evaluated or predicted. first: the conditional call, and its output."""
        run = self._run
        (conditional,) = branch_terms(output, 1)
        if not run.guide.evaluates(run.index):
            run.count(0, instead_of=1)
            term = run.predict(conditional)
            return assemble(output, [unconditional(conditional, term)])

        def evaluate(sample: Any, time: Any) -> tuple[Term, Term]:
            e_c, e_u = (branch_terms(each.with_sample(sample, time)(), 1)[0] for each in (first, call))
            return e_c, difference(e_c, e_u)

        if isinstance(run.guide, Visitor):
            run.guide.visit(run.index, call.sample, call.time, evaluate)
        own = self._counted(call)
        (other,) = branch_terms(own, 1)
        used = run.observe(conditional, difference(conditional, other))
        result = own if used is None else assemble(own, [unconditional(conditional, used)])
        self._evaluated = [output, result]
        return result

    def _counted(self, call: Call) -> Any:
        output = call()
        self._run.count(1, instead_of=1)
        return output

    def evaluated_step(self) -> Step | None:
        """The outputs of this step, if both branches were evaluated in it."""
        tensors = _each_as_one(self._evaluated)
        return Step(tensors, 0, _each_as_one(self._further)) if len(tensors) == 2 else None

    def not_guided(self, passed: Tensor) -> None:
        """The step had no effect of guidance."""

    def end_step(self) -> None:
        self._conditional = None
        self._evaluated.clear()
        self._further.clear()


def _term(parts: Sequence[Term], layout: Batched) -> Term:
    """The differences of the predicted branches, one after the other."""
    return tuple(d for k in layout.skipped for d in difference(parts[layout.cond], parts[k]))


def _filled(template: Any, parts: Sequence[Term], layout: Batched, term: Term | None) -> Any:
    """The output with the predicted branches inserted: e_u = e_c - d."""
    parts, conditional = list(parts), parts[layout.cond]
    for place, k in enumerate(layout.skipped):
        own = None if term is None else term[place * len(conditional) : (place + 1) * len(conditional)]
        parts[k] = unconditional(conditional, own)
    return assemble(template, parts)


def _as_samples(term: Term | None, conditional: Term) -> Term | None:
    """Undoes `_as_batch`."""
    return term if term is None or term[0].ndim == conditional[0].ndim else tuple(term[0])


def _as_one(output: Any) -> Tensor | None:
    """The first tensor of an output, or its list of samples as one; None if they have different sizes."""
    listed = samples_of(output)
    tensors = tensors_of(output)[:1] if listed is None else listed
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return torch.stack(tensors) if len({tensor.shape for tensor in tensors}) == 1 else None


def _each_as_one(outputs: Sequence[Any]) -> tuple[Tensor, ...]:
    return tuple(tensor for output in outputs if (tensor := _as_one(output)) is not None)


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
