"""One run of a sampler: created when it starts, discarded when it ends.

ComfyUI calls `predict_noise` once for each denoiser call of the sampler. Whatever happens inside (any number of
conditions, any guidance formula, patches of other packs) ends in one output: at some calls it is evaluated, at the
others predicted, and nothing of the network runs.
"""

from __future__ import annotations

import logging
import math
import time
from typing import Any

import torch
from torch import Tensor

from .breaks import combines, memory, state
from .core.errors import PlanError, ScheduleError
from .core.plans.k_diffusion import Calls
from .core.plans.leaps import Estimate, Leaps
from .core.plans.plan import EVALUATED, SKIPPED
from .core.plans.tolerance import hardness
from .guards import obstacle
from .outputs import Formula, Space
from .report import Report
from .sampler import DryRun
from .settings import Settings

OUTER_SAMPLE, SAMPLER_SAMPLE, PREDICT_NOISE = "outer_sample", "sampler_sample", "predict_noise"
KEY = "tortoise_hare_guidance"
RANDOM = "another node draws random numbers inside the network, and every evaluation changes those of the next"
MEMORY = "another node remembers what was evaluated before, and skipped evaluations would be missing in its memory"
COMBINED = "several conditions are combined, and a small error may decide which of them wins"
CHANGED = "nothing is skipped: conditions or settings change within the run, and what follows is evaluated"
SETTLING = 6  # calls that are evaluated after a change within a run: with two, a change of the prompt gave 30 dB
OWN_FORMULA = 1.5  # as many evaluations for a sampler that uses two outputs (CFG++), measured on the shipped models

log = logging.getLogger(__name__)


class Session:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.note = ""  # why nothing is skipped, or not corrected
        self.marks = ""  # one for each denoiser call so far
        self._leaps: list[Leaps] = []  # of each output of a call; empty: every call is evaluated
        self._calls = Calls((), ())
        self._schedule: Any = None  # of the model
        self._state: Any = None  # of everything that changes the output besides time
        self._settled = 0  # the call before which everything is evaluated, after a change of the state
        self._seconds = 0.0
        self._error: float | None = None  # the estimated one

    def install(self, model_options: dict[str, Any]) -> None:
        """Installs this run's wrappers into its own copy of the options, innermost: other nodes' wrappers around a
        call (which may change the scale) come first."""
        wrappers = model_options.setdefault("transformer_options", {}).setdefault("wrappers", {})
        wrappers.setdefault(SAMPLER_SAMPLE, {})[KEY] = [self.sampler_sample]
        wrappers.setdefault(PREDICT_NOISE, {})[KEY] = [self.predict_noise]

    def report(self) -> Report:
        """The cost of the run."""
        return Report(self.marks, self._seconds, self._error, self.note)

    # -- what ComfyUI calls

    def sampler_sample(
        self,
        executor: Any,
        guider: Any,
        sigmas: Tensor,
        extra_args: dict[str, Any],
        callback: Any,
        noise: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Called when the sampler starts, with everything that determines its calls."""
        self._schedule = guider.model_patcher.get_model_object("model_sampling")
        started, ends_clean = time.perf_counter(), not sigmas[-1]  # uni_pc writes into its noise levels
        try:
            if reason := obstacle(guider, extra_args["model_options"]):
                raise ScheduleError(reason)
            self._begin(guider, DryRun(executor.class_obj, sigmas, guider, extra_args.get("seed")), noise.shape)
        except (ScheduleError, PlanError) as error:
            self._plain(str(error))
        latents = executor(guider, sigmas, extra_args, callback, noise, *args, **kwargs)
        self._seconds = time.perf_counter() - started
        self.note = next(filter(None, (leaps.doubt() for leaps in self._leaps)), self.note)
        if self._settled and SKIPPED not in self.marks:
            self.note = CHANGED
        if ends_clean:
            errors = [leaps.estimated_error(latents) for leaps in self._leaps]
            self._error = max((float(error.max()) for error in errors if error is not None), default=None)
        return latents

    def predict_noise(
        self, executor: Any, x: Tensor, timestep: Tensor, model_options: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """A denoiser call."""
        call, guider = len(self.marks), executor.class_obj
        formula = Formula(guider.model_options, model_options)
        if self._leaps and not self._expects(call, float(timestep.flatten()[0]), formula):
            self._plain("the sampler did not repeat its dry run", call)
        if not self._leaps:
            self.marks += EVALUATED
            return executor(x, timestep, model_options, *args, **kwargs)

        now = (tuple(x.shape), state(guider, model_options, self._calls.sigmas[call]))
        if now != self._state:
            for leaps in self._leaps:
                leaps.forget()
            if self._state is not None and self.settings.by_error:
                self._settled = call + SETTLING
            self._state = now
        space = Space(self._schedule, x, timestep, self._calls.units[call])
        if call < self._settled or any(leaps.evaluates(call) for leaps in self._leaps):
            self.marks += EVALUATED
            random, remembered = _random_state(x), memory(guider, model_options, x.shape)
            evaluated = formula.evaluated(lambda options: executor(x, timestep, options, *args, **kwargs))
            outputs = [space.output(part) for part in evaluated]
            used = [leaps.observe(call, (output,))[0] for leaps, output in zip(self._leaps, outputs, strict=True)]
            same = all(a is b for a, b in zip(used, outputs, strict=True))
            denoised = evaluated if same else [space.denoised(part) for part in used]
            if not all(map(torch.equal, random, _random_state(x))):
                self._plain(RANDOM, call)
            if not remembered <= memory(guider, model_options, x.shape):
                self._plain(MEMORY, call)
        else:
            self.marks += SKIPPED
            denoised = [space.denoised(leaps.predict(call)[0]) for leaps in self._leaps]
        return formula.applied(denoised, x, timestep)

    # -- the plan, and the network's space

    def _begin(self, guider: Any, dry: DryRun, shape: tuple[int, ...]) -> None:
        self._calls, runs = dry.run()
        if sum(combines(guider, sigma, shape) for sigma in self._calls.sigmas) > 1:  # where two ranges meet, it is one
            raise ScheduleError(COMBINED)
        run = runs[0]
        effort = 1.0
        if len(runs) > 1:  # what makes leaps harder is counted once
            effort = OWN_FORMULA / hardness(run)
        plan = self.settings.plan(run, self._schedule.percent_to_sigma, effort)
        self._leaps = [Leaps(plan, run, Estimate.of(plan, run), gives_up=self.settings.by_error) for run in runs]
        if self.settings.corrector and run.response is None:
            self.note = f"not corrected: {run.no_response}"
        if self.settings.verbose:
            log.info("Tortoise and Hare Guidance: %d denoiser calls at %s; %r", run.steps, self._calls.sigmas, plan)

    def _plain(self, reason: str, call: int = 0) -> None:
        """Every call from this one on is evaluated."""
        self._leaps = []
        self.note = f"nothing is skipped from call {call + 1} on: {reason}" if call else f"nothing is skipped: {reason}"

    def _expects(self, call: int, sigma: float, formula: Formula) -> bool:
        """Is this call, at this noise level, the one of the dry run?"""
        sigmas = self._calls.sigmas
        if len(self._leaps) != 1 + bool(formula):
            return False
        return call < len(sigmas) and math.isclose(sigma, sigmas[call], rel_tol=1e-3, abs_tol=1e-6)


def _random_state(x: Tensor) -> list[Tensor]:
    """The state of the global random numbers."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(x.device)] if x.is_cuda else states
