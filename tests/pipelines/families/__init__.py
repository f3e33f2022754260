"""Tiny pipelines of the families that thg supports, built by code and offline: `FAMILIES[name]()` is a `Case`."""

from __future__ import annotations

from collections.abc import Callable

from tests.pipelines.families import pictures, sound, stable_diffusion, video
from tests.pipelines.families.case import GUIDANCE, STEPS, Broken, Case, Rows

FAMILIES: dict[str, Callable[[], Case]] = {
    **stable_diffusion.FAMILIES,
    **pictures.FAMILIES,
    **video.FAMILIES,
    **sound.FAMILIES,
}

__all__ = ["FAMILIES", "GUIDANCE", "STEPS", "Broken", "Case", "Rows"]
