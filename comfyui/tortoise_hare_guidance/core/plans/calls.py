# A copy of src/thg/plans/calls.py, made by comfyui/make_core.py: change it there.
"""What a sampler will ask of its denoiser, found before the run by running it on numbers.

A sampler in the style of k-diffusion is a function that calls a denoiser as it goes: how often, at which noise levels
and with which weight in the result is written nowhere. Run on a few numbers in place of latents, with made-up outputs
in place of a network's, it tells all three within milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ScheduleError
from ..plans.guide import Run
from ..plans.plan import MOST_STEPS

Answer = Callable[[Tensor], Tensor]
"""answer(sigma): what the network puts out at the next call of the denoiser, in the shape of the state."""

Sampler = Callable[[Tensor, Answer], Tensor]
"""sampler(start, answer): the final state of a run from `start`, with the outputs of `answer` for the network's."""

LINEAR = 1e-3  # how far a sampler may be off the sum of its responses and still count as linear: it computes in float32


@dataclass(frozen=True)
class Calls:
    """The denoiser calls of a run.

    sigmas: the noise level of each call.
    units: what one unit of the network's output is in denoised latents, at each call.
    responses: W_k, the response of the final state to the network's output at call k, by the sampler alone; None where
        the sampler adds noise or is not linear, and `reason` says which.
    """

    sigmas: tuple[float, ...]
    units: tuple[float, ...]
    responses: tuple[float, ...] | None = None
    reason: str = ""

    def run(self, grid: Sequence[float], guidance_scale: float | None = None) -> Run:
        """The same as a guide wants to know it. grid: the noise levels that the sampler was given, from high to low."""
        return Run(len(self.sigmas), positions(self.sigmas, grid), guidance_scale, times=self.sigmas)


def trace(sampler: Sampler, unit: Callable[[float], float]) -> Calls:
    """The calls of a sampler.

    unit(sigma): what one unit of the network's output is in denoised latents at this noise level (-sigma for a network
        that predicts the noise, or the velocity of a flow).

    A sampler that chooses its steps by what the network puts out is a `ScheduleError`.
    """
    sigmas, _ = _recorded(sampler, torch.zeros(1, 1))
    n = len(sigmas)
    again, final = _recorded(sampler, _probe(n))
    if again != sigmas:
        raise ScheduleError("the sampler chooses its steps by what the network puts out: they cannot be known before")
    units = tuple(unit(sigma) for sigma in sigmas)
    if not all(math.isfinite(u) and u for u in units):  # the last call of a run at sigma = 0
        units = (1.0,) * n
    *responses, mixed, nothing = final.double().reshape(-1).tolist()
    if nothing:
        return Calls(sigmas, units, reason="the sampler adds noise")
    shares = [weight * response for weight, response in zip(_mix(n).tolist(), responses, strict=True)]
    if not abs(sum(shares) - mixed) <= LINEAR * sum(map(abs, shares)):
        return Calls(sigmas, units, reason="the sampler is not linear")
    return Calls(sigmas, units, tuple(responses))


def positions(sigmas: Sequence[float], grid: Sequence[float]) -> tuple[float, ...]:
    """Where calls at these noise levels stand on the sampler's grid, in steps; in between by the logarithm of sigma.

    A grid that does not go down all the way has no places to speak of: then the order of the calls has to do.
    """
    levels = np.asarray(grid, dtype=np.float64)
    if len(levels) < 2 or (np.diff(levels) >= 0).any():
        return tuple(float(i) for i in range(len(sigmas)))
    lowest = levels[levels > 0].min() / 2  # stands for zero
    at, known = (-np.log(np.maximum(values, lowest)) for values in (np.asarray(sigmas, dtype=np.float64), levels))
    return tuple(float(place) for place in np.interp(at, known, np.arange(len(levels))))


def _recorded(sampler: Sampler, outputs: Tensor) -> tuple[tuple[float, ...], Tensor]:
    """The noise levels that a sampler calls at and the state that it ends in, with a row of outputs per call."""
    sigmas: list[float] = []
    shape = (1, 1, 1, outputs.shape[1])  # as that of latents

    def answer(sigma: Tensor) -> Tensor:
        sigmas.append(float(sigma.reshape(-1)[0]))
        call = len(sigmas) - 1
        if call == MOST_STEPS:
            raise ScheduleError(f"the sampler does not end: it has called its denoiser {MOST_STEPS} times")
        return outputs[call].reshape(shape) if call < len(outputs) else torch.zeros(shape)

    final = sampler(torch.zeros(shape), answer)
    return tuple(sigmas), final


def _probe(n: int) -> Tensor:
    """Columns of outputs: one for each call that has 1 there and 0 elsewhere, a mix of all of them, and nothing."""
    return torch.cat([torch.eye(n), _mix(n)[:, None], torch.zeros(n, 1)], dim=1)


def _mix(n: int) -> Tensor:
    return torch.cos(torch.arange(n) ** 2.0)
