"""One run of a sampler with Tortoise and Hare Guidance: created when it starts, discarded when it ends.

ComfyUI calls `predict_noise` once for each denoiser call of the sampler, and in it `calc_cond_batch` once for each
list of conditions to evaluate: [positive, negative] for guidance, other lists for other guiders, the same list several
times with context windows. Only lists of two are handled: the first is the conditional branch.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from .conditions import Condition, active_patches, identity, window
from .core.errors import ScheduleError
from .core.plans.calls import Calls
from .core.plans.denoised import DenoisedGuide
from .core.plans.guide import HareGuide, Run
from .core.plans.plan import HARE, TORTOISE, UNGUIDED, Plan
from .core.plans.report import Summary
from .guards import no_corrector, obstacle
from .sampler import DryRun
from .settings import Settings

OUTER_SAMPLE, SAMPLER_SAMPLE = "outer_sample", "sampler_sample"
PREDICT_NOISE, CALC_COND_BATCH = "predict_noise", "calc_cond_batch"
KEY = "tortoise_hare_guidance"
NO_PAIR = "nothing to save: this guider never evaluates exactly two conditions together at this scale"

log = logging.getLogger(__name__)


class Session:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.note = ""  # why this run is plain guidance, or has no corrector
        self.marks: list[str] = []  # of each denoiser call so far
        self._evaluations: list[int] = []  # of each denoiser call
        self._plain_evaluations = 0  # those of plain guidance
        self._started = 0.0
        self._known: Known | None = None  # None: the run is plain
        self._error: Tensor | None = None  # the estimated one, of each picture
        self._guider: Any = None
        self._memory: dict[Any, Remembered] = {}  # of the calls before this one
        self._used: dict[Any, Remembered] = {}  # in this call

    def install(self, model_options: dict[str, Any]) -> None:
        """Installs this run's wrappers into its own copy of the options: outermost around the denoiser, innermost
        around its branches."""
        wrappers = model_options.setdefault("transformer_options", {}).setdefault("wrappers", {})
        wrappers.setdefault(SAMPLER_SAMPLE, {})[KEY] = [self.sampler_sample]
        wrappers[PREDICT_NOISE] = {KEY: [self.predict_noise], **wrappers.get(PREDICT_NOISE, {})}
        wrappers.setdefault(CALC_COND_BATCH, {})[KEY] = [self.calc_cond_batch]

    def release(self) -> None:
        """Drops everything that holds tensors or models."""
        self._memory = self._used = {}
        self._guider = None

    def summary(self) -> Summary:
        """The cost of the run."""
        return Summary(
            pipeline="Tortoise and Hare Guidance",
            steps=len(self.marks),
            nfe=sum(self._evaluations),
            cfg_nfe=self._plain_evaluations,
            evaluations=tuple(self._evaluations),
            seconds=time.perf_counter() - self._started if self.marks else 0.0,
            note=self.note,
            estimated_error=None if self._error is None else tuple(self._error.tolist()),
        )

    # -- what ComfyUI calls

    def sampler_sample(
        self, executor: Any, guider: Any, sigmas: Tensor, extra_args: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Called when the sampler starts, with everything that determines its calls."""
        self._started = time.perf_counter()
        schedule = guider.model_patcher.get_model_object("model_sampling")
        reason = obstacle(extra_args["model_options"])
        dry = DryRun(executor.class_obj, sigmas, schedule, _cfg(guider), extra_args.get("seed"))
        try:
            if reason:
                raise ScheduleError(reason)
            self._begin(dry, schedule.percent_to_sigma, no_corrector(extra_args["model_options"]))
        except ScheduleError as error:
            self.note = f"plain guidance: {error}"
        latents = executor(guider, sigmas, extra_args, *args, **kwargs)
        if self._known is not None and not (self._memory or self._used):
            self.note = NO_PAIR
        if len(self._used) == 1 and not sigmas[-1]:  # one pair of conditions, and no noise is left
            (remembered,) = self._used.values()
            self._error = remembered.guide.estimated_error(latents)
        return latents

    def predict_noise(self, executor: Any, x: Tensor, timestep: Tensor, *args: Any, **kwargs: Any) -> Any:
        """A denoiser call."""
        self._guider = executor.class_obj
        if self._known is not None and not self._known.expects(len(self.marks), float(timestep.flatten()[0])):
            self.note = f"plain guidance from call {len(self.marks) + 1} on: the sampler did not repeat its dry run"
            self._known = None
        self.marks.append(UNGUIDED)
        self._evaluations.append(0)
        if self._used:
            self._memory, self._used = self._used, {}
        return executor(x, timestep, *args, **kwargs)

    def calc_cond_batch(
        self, executor: Any, model: Any, conds: list[Any], x: Tensor, timestep: Tensor, model_options: dict[str, Any]
    ) -> Any:
        """Called when the network has to be evaluated for each of these conditions."""
        if not self.marks:  # outside of the sampler's run
            return executor(model, conds, x, timestep, model_options)
        call, known = len(self.marks) - 1, self._known
        sigma = None if known is None else known.calls.sigmas[call]
        branches = [identity(cond, sigma) for cond in conds if cond is not None]
        if known is None or sigma is None or len(conds) != 2 or len(branches) != 2 or not all(branches):
            self._count(branches, branches, HARE if len(branches) > 1 else UNGUIDED)
            return executor(model, conds, x, timestep, model_options)

        place = (tuple(x.shape), id(model), window(model_options), active_patches(model_options, sigma))
        remembered = self._remembered((*branches, *place), known)
        if remembered.evaluates(call, _cfg(self._guider)):
            conditional, unconditional = executor(model, conds, x, timestep, model_options)
            self._count(branches, branches, HARE)
            return [conditional, remembered.guide.observe(call, conditional, unconditional)]
        conditional, _ = executor(model, [conds[0], None], x, timestep, model_options)
        self._count(branches[:1], branches, TORTOISE)
        return [conditional, remembered.guide.predict(call, conditional)]

    # -- the plan, the memory, the count

    def _begin(self, dry: DryRun, percent_to_sigma: Callable[[float], float], no_corrector: str) -> None:
        calls, run = dry.run()
        if no_corrector:
            run = replace(run, response=None, no_response=no_corrector)
        plan = self.settings.plan(run, percent_to_sigma)
        self._known = Known(
            calls,
            run,
            plan,
            lambda first: self.settings.plan(run.part(first, run.steps), percent_to_sigma).after(first),
        )
        if self.settings.by_error and plan.evaluations == run.steps:
            self.note = (
                f"nothing to save: an error of {self.settings.error:g} needs both branches at all {run.steps} calls"
            )
        elif self.settings.corrector and run.response is None:
            self.note = f"no corrector: {run.no_response}"
        if self.settings.verbose:
            log.info("Tortoise and Hare Guidance: %d denoiser calls at %s; %r", run.steps, calls.sigmas, plan)

    def _remembered(self, key: tuple[Any, ...], known: Known) -> Remembered:
        """The guide of this pair of conditions; a separate one for the second such pair in one denoiser call."""
        while key in self._used:
            key = (*key, "again")
        if key not in self._memory:
            self._memory[key] = Remembered(known.guide())
        self._used[key] = self._memory[key]
        return self._used[key]

    def _count(self, evaluated: list[Condition], plain: list[Condition], mark: str) -> None:
        self._evaluations[-1] += sum(map(len, evaluated))
        self._plain_evaluations += sum(map(len, plain))
        if self.marks[-1] == UNGUIDED:
            self.marks[-1] = mark


@dataclass(frozen=True)
class Known:
    """The calls, description and plan of a run, known before it starts. from_step: the plan from a later call on."""

    calls: Calls
    run: Run
    plan: Plan
    from_step: Callable[[int], Plan]

    def expects(self, call: int, sigma: float) -> bool:
        """Is this call, at this noise level, the one of the dry run?"""
        return call < self.run.steps and math.isclose(sigma, self.calls.sigmas[call], rel_tol=1e-3, abs_tol=1e-6)

    def guide(self) -> DenoisedGuide:
        return DenoisedGuide(HareGuide(self.plan, self.run, self.from_step), self.calls.units)


class Remembered:
    """The guide of one pair of conditions, and the guidance scale of its last call."""

    def __init__(self, guide: DenoisedGuide) -> None:
        self.guide = guide
        self._cfg: float | None = None

    def evaluates(self, call: int, cfg: float | None) -> bool:
        before, self._cfg = self._cfg, cfg
        planned = self.guide.evaluates(call)
        return planned or cfg != before


def _cfg(guider: Any) -> float | None:
    """The guidance scale, if the guider has one."""
    value = getattr(guider, "cfg", None)
    return float(value) if isinstance(value, int | float) else None
