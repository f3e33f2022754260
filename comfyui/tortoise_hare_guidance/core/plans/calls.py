# A copy of src/thg/plans/calls.py, made by comfyui/make_core.py: change it there.
"""What a sampler will ask of its denoiser, found before the run by running it on numbers.

A sampler in the style of k-diffusion is a function that calls a denoiser as it goes: how often, at which noise levels
and with which weight in its states is written nowhere. Run on a few numbers in place of latents, with made-up outputs
in place of a network's, it tells all three within milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ScheduleError
from ..plans.guide import Run
from ..plans.plan import MOST_STEPS
from ..plans.response import Response, probe

Answer = Callable[[Tensor, Tensor], Tensor]
"""answer(x, sigma): what the network puts out at a call of the denoiser, in the shape of the state x."""

Sampler = Callable[[Tensor, Answer], Tensor]
"""sampler(start, answer): the final state of a run from `start`, with the outputs of `answer` for the network's."""


@dataclass(frozen=True)
class Calls:
    """The denoiser calls of a run.

    sigmas: the noise level of each call.
    units: what one unit of the network's output is in denoised latents, at each call.
    response: of the states to the network's outputs; None where the sampler is not linear or adds noise, and
        `no_response` says which.
    """

    sigmas: tuple[float, ...]
    units: tuple[float, ...]
    response: Response | None = None
    no_response: str = "nothing is known of the sampler"
    adds_noise: bool = False

    def run(
        self, grid: Sequence[float], guidance_scale: float | None = None, log_snr: Iterable[float] | None = None
    ) -> Run:
        """The same as a guide wants to know it.

        grid: the noise levels that the sampler was given, from high to low. log_snr: of each call, if it is known.
        """
        return Run(
            steps=len(self.sigmas),
            positions=positions(self.sigmas, grid),
            guidance_scale=guidance_scale,
            log_snr=None if log_snr is None else tuple(log_snr),
            times=self.sigmas,
            response=self.response,
            no_response=self.no_response,
            adds_noise=self.adds_noise,
        )


def trace(sampler: Sampler, unit: Callable[[float], float]) -> Calls:
    """The calls of a sampler.

    unit(sigma): what one unit of the network's output is in denoised latents at this noise level (-sigma for a network
        that predicts the noise, or the velocity of a flow).

    A sampler that chooses its steps by what the network puts out is a `ScheduleError`.
    """
    sigmas, _ = _recorded(sampler, torch.zeros(1, 1))
    again, states = _recorded(sampler, torch.from_numpy(probe(len(sigmas))).float())
    if again != sigmas:
        raise ScheduleError("the sampler chooses its steps by what the network puts out: they cannot be known before")
    units = tuple(unit(sigma) for sigma in sigmas)
    if not all(math.isfinite(u) and u for u in units):  # the last call of a run at sigma = 0
        units = (1.0,) * len(sigmas)
    found = Response.measured(states.double().numpy())
    if isinstance(found, str):
        return Calls(sigmas, units, None, f"the sampler {found}", adds_noise=bool(states[:, -1].any()))
    return Calls(sigmas, units, found)


def positions(sigmas: Sequence[float], grid: Sequence[float]) -> tuple[float, ...]:
    """Where calls at these noise levels stand on the sampler's grid, in steps; in between by the logarithm of sigma.

    A grid that does not go down all the way has no places to speak of: then the order of the calls has to do.
    """
    levels = np.asarray(grid, dtype=np.float64)
    if len(levels) < 2 or (np.diff(levels) >= 0).any():
        return tuple(float(i) for i in range(len(sigmas)))
    lowest = levels[levels > 0].min() / 2  # stands for zero
    at, grid = (-np.log(np.maximum(values, lowest)) for values in (np.asarray(sigmas, dtype=np.float64), levels))
    return tuple(float(place) for place in np.interp(at, grid, np.arange(len(levels))))


def _recorded(sampler: Sampler, outputs: Tensor) -> tuple[tuple[float, ...], Tensor]:
    """The noise levels that a sampler calls at, and the states after each call, with a row of outputs per call."""
    sigmas: list[float] = []
    states: list[Tensor] = []
    start = torch.zeros(1, 1, 1, outputs.shape[1])  # in the shape of latents

    def answer(x: Tensor, sigma: Tensor) -> Tensor:
        call = len(sigmas)
        if call == MOST_STEPS:
            raise ScheduleError(f"the sampler does not end: it has called its denoiser {MOST_STEPS} times")
        sigmas.append(float(sigma.reshape(-1)[0]))
        states.append(x.reshape(-1))
        return outputs[call].reshape(start.shape) if call < len(outputs) else torch.zeros_like(start)

    final = sampler(start, answer)
    return tuple(sigmas), torch.stack([*states[1:], final.reshape(-1)])
