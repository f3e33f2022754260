"""What the page shows: outputs as files in base64 (PNG, WAV, frames), and previews of a run in progress."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.errors import THGError
from thg.media import Array, Output, png_bytes, wav_bytes
from thg.ode.schedule import Schedule
from thg.ode.schedulers import read_schedule
from thg.plots.pictures import spectrogram

PREVIEW_SHARE = 0.25  # previews may take this share of the time
PREVIEW_SECONDS = 0.04  # seconds between two of them
PREVIEW_SIDE = 384  # pixels


def for_page(output: Output, how: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
    """One entry per seed, with its files in base64. how: of each picture, for its metadata."""
    if output.kind == "image":
        pictures = zip(output.items, how, strict=True)
        return [{"kind": "image", "files": [png(item, about)]} for item, about in pictures]
    if output.kind == "audio":
        return [
            {"kind": "audio", "files": [wav(item, output.rate)], "spectrogram": _spectrogram(item, output.rate)}
            for item in output.items
        ]
    return [{"kind": "video", "rate": output.rate, "files": [png(frame) for frame in item]} for item in output.items]


def decibels(output: Output, reference: Output) -> list[float | None]:
    """For each seed; None if both are identical."""
    return [value if math.isfinite(value) else None for value in output.decibels(reference)]


def png(pixels: Array, how: Mapping[str, object] | None = None) -> str:
    """An array of height x width (x channels) in [0, 1] as a PNG in base64."""
    return base64.b64encode(png_bytes(pixels, compress_level=3, how=how)).decode()


def wav(samples: Array, rate: int) -> str:
    """Samples (channels x time, or time) in [-1, 1] as a WAV in base64."""
    return base64.b64encode(wav_bytes(samples, rate)).decode()


def _spectrogram(samples: Array, rate: int) -> str:
    """Relative to the loudest sample, as a PNG in base64."""
    peak = max(float(np.abs(samples).max()), 1e-9)
    return png(np.asarray(spectrogram(samples / peak, rate), dtype=np.float64) / 255)


class Previews:
    """Makes the previews of one run in progress, as often as their cost allows.

    The state of a run is noisy to the end, but two consecutive states determine more: on a first-order step
    x = alpha x0 + sigma eps holds at both ends with the same x0 and eps, so x0 follows without running the network. It
    is decoded and shown.
    """

    def __init__(self, pipe: Any, calls: int) -> None:
        """calls: network calls of the run; those of one that starts from a picture are the last of the schedule."""
        self.pipe = pipe
        self.calls = calls
        self.seconds = 0.0  # spent here in total
        self._last: Tensor | None = None
        self._schedule: Schedule | None = None
        self._next = 0.0

    @torch.no_grad()
    def after(self, step: int, latents: Any) -> list[str] | None:
        """One PNG per seed, or None if there is nothing to show (yet)."""
        before, self._last = self._last, latents if isinstance(latents, Tensor) and latents.ndim == 4 else None
        started = time.perf_counter()
        if before is None or self._last is None or started < self._next:
            return None
        pictures = self._pictures(self._heading_for(step, before, self._last))
        cost = time.perf_counter() - started
        self.seconds += cost
        self._next = time.perf_counter() + max(PREVIEW_SECONDS, cost * (1 / PREVIEW_SHARE - 1))
        return pictures

    def _heading_for(self, step: int, before: Tensor, after: Tensor) -> Tensor:
        if self._schedule is None:
            try:
                self._schedule = read_schedule(self.pipe.scheduler)
            except THGError:  # a scheduler that the core cannot read: show the state as it is
                return after
        alpha, sigma = self._schedule.alpha, self._schedule.sigma
        if len(self.pipe.scheduler.timesteps) != self._schedule.steps:  # more calls than steps
            return after
        step += self._schedule.steps - self.calls
        determinant = sigma[step] * alpha[step + 1] - sigma[step + 1] * alpha[step]
        if abs(determinant) < 1e-6:
            return after
        weights = float(sigma[step] / determinant), float(sigma[step + 1] / determinant)
        return after.float() * weights[0] - before.float() * weights[1]

    def _pictures(self, latents: Tensor) -> list[str] | None:
        vae = getattr(self.pipe, "vae", None)
        if vae is None:
            pixels = latents if latents.shape[1] in (1, 3) else None
        elif latents.shape[1] == vae.config.get("latent_channels"):
            shift = vae.config.get("shift_factor") or 0.0
            scaled = latents / vae.config.get("scaling_factor", 1.0) + shift
            pixels = vae.decode(scaled.to(vae.dtype)).sample
        else:
            pixels = None
        if pixels is None or not torch.isfinite(pixels).all():
            return None
        stride = max(1, -(-max(pixels.shape[-2:]) // PREVIEW_SIDE))
        pixels = pixels[..., ::stride, ::stride].float().cpu() / 2 + 0.5
        return [png(np.asarray(picture.permute(1, 2, 0), dtype=np.float64)) for picture in pixels]
