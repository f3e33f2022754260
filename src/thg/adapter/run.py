"""One call of an enabled pipeline, from its start to its end, and the network calls within it.

The pipeline's `__call__` opens the run in a context variable and always closes it, so that a network call can find its
run in any thread or task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor

from thg.adapter.batched import answer_batched, answer_control
from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.lesson import Lesson
from thg.adapter.observe import SeenCall, watched
from thg.adapter.outputs import rows_of
from thg.adapter.section import Section
from thg.adapter.separable import differs_alone, is_foreign, mixes_rows
from thg.adapter.sequential import answer_sequential
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import GuideMaker
from thg.plans.report import Summary

current: ContextVar[Any] = ContextVar("thg_run", default=None)


class PipelineRun:
    """The state of one call of a pipeline. A pipeline that sets its time steps several times has several sections.

    owner: the takeover that opened the run. context: the pipeline's current cache context.
    """

    def __init__(self, owner: Any, pipe: Any, lesson: Lesson, maker: GuideMaker) -> None:
        self.owner, self.name = owner, type(pipe).__name__
        self._pipe: Any = pipe
        self._lesson, self._maker = lesson, maker
        lesson.begin()
        self.plain_because = lesson.refusal  # why everything is evaluated
        self._settled = bool(self.plain_because)  # the layout was inferred or checked in this run, or is not needed
        self._anew = False  # the known layout is inferred again
        self._seen: list[SeenCall] = []  # the calls of the current step, while they are needed
        self._rows_to_count = 0  # of the current step, evaluated without changes
        self._timesteps_before = getattr(pipe.scheduler, "timesteps", None)  # of an earlier run
        self.thread = threading.get_ident()
        self.started = self.ended = time.perf_counter()
        self.sections: list[Section] = []
        self.context = ""
        self.calls_outside = 0  # network calls from other threads or tasks while the run was open
        self.failed = False

    def answer(self, call: Call) -> Any:
        """Answers a call of one of the pipeline's networks."""
        caller = Caller(self._pipe)
        section = self._section(caller, call)
        if section is None:
            return call()
        layout, step = self._lesson.layout, section.step
        if self.plain_because:
            return self._as_it_comes(call)
        try:
            if layout is None or self._undecided(section, layout, caller, call):
                section.network(call)  # its caches start empty
                return self._as_it_comes(call)
            output = self._answered(section, layout, caller, call)
        except UnsupportedPipelineError as error:  # the pipeline itself can still run
            self._go_on_plain(section, step, error)
            return self._as_it_comes(call)
        self.ended = time.perf_counter()
        if call.name in layout.networks:
            self._show(call, output)
            if section.at_last_step:
                section.watch(call, output)
        return output

    def _go_on_plain(self, section: Section, step: int, error: UnsupportedPipelineError) -> None:
        """Evaluates all branches after this step. Calibration has no use for such a run: there it is an error."""
        if section.visitor is not None:
            raise UnsupportedPipelineError(f"thg cannot follow this {self.name}: {error}") from error
        self.plain_because, self._settled = str(error), True
        section.empty_caches()
        section.back_to(step)

    def _answered(self, section: Section, layout: Batched | Sequential, caller: Caller, call: Call) -> Any:
        if isinstance(layout, Sequential):
            return answer_sequential(section, layout, caller, call)
        if call.name not in layout.networks:
            return answer_control(section, layout, caller, call)
        return answer_batched(section, layout, caller, call, self._lesson.first_leap())

    def _undecided(self, section: Section, layout: Batched | Sequential, caller: Caller, call: Call) -> bool:
        """Is it unknown whether this call is guided, or how, until the step is made?"""
        if not self._settled and self._infers_anew(section, call):
            self._anew = True
            return True
        if isinstance(layout, Sequential) or section.rows is not None:
            return False
        guided = caller.guidance_is_on
        return guided is None or (not guided and self._lesson.shapes_tell) or self._lesson.place > 0

    def _infers_anew(self, section: Section, call: Call) -> bool:
        measures = section.adapts and self._lesson.infers_anew(section.run.guidance_scale)
        return measures or self._lesson.doubts(call)

    def _plan_for_scale(self, section: Section) -> None:
        """Uses the guidance scale that was measured in this run, if the pipeline does not tell it."""
        if section.run.guidance_scale is None and section.adapts and self._lesson.w is not None:
            section.plan_for(self._maker, self._lesson.w)

    def _as_it_comes(self, call: Call) -> Any:
        """Makes a call without changes; it is counted when its step is made."""
        output = call()
        self.ended = time.perf_counter()
        layout = self._lesson.layout
        if layout is None or call.name in layout.networks:
            self._rows_to_count += rows_of(output)
        self._show(call, output)
        return output

    # -- observed steps

    def _show(self, call: Call, output: Any) -> None:
        """Records a call, as long as there is something to infer or to check."""
        if not self._settled or self._lesson.guards:
            infers = not self._settled and self._lesson.given is None
            self._seen.append(SeenCall(call, output, mixes_rows(call.module) if infers else ""))

    def _stepped(self, passed: Tensor, sample: Tensor | None) -> None:
        """Called when the pipeline passes its combined output to the scheduler."""
        seen, self._seen = self._seen, []
        if not self.sections or self._pipe is None:
            return
        section = self.sections[-1]
        if seen and not self._settled:
            self._settle(section, seen, passed, sample)
        elif seen:
            self._lesson.check(seen, passed, sample)
        if self._rows_to_count:
            section.count_plain_step(max(1, self._rows_to_count // max(1, len(passed))))
            self._rows_to_count = 0
        section.stepped = True

    def _settle(self, section: Section, seen: list[SeenCall], passed: Tensor, sample: Tensor | None) -> None:
        """Infers the layout from a step, or checks the step against it."""
        undecided = self._rows_to_count > 0
        if not undecided and not section.guided_steps:
            return
        step, rows_to_count = section.step, self._rows_to_count
        try:
            guided = self._lesson.judge(seen, passed, sample, anew=undecided and self._anew)
            if undecided and not guided:
                return
            self._settled = True
            if not guided:
                section.back_to(step - 1)
                section.count_plain_step(1)
                raise UnsupportedPipelineError(
                    "it says that guidance is on, and one branch alone reaches the scheduler"
                )
            self.owner.acquire(self._pipe)
            if undecided:
                self._plan_for_scale(section)
                self._replay(section, seen)
        except UnsupportedPipelineError as error:
            self._go_on_plain(section, step, error)
            self._rows_to_count = rows_to_count

    def _replay(self, section: Section, seen: list[SeenCall]) -> None:
        """Processes a step that was evaluated before its layout was known."""
        layout, caller = self._lesson.layout, Caller(self._pipe)
        assert layout is not None
        own = [call.call for call in seen if call.call.name in layout.denoisers]
        if isinstance(layout, Batched):
            section.rows = own[min(self._lesson.place, len(own) - 1)].rows
            if section.rows % len(layout.branches):
                raise UnsupportedPipelineError(f"its network got {section.rows} rows in a step that looked guided")
        guided = [call for call in seen if call.call.name in layout.networks]
        if section.cache_names:  # they have features of all branches: begin with the next step
            section.guide.evaluates(section.step + 1)  # the plan begins with this one
            section.empty_caches()
            self._rows_to_count = sum(rows_of(call.output) for call in guided)
            return
        self._rows_to_count, section.stepped = 0, True
        for call in guided:
            if self._answered(section, layout, caller, call.replay()) is not call.output:
                self.plain_because = "its layout was learned in this run, and its plan changes the first step"
            elif isinstance(layout, Batched) and call.call.rows == section.rows and section.network(call.call).leaps:
                self._try_alone(section, layout, call)

    def _try_alone(self, section: Section, layout: Batched, call: SeenCall) -> None:
        """Makes sure that a network that is not diffusers' own gives the same output for a part of its branches."""
        if self._lesson.has_leapt or not is_foreign(call.call.module):
            return
        with self._lesson.first_leap():
            differs = differs_alone(call.call, call.output, layout)
        section.count(len(layout.kept), instead_of=0)
        if differs:
            raise self._lesson.refuse("its network gives another output for a branch alone")

    def _section(self, caller: Caller, call: Call) -> Section | None:
        """The pass over time steps that a call belongs to; None before the first."""
        timesteps = caller.timesteps()
        section = self.sections[-1] if self.sections else None
        if section is not None and section.covers(caller, timesteps):
            return section
        if timesteps is call.time or not hasattr(timesteps, "__len__") or len(timesteps) == 0:
            timesteps = None  # DiT has the time of one call under that name
            if section is not None and section.covers(caller, timesteps):
                return section
        own = getattr(self._pipe.scheduler, "timesteps", None)
        if timesteps is None and own is self._timesteps_before:
            return None
        if section is not None:
            section.release()
        layout = self._lesson.layout
        rescales = isinstance(layout, Sequential) and layout.rescales
        self.sections.append(Section(self._maker, caller, call, timesteps, rescales))
        if self._lesson.words:  # inferred from the scheduler's input, so each step is observed
            self.sections[-1].stepped = True
        if self._settled:
            self._plan_for_scale(self.sections[-1])
        return self.sections[-1]

    @contextmanager
    def opened(self) -> Iterator[None]:
        """A context for the pipeline's call. It frees all tensors; the summary remains available."""
        token = current.set(self)
        try:
            with watched(self._pipe, self._stepped):
                yield
        except BaseException:
            self.failed = True
            raise
        finally:
            current.reset(token)
            self._pipe = self._timesteps_before = None
            self._seen = []
            if self.sections:
                self.sections[-1].release()

    def summary(self) -> Summary:
        guided = [section for section in self.sections if section.guided_steps]
        notes = dict.fromkeys(section.note() for section in guided or self.sections)
        uncounted = 0 if self.failed else self._rows_to_count  # after the last step that was seen
        because = self.plain_because or ("" if guided else self._lesson.unseen)
        if self.sections and self._lesson.layout is None and uncounted:
            because = because or "its layout could not be learned, since no step of its scheduler was seen"
        if because:
            skipped = any(sum(section.evaluations) < sum(section.plain_evaluations) for section in self.sections)
            notes = {f"{'the rest of ' if skipped else ''}this run was plain CFG: {because}": None}
        elif complaint := self._lesson.complaint():
            notes[f"this result may be wrong, and further runs will be plain CFG: {complaint}"] = None
        notes[self._note_on_calls()] = None
        return Summary(
            pipeline=self.name,
            steps=sum(section.run.steps for section in self.sections),
            nfe=sum(sum(section.evaluations) for section in self.sections) + uncounted,
            cfg_nfe=sum(sum(section.plain_evaluations) for section in self.sections) + uncounted,
            evaluations=tuple(n for section in self.sections for n in section.evaluations),
            seconds=self.ended - self.started,
            plan=guided[-1].plan if guided else None,
            finished=not self.failed and (uncounted > 0 or all(section.at_last_step for section in self.sections)),
            note="; ".join(note for note in notes if note),
            finite=all(section.is_finite() for section in self.sections),
            sections=len(self.sections),
            caches=tuple(dict.fromkeys(name for section in self.sections for name in section.cache_names)),
            estimated_error=None if not guided or guided[-1].error is None else tuple(guided[-1].error.tolist()),
            layout=self._lesson.layout,
            learned=self._lesson.words,
        )

    def _note_on_calls(self) -> str:
        if self.calls_outside:
            return (
                f"{self.calls_outside} network calls came from another thread or task than the run and ran with all "
                "branches; thg follows the thread that calls the pipeline"
            )
        if not self.sections and not self.failed:
            return "no network call was seen before the pipeline returned (a generator that it returns is not followed)"
        return ""
