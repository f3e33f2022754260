"""Executes a ComfyUI sampler on a few numbers before its run, with a surrogate for the model.

The surrogate passes everything on to the real objects, except for what would use the network or its device: it has no
network, and a copy of the model's noise schedule on the CPU.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .core.errors import ScheduleError
from .core.plans.k_diffusion import Answer, Calls, trace
from .core.plans.response import Response
from .core.plans.run_info import RunInfo
from .outputs import Formula

TINY = 1e-12
BACK = 0.1  # steps, by which the position of a call may go back for rounding
ORDER, HIGHEST_ORDER = "order", 4  # an option of multistep samplers; from 5 on, LMS swings and magnifies every error
CPU = torch.device("cpu")
GUIDED, UNCONDITIONAL = (1.0, 0.0), (0.0, 1.0)  # shares of the answer in the two outputs


class DryRun:
    """The inputs of a run: its sampler, its noise levels, the guider with the model."""

    def __init__(self, sampler: Any, sigmas: Tensor, guider: Any, seed: int | None) -> None:
        self._function: Any = getattr(sampler, "sampler_function", None)
        self._options = getattr(sampler, "extra_options", {})
        self._name = getattr(self._function, "__name__", type(sampler).__name__)
        self._sigmas = sigmas.detach().cpu()
        self._schedule = copy.deepcopy(guider.model_patcher.get_model_object("model_sampling")).to(CPU)
        self._guider, self._seed = guider, seed
        self._own_formula = False  # does the sampler use the unconditional output, too (CFG++)?

    def run(self) -> tuple[Calls, list[RunInfo]]:
        """The calls of the denoiser, and the run with the response to each of its outputs (see `outputs.py`).

        Raises a ScheduleError with the reason if they cannot be found.
        """
        if self._function is None:
            raise ScheduleError(f"{self._name} is not a sampler that can be run on numbers")
        order = self._options.get(ORDER)
        if isinstance(order, int) and order > HIGHEST_ORDER:
            raise ScheduleError(f"order {order} magnifies what predictions miss; use {HIGHEST_ORDER}")
        try:
            return self._found()
        except ScheduleError:
            raise
        except Exception as error:  # a third-party sampler or schedule may raise anything
            raise ScheduleError(f"{self._name} cannot be run on numbers ({type(error).__name__}: {error})") from error

    def _found(self) -> tuple[Calls, list[RunInfo]]:
        calls, run = self._response_to(GUIDED)
        levels = self._sigmas.diff().sign()
        if len({1.0, -1.0} & set(levels.tolist())) == 2 or np.diff(run.positions).min(initial=0.0) < -BACK:
            raise ScheduleError("the noise level falls and rises again, and the network's output changes with it")
        return calls, [run, *([self._response_to(UNCONDITIONAL)[1]] if self._own_formula else [])]

    def _response_to(self, output: tuple[float, float]) -> tuple[Calls, RunInfo]:
        calls = trace(functools.partial(self._run, output), self._unit, part=output != GUIDED)
        if calls.response is not None:
            scales = np.array([self._scale(sigma) for sigma in calls.sigmas])
            calls = replace(calls, response=Response(calls.response.matrix, scales))
        cfg = getattr(self._guider, "cfg", None)
        scale = float(cfg) if isinstance(cfg, int | float) else None
        return calls, calls.run(self._sigmas.tolist(), scale, map(self._log_snr, calls.sigmas))

    def _log_snr(self, sigma: float) -> float:
        """The logarithm of the signal-to-noise ratio, from how the schedule mixes latents with noise."""
        at, one, zero = torch.tensor([sigma]), torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1)
        noise, signal = (float(self._schedule.noise_scaling(at, *mix)) for mix in ((one.clone(), zero), (zero, one)))
        return 2 * (math.log(max(signal, TINY)) - math.log(max(noise, TINY)))

    def _scale(self, sigma: float) -> float:
        """The factor on the state in the network's input."""
        return float(self._schedule.calculate_input(torch.tensor([sigma]), torch.ones(1, 1, 1, 1)))

    def _unit(self, sigma: float) -> float:
        """d(denoised latents) / d(network output)."""
        one = torch.ones(1, 1, 1, 1)
        return float(self._schedule.calculate_denoised(torch.tensor([sigma]), one, torch.zeros_like(one)))

    def _run(self, output: tuple[float, float], start: Tensor, answer: Answer) -> Tensor:
        """The final state of the sampler with `answer` in place of one of the network's outputs, and 0 of the other."""
        assert self._function is not None
        model = Surrogate(self._guider, self._schedule, answer, output)
        options: dict[str, Any] = {"transformer_options": {"sample_sigmas": self._sigmas}}
        given = {"model_options": options, "seed": self._seed, "denoise_mask": None}
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)
            more = {"extra_args": given, "callback": None, "disable": True, **self._noise(start), **self._options}
            final: Tensor = self._function(model, start, self._sigmas.clone(), **more)
        self._own_formula |= model.own_formula
        return final

    def _noise(self, start: Tensor) -> dict[str, Any]:
        """In place of a Brownian tree, which takes longer than a small model's run."""
        if "noise_sampler" not in inspect.signature(self._function).parameters:
            return {}
        return {"noise_sampler": lambda sigma, after: torch.randn_like(start)}


class Proxy:
    """Another object, with some attributes replaced."""

    def __init__(self, original: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced, _original=original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


class Surrogate:
    """Has the interface of ComfyUI's guided model for samplers.

    output: the shares of the answer in the network's guided and unconditional output.
    """

    def __init__(self, guider: Any, schedule: Any, answer: Answer, output: tuple[float, float]) -> None:
        patcher = guider.model_patcher
        model = Proxy(patcher.model, model_sampling=schedule, device=CPU)

        def get_model_object(name: str) -> Any:
            return schedule if name == "model_sampling" else guider.model_patcher.get_model_object(name)

        patcher = Proxy(patcher, model=model, load_device=CPU, get_model_object=get_model_object)
        self.inner_model = Proxy(guider, inner_model=model, model_patcher=patcher)
        self.own_formula = False
        self._schedule, self._answer, self._output = schedule, answer, output

    def __call__(self, x: Tensor, sigma: Tensor, model_options: dict[str, Any] | None = None, **_: Any) -> Tensor:
        formula = Formula({}, model_options or {})
        answer = self._answer(x, sigma)
        self.own_formula |= bool(formula)
        outputs = [self._schedule.calculate_denoised(sigma, share * answer, x) for share in self._output]
        return formula.applied(outputs, x, sigma)
