"""What is calibrated: a pipeline or a denoiser that runs plain CFG with a guide that measures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from thg.calibration.grid import NoiseGrid
from thg.errors import ProfileError
from thg.plans.guide import GuideMaker
from thg.plans.run import RunInfo


class Subject(Protocol):
    """What is calibrated.

    samples: how many there are. guided: the first step with guidance, and the first one after it without.
    """

    @property
    def steps(self) -> int: ...

    @property
    def guidance_scale(self) -> float: ...

    @property
    def samples(self) -> int: ...

    @property
    def guided(self) -> tuple[int, int]: ...

    def run(self, samples: Sequence[int], maker: GuideMaker) -> None:
        """One run of these samples with the guide that `maker` makes."""

    def grid(self, run: RunInfo) -> NoiseGrid: ...

    def settings(self) -> dict[str, Any]:
        """All that the measured rows depend on."""

    def about(self) -> dict[str, str]:
        """The names in a profile: pipeline, network, model, scheduler."""

    def quiet(self) -> AbstractContextManager[None]:
        """Disables its own progress bars."""


def checked_scale(scale: Any) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale) or scale <= 1:
        raise ProfileError(f"guidance_scale must be above 1, not {scale!r}: there is no guidance to measure")
    return float(scale)
