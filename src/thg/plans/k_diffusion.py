"""Samplers in the style of k-diffusion: functions that call a denoiser and expect denoised latents.

How often such a sampler calls its denoiser, at which noise levels and with which effect on its states is not declared
anywhere. Executed on a few numbers in place of latents, with probe values in place of network outputs, it reveals all
three within milliseconds (`trace`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thg.errors import ScheduleError
from thg.plans.plan import MOST_STEPS
from thg.plans.response import Response, probe
from thg.plans.run_info import RunInfo

Answer = Callable[[Tensor, Tensor], Tensor]
"""answer(x, sigma): the network's output for a call of the denoiser, in the shape of the state x."""

Sampler = Callable[[Tensor, Answer], Tensor]
"""sampler(start, answer): the final state of a run from `start`, with `answer` in place of the network."""

EXPLODES = 2.0  # share of the errors in outputs that is left of them, from which on they grow; see `errors_left`
SAME = 1e-3  # relative difference up to which two noise levels are the same
PULL = 1.5  # of a network with guidance, over that of data at a single point
CLEAN = 0.003  # noise level over the signal's, from which on the prompts agree and guidance adds no pull


@dataclass(frozen=True)
class Calls:
    """The denoiser calls of a run.

    sigmas: the noise level of each call.
    units: d(denoised latents) / d(network output) at each call.
    response: of the states to the network's outputs; None if the sampler is not linear or adds noise, with the reason
        in `no_response`.
    explodes: whether the sampler magnifies errors in the outputs.
    """

    sigmas: tuple[float, ...]
    units: tuple[float, ...]
    response: Response | None = None
    no_response: str = "the sampler is unknown"
    adds_noise: bool = False
    explodes: bool = False

    def run(
        self, grid: Sequence[float], guidance_scale: float | None = None, log_snr: Iterable[float] | None = None
    ) -> RunInfo:
        """The same as a `RunInfo`, for guides.

        grid: the noise levels passed to the sampler, from high to low. log_snr: of each call, if known.
        """
        return RunInfo(
            steps=len(self.sigmas),
            positions=positions(self.sigmas, grid),
            guidance_scale=guidance_scale,
            log_snr=None if log_snr is None else tuple(log_snr),
            times=self.sigmas,
            response=self.response,
            no_response=self.no_response,
            order=1 if self.response is None else self.response.order(),
            adds_noise=self.adds_noise,
            explodes=self.explodes,
            noise_response=self._noise_response(),
        )

    def _noise_response(self) -> Response | None:
        """See `RunInfo`; the same as the response to noise or to the velocity of a flow."""
        if self.response is None or not _keep_noise(self.sigmas, self.units):
            return None
        return self.response.times(np.square(np.divide(self.sigmas, self.units)))


def trace(sampler: Sampler, unit: Callable[[float], float], *, part: bool = False) -> Calls:
    """The calls of a sampler.

    unit(sigma): d(denoised latents) / d(network output) at this noise level (-sigma for a network that predicts the
        noise, or the velocity of a flow).
    part: the outputs are a part of what the sampler gets from the network; alone they do not tell whether it explodes.

    Raises `ScheduleError` for a sampler that chooses its steps from the network's outputs.
    """
    sigmas, _ = _recorded(sampler, torch.zeros(1, 1))
    outputs = torch.from_numpy(probe(len(sigmas))).float()
    again, states = _recorded(sampler, outputs)
    if again != sigmas:
        raise ScheduleError("the sampler chooses its steps from the network's outputs: they cannot be known in advance")
    units = tuple(unit(sigma) for sigma in sigmas)
    if not all(math.isfinite(u) and u for u in units):  # the last call of a run at sigma = 0
        units = (1.0,) * len(sigmas)
    response = Response.measured(states.double().numpy())
    if isinstance(response, Response):
        if part or errors_left(response, sigmas, units) < EXPLODES:
            return Calls(sigmas, units, response)
        return Calls(sigmas, units, None, "the sampler magnifies errors; a lower order does not", explodes=True)
    return Calls(sigmas, units, None, f"the sampler {response}", adds_noise=bool(states[:, -1].any()))


def errors_left(response: Response, sigmas: Sequence[float], units: Sequence[float]) -> float:
    """How much of errors in the outputs a sampler leaves at the end, as a share of what it adds up without a network.

    A network carries states back to the data, and its pull is known for data at a single point: the noise in a state x
    is x / sigma. Sound samplers leave less than 1.7, and linear multistep methods of order 6 or 8 more than 2.1 from 20
    steps on (docs/log.md): their steps are too long for their small regions of stability.
    """
    sigma, unit = np.array(sigmas), np.array(units)
    if not _keep_noise(sigmas, units):
        return 0.0
    # denoised = skip x + unit output = x - sigma noise; skip = (unit / sigma)^2 for v and EDM, 1 for noise and flows
    no_noise = (1 - (unit / sigma) ** 2) / unit  # the output for a state in which no noise is seen, over the state
    weights = sigma / np.abs(unit)  # from errors in the noise to errors in the output
    pull = (1 + (PULL - 1) * sigma**2 / (sigma**2 + CLEAN**2)) / unit
    left, added = (np.abs(response.with_feedback(gains)[-1] * weights).sum() for gains in (no_noise - pull, no_noise))
    return float(left / added) if added > 0 else 0.0


def _keep_noise(sigmas: Sequence[float], units: Sequence[float]) -> bool:
    """Do the outputs hold noise at each call? Else data are predicted as they are, or there is no noise."""
    return bool((np.abs(units) <= (1 + SAME) * np.array(sigmas)).all())


def positions(sigmas: Sequence[float], grid: Sequence[float]) -> tuple[float, ...]:
    """The positions of these noise levels on the sampler's grid, in steps, interpolated in log sigma.

    If the grid is not strictly decreasing, the positions are the indices of the calls.
    """
    levels = np.asarray(grid, dtype=np.float64)
    if len(levels) < 2 or (np.diff(levels) >= 0).any():
        return tuple(float(i) for i in range(len(sigmas)))
    lowest = levels[levels > 0].min() / 2  # in place of zero
    at, grid = (-np.log(np.maximum(values, lowest)) for values in (np.asarray(sigmas, dtype=np.float64), levels))
    return tuple(float(position) for position in np.interp(at, grid, np.arange(len(levels))))


def _recorded(sampler: Sampler, outputs: Tensor) -> tuple[tuple[float, ...], Tensor]:
    """The noise level of each call and the state after it, for a sampler that gets one row of `outputs` per call."""
    sigmas: list[float] = []
    states: list[Tensor] = []
    start = torch.zeros(1, 1, 1, outputs.shape[1])  # in the shape of latents

    def answer(x: Tensor, sigma: Tensor) -> Tensor:
        call = len(sigmas)
        if call == MOST_STEPS:
            raise ScheduleError(f"the sampler does not terminate: it called its denoiser {MOST_STEPS} times")
        sigmas.append(float(sigma.reshape(-1)[0]))
        states.append(x.flatten().clone())  # samplers may write into their states
        return outputs[call].reshape(start.shape) if call < len(outputs) else torch.zeros_like(start)

    final = sampler(start, answer)
    return tuple(sigmas), torch.stack([*states[1:], final.reshape(-1)])
