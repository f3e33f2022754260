"""The identity of the guidance at a call: the active conditions, their ControlNets and hooks, and the context
window."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

Condition = tuple[Any, ...]
"""The entries of a condition that are active at a noise level. If none is, there is nothing to evaluate."""


def identity(condition: list[dict[str, Any]], sigma: float | None) -> Condition:
    """The active entries at this noise level (None: all of them), each with everything that may change during a run."""
    return tuple(
        (entry.get("uuid"), *_controls(entry.get("control"), sigma), *_keyframes(entry.get("hooks"), sigma))
        for entry in condition
        if sigma is None or entry.get("timestep_start", sigma) >= sigma >= entry.get("timestep_end", sigma)
    )


def window(model_options: dict[str, Any]) -> tuple[int, ...] | None:
    """The frames of the current context window."""
    found = model_options.get("transformer_options", {}).get("context_window")
    return None if found is None else tuple(found.index_list)


def _controls(control: Any, sigma: float | None) -> Iterator[bool]:
    """For each ControlNet of a chain: is it active?"""
    while control is not None:
        start, end = getattr(control, "timestep_range", None) or (math.inf, -math.inf)
        yield sigma is None or start >= sigma >= end
        control = getattr(control, "previous_controlnet", None)


def _keyframes(hooks: Any, sigma: float | None) -> Iterator[int]:
    """For each scheduled hook: how many of its keyframes have begun?"""
    for hook in getattr(hooks, "hooks", ()):
        frames = getattr(getattr(hook, "hook_keyframe", None), "keyframes", ())
        yield sum(sigma is None or frame.start_t >= sigma for frame in frames)
