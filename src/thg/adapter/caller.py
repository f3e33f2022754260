"""Which pipeline is calling, and what it has decided in this call.

Two pipelines may share a network and a scheduler (img2img made from the components of txt2img), and many pipelines keep
the decision for guidance and the time steps that they run in local variables. Both are read off the call stack: the
frames that belong to the pipeline tell who calls and with what.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from thg.errors import UnsupportedPipelineError

NOISE_ARGUMENTS = ("eta", "s_churn")  # of a scheduler's `step`


class Caller:
    """The frames of a running pipeline, innermost first. Holds frames: keep it no longer than the call."""

    def __init__(self, pipe: Any, frames: list[FrameType]) -> None:
        self.pipe = pipe
        self._frames = frames

    def local(self, *names: str) -> Any:
        """The value of the first of these local variables that one of the pipeline's frames has, or None."""
        for frame in self._frames:
            variables = frame.f_locals
            for name in names:
                value = variables.get(name)
                if value is not None:
                    return value
        return None

    def guidance_is_on(self) -> bool:
        """Has the pipeline decided for classifier-free guidance, as of now?"""
        applies = self.local("apply_cfg")  # guidance within an interval of the time steps
        if applies is not None:
            return bool(applies)
        if hasattr(type(self.pipe), "do_classifier_free_guidance"):
            return bool(self.pipe.do_classifier_free_guidance)
        decided = self.local("do_classifier_free_guidance", "do_cfg")
        if decided is not None:
            return bool(decided)
        scale = self.local("guidance_scale")
        if scale is not None:
            return bool(scale > 1.0)
        raise UnsupportedPipelineError(
            f"thg cannot tell whether this call of {type(self.pipe).__name__} uses guidance: it has neither the "
            "property do_classifier_free_guidance nor a variable of that name"
        )

    def noise_argument(self) -> str:
        """The argument by which this call makes its scheduler add noise, or nothing."""
        given = self.local("extra_step_kwargs")
        return next((name for name in NOISE_ARGUMENTS if isinstance(given, dict) and given.get(name)), "")

    def guidance_scale(self) -> float | None:
        """w, where it is one number."""
        scale = self.local("true_cfg_scale")
        if scale is None:
            scale = getattr(self.pipe, "_guidance_scale", None)
        if scale is None:
            scale = self.local("guidance_scale")
        return float(scale) if isinstance(scale, int | float) else None

    def timesteps(self) -> Any:
        """What the pipeline's loop runs over, or None where it has not got that far."""
        return self.local("timesteps", "timesteps_tensor", "prior_timesteps_tensor")


def find(pipes: Iterable[Any]) -> Caller | None:
    """The innermost of these pipelines that is running in this thread, or None."""
    candidates = [pipe for pipe in pipes if pipe is not None]
    return _find(_outwards(sys._getframe(1)), candidates)


def is_running(pipe: Any, thread: int) -> bool:
    """Is this pipeline being called in that thread right now?"""
    return _find(_outwards(sys._current_frames().get(thread)), [pipe]) is not None


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _find(frames: Iterator[FrameType], pipes: list[Any]) -> Caller | None:
    found: Any = None
    belonging: list[FrameType] = []
    for frame in frames:
        code = frame.f_code
        if not code.co_varnames or code.co_varnames[0] != "self" or code.co_argcount == 0:
            continue
        owner = frame.f_locals.get("self")
        if found is None:
            found = next((pipe for pipe in pipes if pipe is owner), None)
        if found is not None and owner is found:
            belonging.append(frame)
            if code.co_name == "__call__":
                break
    return Caller(found, belonging) if found is not None else None
