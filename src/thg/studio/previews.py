"""Previews of a run in progress.

The state of a run is noisy to the end, but two consecutive states determine more: on a first-order step
x = alpha x0 + sigma eps holds at both ends with the same x0 and eps, so x0 follows without running the network. It is
decoded and shown.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.errors import THGError
from thg.ode.diffusers_schedule import read_schedule
from thg.ode.schedule import Schedule
from thg.studio.media import png

SHARE = 0.25  # previews may take this share of the time
QUICKEST = 0.04  # seconds between two of them
MAX_SIDE = 384  # pixels


class Previews:
    """Makes the previews of one run, as often as their cost allows."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
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
        self._next = time.perf_counter() + max(QUICKEST, cost * (1 / SHARE - 1))
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
        stride = max(1, -(-max(pixels.shape[-2:]) // MAX_SIDE))
        pixels = pixels[..., ::stride, ::stride].float().cpu() / 2 + 0.5
        return [png(np.asarray(picture.permute(1, 2, 0), dtype=np.float64)) for picture in pixels]
