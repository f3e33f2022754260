"""The outputs of a denoiser call: the guided prediction, and the unconditional one for samplers with a formula of their
own (CFG++). Both are denoised latents; they are predicted in the space of the network's own output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

POST = "sampler_post_cfg_function"


class Space:
    """Between denoised latents and the network's output, at one call.

    unit: d(denoised latents) / d(network output); 1 if denoised latents are predicted as they are (see `Calls.units`).
    """

    def __init__(self, schedule: Any, x: Tensor, sigma: Tensor, unit: float) -> None:
        self._unit = unit
        self._kept: Tensor | None = None  # the part of the state in the denoised latents
        if unit != 1.0:
            self._kept = schedule.calculate_denoised(sigma, torch.zeros_like(x), x)

    def output(self, denoised: Tensor) -> Tensor:
        if self._kept is None:
            return denoised.clone()  # a sampler may write into what it gets
        return (denoised - self._kept) / self._unit

    def denoised(self, output: Tensor) -> Tensor:
        return output if self._kept is None else self._kept.add(output, alpha=self._unit)


class Formula:
    """The functions that a sampler itself calls after the guidance formula: with them it takes what it needs."""

    def __init__(self, of_model: dict[str, Any], of_call: dict[str, Any]) -> None:
        known = {id(function) for function in of_model.get(POST, ())}
        self._functions = [function for function in of_call.get(POST, ()) if id(function) not in known]
        self._options = of_call

    def __bool__(self) -> bool:
        return bool(self._functions)

    def evaluated(self, evaluate: Callable[[dict[str, Any]], Tensor]) -> list[Tensor]:
        """The outputs of a call, without the sampler's functions."""
        if not self._functions:
            return [evaluate(self._options)]
        unconditional: list[Tensor] = []

        def keep(args: dict[str, Any]) -> Tensor:
            unconditional.append(args["uncond_denoised"])
            denoised: Tensor = args["denoised"]
            return denoised

        others = [function for function in self._options[POST] if function not in self._functions]
        return [evaluate({**self._options, POST: [*others, keep]}), unconditional[-1]]

    def applied(self, outputs: Sequence[Tensor], x: Tensor, sigma: Tensor) -> Tensor:
        """What the sampler gets, after its functions have seen these outputs."""
        denoised = outputs[0]
        for function in self._functions:
            given = {"denoised": denoised, "uncond_denoised": outputs[1], "sigma": sigma, "input": x}
            denoised = function({**given, "model_options": self._options})
        return denoised
