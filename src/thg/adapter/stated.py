"""What a pipeline says about a run: in the arguments of its call, and in its own attributes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

_SCALES = ("true_cfg_scale", "true_cfg", "guidance_scale")
LENGTH = "_num_timesteps"  # where pipelines keep the number of steps of their loop
CLOSE = 0.02  # largest difference of a measured scale from the stated one, relative to w - 1


class Stated:
    """The pipeline's own words. Its attributes are read when they are asked for: callbacks may change them."""

    def __init__(self, pipe: Any, arguments: Mapping[str, Any]) -> None:
        self._pipe = pipe
        given = next((arguments[name] for name in _SCALES if arguments.get(name) is not None), None)
        self.scale = float(given) if isinstance(given, int | float) else None
        """The guidance scale, if it is a single number."""

    @property
    def guided(self) -> bool:
        """Is classifier-free guidance on at the moment? False if the pipeline does not say."""
        # a subclass with its own loop may have the property without the attributes that it reads
        decided = getattr(self._pipe, "do_classifier_free_guidance", None)
        if decided is not None:
            return bool(decided)
        return self.scale is not None and self.scale > 1

    @property
    def steps(self) -> int | None:
        """The number of time steps in its loop, which may end before the scheduler's last one."""
        steps = getattr(self._pipe, LENGTH, None)
        return steps if isinstance(steps, int) and steps > 0 else None


def arguments_of(call: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a function's call by name, with its defaults; nothing if they do not fit."""
    try:
        bound = inspect.signature(call).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {}
    bound.apply_defaults()
    return dict(bound.arguments)


def agreed_scale(measured: float, stated: float | None) -> float:
    """w: the stated scale s if it is that, or 1 + s (some formulas are e_c + s (e_c - e_u)); else as measured.

    Rounded, so that a plan does not depend on the rounding of the network's outputs.
    """
    if stated is not None:
        for scale in (stated, 1 + stated):
            if abs(measured - scale) <= CLOSE * max(1.0, abs(measured - 1)):
                return scale
    return round(measured, 1)
