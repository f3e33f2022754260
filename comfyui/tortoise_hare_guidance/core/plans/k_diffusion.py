# A copy of src/thg/plans/k_diffusion.py, made by comfyui/make_core.py: change it there.
"""Samplers in the style of k-diffusion: functions that call a denoiser and expect denoised latents.

How often such a sampler calls its denoiser, at which noise levels and with which effect on its states is not declared
anywhere. Executed on a few numbers in place of latents, with probe values in place of network outputs, it reveals all
three within milliseconds (`trace`).

Denoised latents (x0), and the difference of two of them, shrink with the noise level for any network; in the space of
the network's outputs (noise, velocity) they are smooth, and predictions 3 to 10 dB better. `DenoisedLeaps` and
`DenoisedGuide` predict there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ScheduleError
from ..plans.guide import Guide, HareGuide
from ..plans.leaps import Leaps
from ..plans.plan import MOST_STEPS, Plan
from ..plans.run import Response, RunInfo, probe

Answer = Callable[[Tensor, Tensor], Tensor]
"""answer(x, sigma): the network's output for a call of the denoiser, in the shape of the state x."""

Sampler = Callable[[Tensor, Answer], Tensor]
"""sampler(start, answer): the final state of a run from `start`, with `answer` in place of the network."""


@dataclass(frozen=True)
class Calls:
    """The denoiser calls of a run.

    sigmas: the noise level of each call.
    units: d(denoised latents) / d(network output) at each call.
    response: of the states to the network's outputs; None if the sampler is not linear or adds noise, with the reason
        in `no_response`.
    """

    sigmas: tuple[float, ...]
    units: tuple[float, ...]
    response: Response | None = None
    no_response: str = "the sampler is unknown"
    adds_noise: bool = False

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
            order=2 if self.response is not None and self.response.has_memory() else 1,
            adds_noise=self.adds_noise,
        )


def trace(sampler: Sampler, unit: Callable[[float], float]) -> Calls:
    """The calls of a sampler.

    unit(sigma): d(denoised latents) / d(network output) at this noise level (-sigma for a network that predicts the
        noise, or the velocity of a flow).

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
        return Calls(sigmas, units, response)
    return Calls(sigmas, units, None, f"the sampler {response}", adds_noise=bool(states[:, -1].any()))


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
        states.append(x.reshape(-1))
        return outputs[call].reshape(start.shape) if call < len(outputs) else torch.zeros_like(start)

    final = sampler(start, answer)
    return tuple(sigmas), torch.stack([*states[1:], final.reshape(-1)])


class DenoisedLeaps:
    """The denoised latents at each call of a run in which the whole network leaps."""

    def __init__(self, leaps: Leaps, units: Sequence[float]) -> None:
        self._leaps, self._units = leaps, units

    @property
    def plan(self) -> Plan:
        return self._leaps.plan

    def evaluates(self, call: int) -> bool:
        """Must the denoiser run at this call?"""
        return self._leaps.evaluates(call)

    def observe(self, call: int, x: Tensor, denoised: Tensor) -> Tensor:
        """The denoised latents to use after the denoiser has run at the state x."""
        output = ((denoised - x) / self._units[call],)
        used = self._leaps.observe(call, output)
        return denoised if used is output else (x + self._units[call] * used[0]).to(denoised.dtype)

    def predict(self, call: int, x: Tensor) -> Tensor:
        """The denoised latents to use at the state x if the denoiser does not run."""
        return (x + self._units[call] * self._leaps.predict(call)[0]).to(x.dtype)

    def forget(self) -> None:
        """Starts anew: the conditions have changed."""
        self._leaps.forget()

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of the plain run, per row."""
        return self._leaps.estimated_error(final)

    def doubt(self) -> str:
        """Why the result may be wrong; empty if nothing says so."""
        return self._leaps.doubt()


class DenoisedGuide:
    """Provides a denoiser's unconditional output at each call, with the help of a guide."""

    def __init__(self, guide: Guide, units: Sequence[float]) -> None:
        self.guide = guide
        self._units = units

    @property
    def plan(self) -> Plan | None:
        return self.guide.plan

    def evaluates(self, call: int) -> bool:
        """Must the unconditional branch run at this call?"""
        return self.guide.evaluates(call)

    def observe(self, call: int, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """The unconditional output to use after both branches have run."""
        unit = self._units[call]
        used = self.guide.observe(call, (conditional,), ((conditional - unconditional) / unit,))
        return unconditional if used is None else conditional - unit * used[0]

    def predict(self, call: int, conditional: Tensor) -> Tensor:
        """The unconditional output to use after the conditional branch alone has run."""
        term = self.guide.predict(call, (conditional,))
        return conditional if term is None else conditional - self._units[call] * term[0]

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of plain guidance, per row; None if it cannot be estimated."""
        return self.guide.estimated_error(final) if isinstance(self.guide, HareGuide) else None
