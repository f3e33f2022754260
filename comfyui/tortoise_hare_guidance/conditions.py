"""What makes guidance at one call the same thing as at the call before: which conditions are in force, and on what."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

Condition = tuple[Any, ...]
"""The entries of a condition that are in force at a noise level. None in force: nothing to evaluate."""


def identity(condition: list[dict[str, Any]], sigma: float | None) -> Condition:
    """The entries in force at this noise level (None: all of them), each with what may change during a run."""
    return tuple(
        (entry.get("uuid"), *_controls(entry.get("control"), sigma), *_keyframes(entry.get("hooks"), sigma))
        for entry in condition
        if sigma is None or entry.get("timestep_start", sigma) >= sigma >= entry.get("timestep_end", sigma)
    )


def window(model_options: dict[str, Any]) -> tuple[int, ...] | None:
    """The frames of the context window under way."""
    found = model_options.get("transformer_options", {}).get("context_window")
    return None if found is None else tuple(found.index_list)


def _controls(control: Any, sigma: float | None) -> Iterator[bool]:
    """For each ControlNet of a chain: is it in force?"""
    while control is not None:
        start, end = getattr(control, "timestep_range", None) or (math.inf, -math.inf)
        yield sigma is None or start >= sigma >= end
        control = getattr(control, "previous_controlnet", None)


def _keyframes(hooks: Any, sigma: float | None) -> Iterator[int]:
    """For each scheduled hook: how many of its keyframes have begun?"""
    for hook in getattr(hooks, "hooks", ()):
        frames = getattr(getattr(hook, "hook_keyframe", None), "keyframes", ())
        yield sum(sigma is None or frame.start_t >= sigma for frame in frames)
