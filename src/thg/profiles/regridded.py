"""A profile interpolated to the grid and guidance scale of a run, and how far they are from the measured ones.

It is interpolated over the noise level of each step (over the share of steps if the noise level is unknown), and scaled
by the factor w-1 on the hare.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from thg.ode.solvers import lagrange_weights
from thg.plans.run import RunInfo
from thg.profiles.noise import noise_share, output_weight

if TYPE_CHECKING:
    from thg.profiles.profile import Profile

Array = NDArray[np.float64]

FAR_STEPS = 2.5  # beyond this ratio of step counts, or of w-1, the measurement says little
FAR_SCALE = 2.0
FAR_NOISE = 0.1
CUBIC = 4  # nodes of a cubic interpolation


@dataclass(frozen=True, eq=False)
class Regridded:
    """A profile at the steps of a run.

    places: of the run's steps on the profile's own grid (step index, may be fractional).
    noise: sigma / (alpha + sigma) at the run's steps and at its end. hare_scale: w - 1 of the run.
    """

    profile: Profile
    places: Array
    noise: Array
    positions: Array
    hare_scale: float

    @classmethod
    def of(cls, profile: Profile, run: RunInfo) -> Regridded:
        own = profile.noise[:-1]
        positions = np.asarray(run.positions, dtype=np.float64)
        if run.log_snr is not None:
            noise = noise_share(run.log_snr)
            places = np.interp(-noise, -own, np.arange(profile.steps, dtype=np.float64))
        else:
            places = np.minimum(positions * profile.steps / (positions[-1] + 1), profile.steps - 1)
            noise = np.interp(places, np.arange(profile.steps), own)
        w = profile.about.guidance_scale if run.guidance_scale is None else run.guidance_scale
        end = profile.noise[-1] if run.end_log_snr is None else noise_share(run.end_log_snr)
        return cls(profile, places, np.append(noise, end), positions, w - 1)

    @property
    def steps(self) -> int:
        return len(self.places)

    def error_constants(self) -> tuple[Array, Array]:
        """|c_T| and |c_H| at each step, up to a common factor."""
        measured = np.arange(self.profile.steps - 1)
        tortoise = np.interp(self.places, measured, self.profile.tortoise.mean)
        return tortoise, self.hare_scale * np.interp(self.places, measured, self.profile.hare.mean)

    @cached_property
    def gram(self) -> Array:
        """Inner products of the guidance terms at the run's steps, mean over samples."""
        weights = np.array([_cubic(place, self.profile.steps) for place in self.places])
        return np.asarray(weights @ (self.profile.gram / self.profile.samples) @ weights.T)

    @cached_property
    def gain(self) -> Array:
        """Gain from an error in d at each step to the final latents: (w-1) b_k S_k."""
        kind = self.profile.about.prediction
        response = [
            output_weight(kind, start, end) for start, end in zip(self.noise, self.noise[1:], strict=False)
        ]  # b_k
        return self.hare_scale * np.abs(response) * self.survival()

    def survival(self) -> Array:
        """S_k: the fraction of an error in the state after step k that remains at the end. 1 if it was not measured."""
        measured = self.profile.sensitivity
        if measured is None:
            return np.ones(self.steps)
        with np.errstate(divide="ignore"):
            curve = np.log(np.maximum(measured.mean, 1e-12))
        return np.exp(np.interp(self.places, self.profile.anchors, curve))

    def picked(self, count: int) -> Regridded:
        """At fewer steps of the same run, evenly spread."""
        at = np.linspace(0, self.steps - 1, count)
        noise = np.interp(at, np.arange(self.steps + 1), self.noise)
        return Regridded(
            self.profile,
            np.interp(at, np.arange(self.steps), self.places),
            np.append(noise, self.noise[-1]),
            np.arange(count, dtype=np.float64),
            self.hare_scale,
        )

    def step_at(self, place: float) -> int:
        """The first step of the run at or beyond a step of the profile's own grid."""
        return int(np.searchsorted(self.places, place - 1e-9))


def _cubic(place: float, size: int) -> Array:
    """Weights on the profile's steps that interpolate at a place between them, by a cubic through the nearest four."""
    count = min(CUBIC, size)
    first = min(max(math.floor(place) - count // 2 + 1, 0), size - count)
    nodes = list(range(first, first + count))
    row = np.zeros(size)
    row[nodes] = lagrange_weights([float(n) for n in nodes], place)
    return row


def far_from(profile: Profile, run: RunInfo) -> str:
    """How a run is too different from the measured one, in words; empty if it is not."""
    distinct = len(set(run.positions))
    w = profile.about.guidance_scale if run.guidance_scale is None else run.guidance_scale
    places = Regridded.of(profile, run).places
    measured = float(places.max() - places.min()) + 1  # steps between the same noise levels
    steps, scale = distinct / measured, (w - 1) / (profile.about.guidance_scale - 1)
    far = []
    if not 1 / FAR_STEPS <= steps <= FAR_STEPS:
        far.append(f"{distinct} steps against {measured:.0f}")
    if not 1 / FAR_SCALE <= scale <= FAR_SCALE:
        far.append(f"guidance_scale {w:g} against {profile.about.guidance_scale:g}")
    if run.log_snr is not None:
        noise, own = noise_share(run.log_snr), profile.noise[:-1]
        if noise.max() > own.max() + FAR_NOISE or noise.min() < own.min() - FAR_NOISE:
            far.append("noise levels outside the measured range")
    return "; ".join(far)
