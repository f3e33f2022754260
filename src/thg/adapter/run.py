"""One call of an enabled pipeline, from its start to its end, and the network calls within it.

The pipeline's `__call__` opens the run in a context variable and closes it whatever happens, so that a network call
knows which run it belongs to, in whatever thread or task.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from thg.adapter.answers import answer_batched, answer_control, answer_sequential
from thg.adapter.call import Call
from thg.adapter.caller import Caller
from thg.adapter.layouts import Batched, Sequential
from thg.adapter.section import Section
from thg.plans.guide import GuideMaker
from thg.plans.report import Summary

current: ContextVar[PipelineRun | None] = ContextVar("thg_run", default=None)


class PipelineRun:
    """The state of one call of a pipeline. A pipeline that sets its time steps several times has several sections.

    owner: the takeover that opened the run. context: the cache context that the pipeline is in.
    """

    def __init__(self, owner: Any, pipe: Any, layout: Batched | Sequential, maker: GuideMaker) -> None:
        self.owner, self.name = owner, type(pipe).__name__
        self._pipe: Any = pipe
        self._layout, self._maker = layout, maker
        self._timesteps_before = getattr(pipe.scheduler, "timesteps", None)  # of an earlier run
        self.thread = threading.get_ident()
        self.started = self.ended = time.perf_counter()
        self.sections: list[Section] = []
        self.context = ""
        self.calls_outside = 0  # network calls that came from elsewhere while the run was open
        self.failed = False

    def answer(self, call: Call) -> Any:
        """A call of one of the pipeline's networks."""
        caller = Caller(self._pipe)
        section = self._section(caller, call)
        if section is None:
            return call()
        if isinstance(self._layout, Sequential):
            output = answer_sequential(section, caller, call)
        elif call.role == "control":
            return answer_control(section, self._layout, caller, call)
        else:
            output = answer_batched(section, self._layout, caller, call)
        self.ended = time.perf_counter()
        if section.at_last_step:
            section.watch(call, output)
        return output

    def _section(self, caller: Caller, call: Call) -> Section | None:
        """The pass over time steps that a call belongs to; None before the first."""
        timesteps = caller.timesteps()
        if timesteps is call.time or not hasattr(timesteps, "__len__") or len(timesteps) == 0:
            timesteps = None  # DiT has the time of one call under that name
        section = self.sections[-1] if self.sections else None
        if section is not None and section.covers(caller, timesteps):
            return section
        own = getattr(self._pipe.scheduler, "timesteps", None)
        if timesteps is None and own is self._timesteps_before:
            return None
        if section is not None:
            section.release()
        rescales = isinstance(self._layout, Sequential) and self._layout.rescales
        self.sections.append(Section(self._maker, caller, timesteps, rescales))
        return self.sections[-1]

    def close(self) -> None:
        """Frees all tensors. The summary can still be had."""
        self._pipe = self._timesteps_before = None
        for section in self.sections:
            section.release()

    @contextmanager
    def opened(self) -> Iterator[None]:
        token = current.set(self)
        try:
            yield
        except BaseException:
            self.failed = True
            raise
        finally:
            current.reset(token)
            self.close()

    def summary(self) -> Summary:
        guided = [section for section in self.sections if section.guided_steps]
        notes = dict.fromkeys(section.note() for section in guided or self.sections)
        notes[self._note_on_calls()] = None
        return Summary(
            pipeline=self.name,
            steps=sum(section.run.steps for section in self.sections),
            nfe=sum(sum(section.evaluations) for section in self.sections),
            cfg_nfe=sum(sum(section.plain_evaluations) for section in self.sections),
            evaluations=tuple(n for section in self.sections for n in section.evaluations),
            seconds=self.ended - self.started,
            plan=guided[-1].plan if guided else None,
            finished=not self.failed and all(section.at_last_step for section in self.sections),
            note="; ".join(note for note in notes if note),
            finite=all(section.is_finite() for section in self.sections),
            sections=len(self.sections),
            caches=tuple(dict.fromkeys(name for section in self.sections for name in section.cache_names)),
            estimated_error=None if not guided or guided[-1].error is None else tuple(guided[-1].error.tolist()),
        )

    def _note_on_calls(self) -> str:
        if self.calls_outside:
            return (
                f"{self.calls_outside} network calls came from another thread or task than the run and ran with all "
                "branches; thg follows the thread that calls the pipeline"
            )
        if not self.sections and not self.failed:
            return "no network call of this run was seen"
        return ""
