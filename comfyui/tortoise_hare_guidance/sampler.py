"""The denoiser calls of a ComfyUI sampler, found before its run with a stand-in for the model.

The stand-in has what samplers look for in ComfyUI's guided model, a copy of the model's noise schedule, and no network.
"""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from .core.errors import ScheduleError
from .core.plans.calls import Answer, Calls, trace

TINY = 1e-12


def calls_of(sampler: Any, sigmas: Tensor, model_sampling: Any, cfg: float, seed: int | None) -> Calls:
    """The calls of a sampler over these sigmas; a ScheduleError says why they cannot be known."""
    function = getattr(sampler, "sampler_function", None)
    if function is None:
        raise ScheduleError(f"{type(sampler).__name__} is not a sampler that can be run on numbers")
    schedule = copy.deepcopy(model_sampling).to("cpu")
    levels = sigmas.detach().cpu()

    def run(start: Tensor, answer: Answer) -> Tensor:
        model = StandIn(schedule, cfg, answer)
        given: dict[str, Any] = {"model_options": {}, "seed": seed, "denoise_mask": None}
        final: Tensor = function(
            model, start, levels.clone(), extra_args=given, callback=None, disable=True, **sampler.extra_options
        )
        return final

    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return trace(run, lambda sigma: unit(schedule, sigma))
    except ScheduleError:
        raise
    except Exception as error:  # whatever a sampler of another pack may do without a model
        name = getattr(function, "__name__", type(sampler).__name__)
        raise ScheduleError(f"{name} cannot be run on numbers ({type(error).__name__}: {error})") from error


def unit(schedule: Any, sigma: float) -> float:
    """What one unit of the network's output is in denoised latents."""
    one = torch.ones(1, 1, 1, 1)
    return float(schedule.calculate_denoised(torch.tensor([sigma]), one, torch.zeros_like(one)))


def log_snr(schedule: Any, sigma: float) -> float:
    """The logarithm of the signal-to-noise ratio, from how the schedule mixes latents with noise."""
    at, one, zero = torch.tensor([sigma], dtype=torch.float64), torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
    noise, signal = (float(schedule.noise_scaling(at, *mix)) for mix in ((one.clone(), zero), (zero.clone(), one)))
    return 2 * (math.log(max(signal, TINY)) - math.log(max(noise, TINY)))


class StandIn:
    """Looks to a sampler like ComfyUI's guided model. The conditional output is zero, the guidance term given."""

    def __init__(self, schedule: Any, cfg: float, answer: Answer) -> None:
        model = SimpleNamespace(model_sampling=schedule)
        patcher = SimpleNamespace(model=model, get_model_object={"model_sampling": schedule}.__getitem__)
        self.inner_model = SimpleNamespace(inner_model=model, model_patcher=patcher, cfg=cfg)
        self._schedule, self._cfg, self._answer = schedule, cfg, answer

    def __call__(self, x: Tensor, sigma: Tensor, model_options: dict[str, Any] | None = None, **_: Any) -> Tensor:
        term = self._answer(x, sigma)
        denoised: Tensor
        conditional, unconditional, denoised = (
            self._schedule.calculate_denoised(sigma, share * term, x) for share in (0.0, -1.0, self._cfg - 1)
        )
        for function in (model_options or {}).get("sampler_post_cfg_function", []):  # samplers of the CFG++ kind
            denoised = function(
                {
                    "denoised": denoised,
                    "cond_denoised": conditional,
                    "uncond_denoised": unconditional,
                    "cond_scale": self._cfg,
                    "sigma": sigma,
                    "input": x,
                    "model_options": model_options,
                }
            )
        return denoised
