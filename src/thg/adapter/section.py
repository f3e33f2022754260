"""One pass of a pipeline over its time steps: its description, its progress, and its cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from thg.adapter.caches import CachedNetwork
from thg.adapter.call import Call, is_sample
from thg.adapter.caller import Caller
from thg.adapter.describe import describe
from thg.adapter.identity import fingerprint
from thg.adapter.outputs import outline, tensors_of
from thg.adapter.schedule import Schedule
from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Guide, GuideMaker, HareGuide, Visitor
from thg.plans.response import ADDS_NOISE
from thg.plans.run import Run


class Section:
    """The state of one pass. `release` drops everything that holds tensors."""

    def __init__(self, maker: GuideMaker, caller: Caller, call: Call, timesteps: Any, rescales: bool = False) -> None:
        """call: the first call of this pass."""
        all_times = caller.pipe.scheduler.timesteps if timesteps is None else timesteps
        self.run = _described(caller, call, all_times, rescales)
        self._schedule = Schedule(self.run.times or (), all_times)
        self._follow(maker.guide(self.run))
        self.key = _key(caller, timesteps)
        self.step = -1  # the current step
        self.rows: int | None = None  # rows of a call with all branches
        self.evaluations: list[int] = []  # per step, per sample
        self.plain_evaluations: list[int] = []  # the same for plain CFG
        self.guided_steps = 0
        self.guided_at = -1  # the last step at which the pipeline called all branches
        self._finite: list[Tensor] = []  # whether the tensors of the last output were
        self.error: Tensor | None = None  # the guide's estimate of the difference from plain CFG, per sample
        # the current network call
        self.loop_time: Any = None
        self.stepped: bool | None = None  # has the scheduler made its step since? None if no step was observed yet
        self.template: Any = None  # the outline of an output, for outputs that are predicted entirely
        # pipelines that call their network once per branch
        self.first: Call | None = None  # the first call of the current step, until that of the other branch
        self.output: Any = None  # the output of one of them
        self.ahead: Call | None = None  # the last conditional call, where it comes second
        self.steady = False  # its arguments were the same at two steps
        # caches inside the networks
        self._networks: dict[Any, CachedNetwork] = {}
        self.cache_names: tuple[str, ...] = ()

    @property
    def adapts(self) -> bool:
        """Whether the plan can be made again for a scale that is known after the first guided step."""
        return isinstance(self.guide, HareGuide) and self.guide.plan.boost == 1

    def plan_for(self, maker: GuideMaker, w: float) -> None:
        """Makes the plan for a measured guidance scale; rounded, to be the same for all seeds."""
        self.run = replace(self.run, guidance_scale=round(w, 1))
        self._follow(maker.guide(self.run))

    def _follow(self, guide: Guide) -> None:
        self.guide, self.plan = guide, guide.plan
        self.visitor = guide if isinstance(guide, Visitor) else None

    def covers(self, caller: Caller, timesteps: Any) -> bool:
        """Does a call belong to this pass, or has the pipeline set new time steps?"""
        return all(own is now for own, now in zip(self.key, _key(caller, timesteps), strict=True))

    def network(self, call: Call) -> CachedNetwork:
        """The network of a call, with the caches inside it."""
        module = call.module
        if module not in self._networks:
            self._networks[module] = CachedNetwork(module, self.guide)
            self.cache_names += tuple(cache.name for cache in self._networks[module].caches)
        return self._networks[module]

    def empty_caches(self) -> None:
        """Makes the caches inside the networks forget the calls of this pass, which had the rows of one branch."""
        for network in self._networks.values():
            network.caches.empty()

    def same_step(self, caller: Caller) -> bool:
        """Is this call at the same step as the last one?"""
        now = caller.loop_time()
        if now is not None and self.loop_time is not None:
            return now is self.loop_time
        return self.step >= 0 and not self.stepped

    def next_step(self, caller: Caller, call: Call) -> int:
        self.step += 1
        if self.step >= self.run.steps:
            raise UnsupportedPipelineError(
                f"it calls its network more often than the {self.run.steps} time steps of its run, so that the calls "
                "cannot be assigned to steps"
            )
        self.loop_time = caller.loop_time()
        if self._schedule.left_at(self.step, call.time if self.loop_time is None else self.loop_time):
            raise UnsupportedPipelineError(
                "its loop skips time steps of its scheduler or goes back, so that calls cannot be assigned to steps"
            )
        self.evaluations.append(0)
        self.plain_evaluations.append(0)
        self.stepped = None if self.stepped is None else False
        return self.step

    def guided_step(self, caller: Caller, call: Call) -> int:
        """The step of a call with all branches. A call with fewer may have begun it."""
        if self.stepped is not False:
            self.next_step(caller, call)
        elif self.guided_at == self.step:
            raise UnsupportedPipelineError("it calls its network with all branches more than once in a step")
        self.guided_at = self.step
        self.guided_steps += 1
        return self.step

    def back_to(self, step: int) -> None:
        """Discards the step that was begun after this one."""
        self.step = step
        del self.evaluations[step + 1 :], self.plain_evaluations[step + 1 :]

    def count_plain_step(self, branches: int) -> None:
        """Counts a step in which all branches ran."""
        if not self.at_last_step:
            self.step += 1
            self.evaluations.append(0)
            self.plain_evaluations.append(0)
        self.count(branches, instead_of=branches)

    def count(self, branches: int, instead_of: int) -> None:
        self.evaluations[-1] += branches
        self.plain_evaluations[-1] += instead_of

    @property
    def at_last_step(self) -> bool:
        return self.step == self.run.steps - 1

    def keep_form(self, output: Any) -> None:
        """Keeps the outline of an output, without its numbers, for outputs that are predicted entirely."""
        if self.template is None:
            self.template = outline(output)

    def watch(self, call: Call, output: Any) -> None:
        """Checks the output of the last call: NaN spreads to all later states, so this covers the whole run."""
        self._finite = [torch.isfinite(tensor).all() for tensor in tensors_of(output)]
        if isinstance(self.guide, HareGuide) and is_sample(call.sample):
            self.error = self.guide.estimated_error(call.sample)

    def is_finite(self) -> bool:
        """Was the last output finite? Waits for the device."""
        return all(self._finite)

    def release(self) -> None:
        """Drops everything that holds tensors, and keeps what the summary needs."""
        self.empty_caches()
        self._networks.clear()
        self.plan = self.guide.plan  # it may have begun later than the run
        del self.guide, self.visitor, self.key, self._schedule
        self.first = self.ahead = self.output = self.template = self.loop_time = None

    def note(self) -> str:
        """Remarks on this pass."""
        if not self.is_finite():
            return "NaN or infinity in the last network output: this result is broken. In half precision, try float32"
        if not self.guided_steps:
            return "guidance was off in this run (guidance_scale 1?), so there was nothing to skip"
        if self.plan is not None and self.plan.corrector and self.run.response is None:
            return f"the corrector was left out: {self.run.no_response}"
        return ""


def _described(caller: Caller, call: Call, timesteps: Any, rescales: bool) -> Run:
    """The description of a pass over these time steps, for guides.

    rescales: the scheduler's input is the network's output times a factor that changes with the step.
    """
    obstacle = "the pipeline rescales the network's output at every step" if rescales else ""
    if noise := caller.noise_argument():
        obstacle = f"the scheduler {ADDS_NOISE} at every step ({noise} above 0)"
    first = caller.loop_time()
    run = describe(caller.pipe.scheduler, timesteps, obstacle, call.time if first is None else first)
    return replace(run, guidance_scale=caller.guidance_scale(), network=fingerprint(caller.pipe))


def _key(caller: Caller, timesteps: Any) -> tuple[Any, ...]:
    return timesteps, getattr(caller.pipe.scheduler, "timesteps", None)
