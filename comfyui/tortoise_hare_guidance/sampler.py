"""Executes a ComfyUI sampler on a few numbers before its run, with a surrogate for the model.

The surrogate has the attributes of ComfyUI's guided model that samplers use, a copy of the model's noise schedule, and
no network.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core.errors import ScheduleError
from .core.plans.calls import Answer, Calls, trace
from .core.plans.guide import Run
from .core.plans.response import Response

TINY = 1e-12
BACK = 1.5  # steps; a sampler without restarts goes back by at most one (heunpp2)


class DryRun:
    """The inputs of a run: its sampler, its noise levels, the model's schedule, the scale."""

    def __init__(self, sampler: Any, sigmas: Tensor, model_sampling: Any, cfg: float | None, seed: int | None) -> None:
        self._function = getattr(sampler, "sampler_function", None)
        self._options = getattr(sampler, "extra_options", {})
        self._name = getattr(self._function, "__name__", type(sampler).__name__)
        self._sigmas = sigmas.detach().cpu()
        self._schedule = copy.deepcopy(model_sampling).to("cpu")
        self._cfg, self._seed = cfg, seed
        self._own_formula = False  # does the sampler use the branches in its own formula (CFG++)?

    def run(self) -> tuple[Calls, Run]:
        """The calls of the denoiser, and the run; raises a ScheduleError with the reason if they cannot be found."""
        if self._function is None:
            raise ScheduleError(f"{self._name} is not a sampler that can be run on numbers")
        try:
            return self._found()
        except ScheduleError:
            raise
        except Exception as error:  # a third-party sampler or schedule may raise anything
            raise ScheduleError(f"{self._name} cannot be run on numbers ({type(error).__name__}: {error})") from error

    def _found(self) -> tuple[Calls, Run]:
        calls, scale = trace(self._run, self._unit), self._guidance_scale()
        if scale == 1:
            calls = replace(calls, response=None, no_response="at scale 1 there is no guidance")
        if calls.response is not None and scale is not None:
            matrix = calls.response.matrix / (scale - 1)  # it was measured with guidance, which has this factor
            calls = replace(calls, response=Response(matrix, np.array([self._seen(sigma) for sigma in calls.sigmas])))
        run = calls.run(self._sigmas.tolist(), scale, map(self._log_snr, calls.sigmas))
        levels = self._sigmas.diff().sign()
        if len({1.0, -1.0} & set(levels.tolist())) == 2 or np.diff(run.positions).min(initial=0.0) < -BACK:
            raise ScheduleError("the noise level falls and rises again, and the guidance term changes with it")
        if self._own_formula and run.adds_noise:  # a predicted branch gave as little as 8 dB
            raise ScheduleError(f"{self._name} adds noise and uses the unconditional branch in its own formula")
        return calls, run

    def _guidance_scale(self) -> float | None:
        """w; for a sampler with a formula of its own, that of plain guidance which would move the result as much."""
        if not self._own_formula:
            return self._cfg
        start = torch.zeros(1, 1, 1, 1)
        nothing = float(self._run(start, lambda x, _: torch.zeros_like(x)))
        term, both = (float(self._run(start, lambda x, _: torch.ones_like(x), alike)) for alike in (False, True))
        return 1 + abs(term - nothing) / max(abs(both - nothing), TINY)

    def _log_snr(self, sigma: float) -> float:
        """The logarithm of the signal-to-noise ratio, from how the schedule mixes latents with noise."""
        at, one, zero = torch.tensor([sigma]), torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
        noise, signal = (float(self._schedule.noise_scaling(at, *mix)) for mix in ((one.clone(), zero), (zero, one)))
        return 2 * (math.log(max(signal, TINY)) - math.log(max(noise, TINY)))

    def _seen(self, sigma: float) -> float:
        """The factor on the state in the network's input."""
        return float(self._schedule.calculate_input(torch.tensor([sigma]), torch.ones(1, 1, 1, 1)))

    def _unit(self, sigma: float) -> float:
        """d(denoised latents) / d(network output)."""
        one = torch.ones(1, 1, 1, 1)
        return float(self._schedule.calculate_denoised(torch.tensor([sigma]), one, torch.zeros_like(one)))

    def _run(self, start: Tensor, answer: Answer, alike: bool = False) -> Tensor:
        """The final state if `answer` is the guidance term (alike: if it is the output of both branches)."""
        assert self._function is not None
        cfg = 2.0 if self._cfg is None else self._cfg
        model = StandIn(self._schedule, answer, (1.0, 1.0, 1.0) if alike else (0.0, -1.0, cfg - 1))
        given: dict[str, Any] = {"model_options": {}, "seed": self._seed, "denoise_mask": None}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            sigmas = self._sigmas.clone()
            options = {"extra_args": given, "callback": None, "disable": True, **self._options}
            final: Tensor = self._function(model, start, sigmas, **options)
        self._own_formula |= model.own_formula
        return final


class StandIn:
    """Has the interface of ComfyUI's guided model for samplers.

    shares: of the answer in the network's conditional, unconditional and guided output.
    """

    def __init__(self, schedule: Any, answer: Answer, shares: tuple[float, float, float]) -> None:
        model = SimpleNamespace(model_sampling=schedule)
        patcher = SimpleNamespace(model=model, get_model_object={"model_sampling": schedule}.__getitem__)
        self.inner_model = SimpleNamespace(inner_model=model, model_patcher=patcher)
        self.own_formula = False
        self._schedule, self._answer, self._shares = schedule, answer, shares

    def __call__(self, x: Tensor, sigma: Tensor, model_options: dict[str, Any] | None = None, **_: Any) -> Tensor:
        output = self._answer(x, sigma)
        denoised: Tensor
        conditional, unconditional, denoised = (
            self._schedule.calculate_denoised(sigma, share * output, x) for share in self._shares
        )
        for function in (model_options or {}).get("sampler_post_cfg_function", []):
            self.own_formula = True
            denoised = function(
                {
                    "denoised": denoised,
                    "cond_denoised": conditional,
                    "uncond_denoised": unconditional,
                    "sigma": sigma,
                    "input": x,
                    "model_options": model_options,
                }
            )
        return denoised
