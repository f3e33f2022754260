"""The description of a run, for planners and for whoever follows their plans."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thg.plans.response import Response

if TYPE_CHECKING:
    from torch import Tensor

    Term = tuple[Tensor, ...]
else:
    Term = tuple  # importing torch takes a second
"""What is predicted: an output that reaches the sampler, or a guidance term; a tensor for each of the network's."""


@dataclass(frozen=True)
class RunInfo:
    """The description of a run when it starts.

    steps: denoiser calls of the run (Heun and PLMS make more calls than the sampler has steps).
    positions: of each call on the fine grid; calls at the same time share a position.
    guidance_scale: w, if known.
    log_snr: of each call, if the scheduler is supported by the core.
    times: the time step of each call, in the scheduler's units.
    network: class and fingerprint of the network, as in a profile.
    response: how the scheduler's states respond to the network's outputs. None: there is no corrector, for the reason
        in `no_response`.
    order: of the scheduler. adds_noise: whether it adds noise at each step.
    clips: whether the scheduler clips what a network that predicts noise or velocity returns: nothing can be predicted.
    explodes: whether the sampler magnifies any error in an output: nothing may be predicted.
    end_log_snr: where the last call's step ends, if that is not the end of the schedule.
    branches: network evaluations per step of the plain run; 2 with classifier-free guidance.
    velocity: if the network predicts the data x0, and their velocity v = (a x - x0) / s leaps in their place: a and s
        at each call. A solver forgets x0 at its next step, the network does not: what a leap has missed can be
        corrected in v only. `response` is that to v.
    noise_response: the response to the noise in the outputs, if they are velocities (v, EDM's): it tells how hard the
        noise levels are, whatever the network predicts. With r times as much noise as data an error in the noise is one
        of 1 / sqrt(1 + r^2) in v, and later steps, which keep v and not the noise, shrink it by as much again; so it is
        1 + r^2 times the response to v.
    """

    steps: int
    positions: tuple[float, ...]
    guidance_scale: float | None = None
    log_snr: tuple[float, ...] | None = None
    times: tuple[float, ...] | None = None
    network: str | None = None
    response: Response | None = None
    no_response: str = "the scheduler is unknown"
    order: int = 1
    adds_noise: bool = False
    clips: bool = False
    explodes: bool = False
    end_log_snr: float | None = None
    branches: int = 2
    velocity: tuple[tuple[float, float], ...] | None = None
    noise_response: Response | None = None

    @classmethod
    def of(cls, steps: int, guidance_scale: float | None = None) -> RunInfo:
        """A run of which only this is known."""
        return cls(steps, tuple(float(i) for i in range(steps)), guidance_scale)

    def part(self, start: int, end: int) -> RunInfo:
        """The calls from `start` to `end` as a separate run: guidance in an interval."""
        if (start, end) == (0, self.steps):
            return self
        return replace(
            self,
            steps=end - start,
            positions=self.positions[start:end],
            log_snr=self.log_snr and self.log_snr[start:end],
            times=self.times and self.times[start:end],
            response=self.response and self.response.part(start, end),
            end_log_snr=self.log_snr[end] if self.log_snr and end < self.steps else self.end_log_snr,
            velocity=self.velocity and self.velocity[start:end],
            noise_response=self.noise_response and self.noise_response.part(start, end),
        )

    def leaping(self, step: int, output: Tensor, state: Tensor) -> Tensor:
        """What leaps instead of a network's output in this state: the output itself, or the data's velocity."""
        if self.velocity is None:
            return output
        a, s = self.velocity[step]
        return (a * state.to(output.dtype) - output) / s

    def landed(self, step: int, leapt: Tensor, state: Tensor) -> Tensor:
        """The output that belongs to what has leapt."""
        if self.velocity is None:
            return leapt
        a, s = self.velocity[step]
        return a * state.to(leapt.dtype) - s * leapt
