"""One call of an enabled pipeline, from its start to its end: everything that changes while it runs.

The pipeline's `__call__` opens the run in a context variable and always closes it, so that a network call can find its
run in any thread or task. A step is what happens between two calls of `scheduler.step`. A pass is a loop over the time
steps of the scheduler; a pipeline that sets them several times makes several passes, each with a plan of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from thg.adapter.branches import OneCall, TwoCalls
from thg.adapter.caches import CachedNetwork
from thg.adapter.call import Call, is_sample, time_on_host
from thg.adapter.describe import describe
from thg.adapter.identity import fingerprint
from thg.adapter.layouts import Batched, Sequential, in_words
from thg.adapter.observe import NOISE_ARGUMENTS, watched
from thg.adapter.outputs import rows_of, tensors_of
from thg.adapter.patch import current
from thg.adapter.stated import LENGTH, Stated, agreed_scale
from thg.adapter.verify import Guided, Step, scale_of, verify
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide, GuideMaker, HareGuide, Visitor
from thg.plans.plan import Plan
from thg.plans.report import Summary
from thg.plans.response import ADDS_NOISE
from thg.plans.run import Run, Term

CHANGED = 0.05  # of w - 1: a change of the guidance scale that is reported
SLACK = 30  # allowed residual of later steps: some formulas round more at low noise


class GuidedRun:
    """The state of one call of a pipeline.

    owner: the enabled pipeline. context: the pipeline's current cache context.
    """

    guide: Guide  # of the current pass
    info: Run  # the description of the current pass

    def __init__(
        self, owner: Any, pipe: Any, layout: Batched | Sequential, maker: GuideMaker, arguments: Mapping[str, Any]
    ) -> None:
        """arguments: of the pipeline's call."""
        self.owner, self.name, self.pipe = owner, type(pipe).__name__, pipe
        self._layout, self._maker, self._stated = layout, maker, Stated(pipe, arguments)
        self.thread = threading.get_ident()
        self.context = ""
        self.started = self.ended = time.perf_counter()
        self.failed = False
        self.calls_outside = 0  # network calls from other threads or tasks while the run was open
        self.plain_because = ""  # why everything is evaluated from now on
        self._guided: Guided | None = None  # the result of the check of the layout
        self._unguided_shapes: object = None  # of a step that was found to be without guidance
        self._scales: list[Tensor] = []  # of later evaluated steps; on the device until the summary reads them
        # the current pass
        self._timesteps: Any = getattr(pipe.scheduler, "timesteps", None)  # identify it; now: those of an earlier run
        self._branches: OneCall | TwoCalls | None = None  # None before the first pass
        self._networks: dict[Any, CachedNetwork] = {}
        self._observed: tuple[int, Term, Term] | None = None  # the last evaluated step, while the plan may change
        self.visitor: Visitor | None = None
        self.step = -1  # the current one
        self.begun = False  # the network has been called since the last step of the scheduler
        self._guided_at = -1  # the last step with guidance
        self._first_step = True  # of the scheduler in this pass
        self._times_are_known = False  # the network gets the scheduler's own times
        self._plain_rows = 0  # of the current step, evaluated without changes
        # for the summary
        self.passes: list[_Pass] = []
        self.evaluations: list[int] = []  # per step, per sample
        self.plain_evaluations: list[int] = []  # the same for plain CFG
        self._cache_names: dict[str, None] = {}

    # -- network calls

    def answer(self, call: Call) -> Any:
        """Answers a call of one of the pipeline's networks."""
        self._follow_timesteps(call)
        if self._branches is None:
            return call()
        if self.plain_because:
            return self.as_it_comes(call)
        try:
            if call.name not in self._layout.networks and isinstance(self._branches, OneCall):
                return self._branches.control(call)
            if not self.begun:
                self._require_time(call.time)
            output = self._branches.answer(call)
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(error)
            return self.as_it_comes(call)
        self.ended = time.perf_counter()
        if self.step + (not self.begun) == self.info.steps - 1:
            self._watch_last(call, output)
        return output

    def as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes; it is counted when its step is made."""
        output = call()
        self.ended = time.perf_counter()
        if call.name in self._layout.networks:
            self._plain_rows += rows_of(output)
            if self.passes:  # the last one counts
                self.passes[-1].finite = [torch.isfinite(tensor).all() for tensor in tensors_of(output)]
        return output

    def network(self, call: Call) -> CachedNetwork:
        """The network of a call, with the caches inside it."""
        module = call.module
        if module not in self._networks:
            self._networks[module] = CachedNetwork(module, self.guide)
            self._cache_names.update(dict.fromkeys(cache.name for cache in self._networks[module].caches))
        return self._networks[module]

    @property
    def says_guided(self) -> bool:
        """Whether the pipeline says that guidance is on."""
        return self._stated.guided

    def _go_on_plain(self, error: UnsupportedPipelineError) -> None:
        """Evaluates all branches from now on. Calibration has no use for such a run: there it is an error."""
        if self.visitor is not None:
            raise UnsupportedPipelineError(f"thg cannot follow this {self.name}: {error}") from error
        self.plain_because = str(error)
        self._empty_caches()

    def _empty_caches(self) -> None:
        """Makes the caches inside the networks forget the calls of this pass, which had the rows of one branch."""
        for network in self._networks.values():
            network.caches.empty()

    # -- steps

    def begin_step(self) -> None:
        """The first network call of a step."""
        if self.step + 1 >= self.info.steps:
            raise UnsupportedPipelineError(
                f"it calls its network more often than the {self.info.steps} time steps of its run, so that the calls "
                "cannot be assigned to steps"
            )
        self._add_step()

    def _add_step(self) -> None:
        self.step += 1
        self.begun = True
        self.evaluations.append(0)
        self.plain_evaluations.append(0)

    def _require_time(self, now: Any) -> None:
        """Calls are assigned to steps by their number: a loop that skips time steps, or goes back, is not followed.

        Checked where the network gets the scheduler's own times, and they can be read without a wait.
        """
        found, step = time_on_host(now), self.step + 1
        times = self.info.times or ()
        if step == 0:
            self._times_are_known = found is not None and found == times[0]
        elif self._times_are_known and step < len(times) and found != times[step]:
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )

    def begin_guided_step(self) -> None:
        """The call that shows that a step is guided; a call before it may have begun the step."""
        if not self.begun:
            self.begin_step()
        self._guided_at = self.step
        self.passes[-1].guided_steps += 1

    @property
    def was_guided(self) -> bool:
        """Whether the previous step was guided."""
        return self._guided_at == self.step - 1

    def count(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain_evaluations[-1] += instead_of

    def observe(self, conditional: Term, term: Term) -> Term | None:
        """Passes an evaluated step to the guide. Returns the term to use instead of its own, if any."""
        if self._guided is None:
            self._observed = (self.step, conditional, term)
        return self.guide.observe(self.step, conditional, term)

    def _stepped(self, scheduler: Any, passed: Tensor, arguments: dict[str, Any]) -> Tensor:
        """Called when the pipeline passes its combined output to a scheduler, which gets the same."""
        own = any(scheduler is part for part in vars(self.pipe).values())  # not a copy for some of the frames
        if own and self._branches is not None:
            self._end_step(self._branches, arguments, passed)
        return passed

    def _end_step(self, branches: OneCall | TwoCalls, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks a step, and counts what was evaluated in it without changes."""
        if not self.plain_because:
            try:
                self._judge(branches, arguments, passed)
            except UnsupportedPipelineError as error:
                self._go_on_plain(error)
        if self._plain_rows:
            if not self.begun and self.step + 1 < self.info.steps:
                self._add_step()
            count = max(1, self._plain_rows // max(1, len(passed)))
            self.count(count, instead_of=count)
            self._plain_rows = 0
        branches.end_step()
        self._first_step = self.begun = False

    def _judge(self, branches: OneCall | TwoCalls, arguments: dict[str, Any], passed: Tensor) -> None:
        """Checks the layout at the first guided step, and completes the description of the pass."""
        sample = arguments.get("sample")
        sample = sample if isinstance(sample, Tensor) else None
        if self._first_step and (noise := [name for name in NOISE_ARGUMENTS if arguments.get(name)]):
            reason = f"the scheduler {ADDS_NOISE} at every step ({noise[0]} above 0)"
            self._describe_anew(_without_response(self.info, reason))
        step = branches.evaluated_step()
        if step is None or not self._layout.explained:
            return
        if self._guided is not None:
            scale = scale_of(step, passed, sample, self._guided)
            self._scales += [] if scale is None else [scale]
            return
        shapes = (passed.shape, [tensor.shape for tensor in step.branches])
        guided = None if shapes == self._unguided_shapes else verify(step, passed, sample)
        if guided is None:
            one_branch = step.whole is not None and step.whole.shape == passed.shape
            self._unguided_shapes = shapes if one_branch else None
            self._take_back(branches, step, passed)
            return
        if isinstance(branches, OneCall) and branches.undecided is not None:
            self._decide(branches)
        self._guided = guided
        self._describe_anew(self._as_measured(guided))
        self._observed = None

    def _take_back(self, branches: OneCall | TwoCalls, step: Step, passed: Tensor) -> None:
        """The step was not guided, or without effect: the guide has not seen it."""
        if self._observed is None:
            return
        branches.not_guided()
        self.passes[-1].guided_steps -= 1
        self._guided_at, self._observed = -1, None
        self.guide = self._maker.guide(self.info)
        if step.whole is not None:
            self.evaluations[-1] = self.plain_evaluations[-1] = max(1, len(step.whole) // max(1, len(passed)))

    def _decide(self, branches: OneCall) -> None:
        """The step ran as it came, and turned out to be guided."""
        if self.visitor is not None:
            raise UnsupportedPipelineError("it does not say that guidance is on before its first step")
        if branches.decided() is not None:
            raise UnsupportedPipelineError(
                "its plan changes the first step, and this pipeline does not say before it whether guidance is on"
            )
        self._empty_caches()  # they have features of all branches

    def _as_measured(self, guided: Guided) -> Run:
        """The description of the pass with what the check has shown."""
        info = self.info
        if guided.w is not None:
            info = replace(info, guidance_scale=agreed_scale(guided.w, self._stated.scale))
        if guided.with_sample and guided.rescaled and isinstance(self._layout, Sequential):
            info = _without_response(info, "the pipeline rescales the network's output at every step")
        return info

    def _describe_anew(self, info: Run) -> None:
        """Makes the guide again if the pass is another than expected; it sees the evaluated step again."""
        if info == self.info or self.visitor is not None:
            return
        self.info, self.guide = info, self._maker.guide(info)
        if self._observed is not None:
            step, conditional, term = self._observed
            self.guide.evaluates(step)
            self.guide.observe(step, conditional, term)

    # -- passes

    def _follow_timesteps(self, call: Call) -> None:
        """Begins a pass if the scheduler has new time steps. call: the first one of the pass."""
        timesteps = getattr(self.pipe.scheduler, "timesteps", None)
        if timesteps is self._timesteps:
            return
        info = self._described(call)
        guide = self._maker.guide(info)
        self._end_pass()
        self._timesteps, self.info, self.guide = timesteps, info, guide
        self.visitor = guide if isinstance(guide, Visitor) else None
        layout = self._layout
        self._branches = OneCall(self, layout) if isinstance(layout, Batched) else TwoCalls(self, layout)
        self.step = self._guided_at = -1
        self.begun, self._first_step = False, True
        self.passes.append(_Pass(info.steps))

    def _described(self, call: Call) -> Run:
        scheduler, layout = self.pipe.scheduler, self._layout
        rescales = isinstance(layout, Sequential) and layout.rescales
        obstacle = "the pipeline rescales the network's output at every step" if rescales else ""
        begin = getattr(scheduler, "begin_index", None)
        timesteps = scheduler.timesteps[begin or 0 :]
        run = describe(scheduler, timesteps, obstacle, call.time if begin is None else None, self._stated.steps)
        scale = self._stated.scale
        if self._guided is not None and self._guided.w is not None:
            scale = agreed_scale(self._guided.w, scale)
        return replace(run, guidance_scale=scale, network=fingerprint(self.pipe))

    def _end_pass(self) -> None:
        """Drops everything that holds tensors, and keeps what the summary needs."""
        if self._branches is None:
            return
        self._empty_caches()
        self._networks.clear()
        last = self.passes[-1]
        last.finished = self.step == self.info.steps - 1
        if last.guided_steps:
            last.plan = self.guide.plan
            if last.plan is not None and last.plan.corrector and self.info.response is None:
                last.note = f"the corrector was left out: {self.info.no_response}"
        self._branches = self._observed = None
        del self.guide

    def _watch_last(self, call: Call, output: Any) -> None:
        """Checks the output of the last call: NaN spreads to all later states, so this covers the whole pass."""
        last = self.passes[-1]
        last.finite = [torch.isfinite(tensor).all() for tensor in tensors_of(output)]
        if isinstance(self.guide, HareGuide) and is_sample(call.sample):
            last.error = self.guide.estimated_error(call.sample)

    # -- the end

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context for the pipeline's call. It frees all tensors; the summary remains available."""
        token = current.set(self)
        length = vars(self.pipe).pop(LENGTH, None)  # of an earlier run
        try:
            with watched(self.pipe, self._stepped):
                yield
        except BaseException:
            self.failed = True
            raise
        finally:
            current.reset(token)
            self._end_pass()
            if length is not None:
                vars(self.pipe).setdefault(LENGTH, length)
            self.pipe = self._stated = self._timesteps = None  # type: ignore[assignment]

    def summary(self) -> Summary:
        guided = [own for own in self.passes if own.guided_steps]
        error = guided[-1].error if guided else None
        uncounted = 0 if self.failed else self._plain_rows  # no step of the scheduler was seen after them
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
            finite=all(own.is_finite() for own in self.passes),
            sections=len(self.passes),
            caches=tuple(self._cache_names),
            estimated_error=None if error is None else tuple(error.tolist()),
            layout=self._layout,
            checked=self._words(),
        )

    def _words(self) -> str:
        """What the check of the layout has shown."""
        found = self._guided
        if found is None or found.w is None:
            return ""
        return f"{in_words(self._layout)}, w = {found.w:.3g}" + (", rescaled" if found.rescaled else "")

    def _notes(self, guided: list[_Pass]) -> Iterator[str]:
        if self.plain_because:
            skipped = sum(self.evaluations) < sum(self.plain_evaluations)
            yield f"{'the rest of ' if skipped else ''}this run was plain CFG: {self.plain_because}"
        elif self.passes and not guided:
            yield "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        if not all(own.is_finite() for own in self.passes):
            yield "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
        else:
            yield from (own.note for own in guided)
        yield self._note_on_scales()
        if self.calls_outside:
            yield (
                f"{self.calls_outside} network calls came from another thread or task than the run and ran with all "
                "branches; thg follows the thread that calls the pipeline"
            )
        elif not self.passes and not self.failed:
            yield "no network call was seen before the pipeline returned (a generator that it returns is not followed)"

    def _note_on_scales(self) -> str:
        """Whether later steps were combined as the first one was; waits for the device."""
        if not self._scales or self._guided is None or self._guided.w is None:
            return ""
        w, known = self._guided.w, torch.stack(self._scales).tolist()
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

    def is_finite(self) -> bool:
        """Was the last output finite? Waits for the device."""
        return all(self.finite)


def _without_response(info: Run, reason: str) -> Run:
    """A pass on which the corrector cannot be used."""
    noisy = info.adds_noise or ADDS_NOISE in reason
    return replace(info, response=None, no_response=reason, adds_noise=noisy)
