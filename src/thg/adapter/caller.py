"""The state of a pipeline's running call.

Many pipelines keep the decision for guidance, their time steps and the current step in local variables. These are read
from the pipeline's frames on the call stack.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

from torch import Tensor

NOISE_ARGUMENTS = ("eta", "s_churn")  # of a scheduler's `step`


class Caller:
    """The frames of a running pipeline, innermost first. It holds frames: do not keep it longer than the call."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        self._variables = [frame.f_locals for frame in _frames_of(pipe, sys._getframe(1))]

    def local(self, *names: str) -> Any:
        """The value of the first of these local variables that one of the pipeline's frames has, or None."""
        for variables in self._variables:
            for name in names:
                value = variables.get(name)
                if value is not None:
                    return value
        return None

    @functools.cached_property
    def guidance_is_on(self) -> bool | None:
        """Is classifier-free guidance on at the moment? None if the pipeline does not say.

        Waits for the device if the guidance scale is a tensor on it.
        """
        applies = self.local("apply_cfg")  # guidance within an interval of the time steps
        if applies is not None:
            return bool(applies)
        # a subclass with its own loop may have the property without the attributes that it reads
        decided = getattr(self.pipe, "do_classifier_free_guidance", None)
        if decided is None:
            decided = self.local("do_classifier_free_guidance", "do_cfg")
        if decided is not None:
            return bool(decided)
        scale = self.local("guidance_scale")
        return None if scale is None else bool(scale > 1.0)

    def guidance_scale(self) -> float | None:
        """w, if it is a single number."""
        scale = self.local("true_cfg_scale", "true_cfg")
        if scale is None:
            scale = getattr(self.pipe, "_guidance_scale", None)
        if scale is None:
            scale = self.local("guidance_scale")
        return float(scale) if isinstance(scale, int | float) else None

    def noise_argument(self) -> str:
        """The argument by which this call makes its scheduler add noise; empty if none."""
        given = self.local("extra_step_kwargs")
        return next((name for name in NOISE_ARGUMENTS if isinstance(given, dict) and given.get(name)), "")

    def timesteps(self) -> Any:
        """The time steps of the pipeline's loop, or None before they are set."""
        return self.local("step_matrix", "timesteps", "timesteps_tensor", "prior_timesteps_tensor")

    def loop_time(self) -> Any:
        """The loop variable of the pipeline's loop over the time steps: another object at each step."""
        time = self.local("t")
        return time if isinstance(time, Tensor | float | int) else None


def _frames_of(pipe: Any, frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of a pipeline's methods, from the innermost to its `__call__`."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self" and frame.f_locals.get("self") is pipe:
            yield frame
            if code.co_name == "__call__":
                return
        frame = frame.f_back
