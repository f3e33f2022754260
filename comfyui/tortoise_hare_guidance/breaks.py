"""The state of a call: what changes the guided prediction besides time. When it changes, predictions start anew.

The guidance scale, the active conditions with their ControlNets and hooks, and the patches of other nodes that begin or
end at a noise level.
"""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Iterator
from typing import Any

from .guards import functions


def state(guider: Any, model_options: dict[str, Any], sigma: float) -> tuple[Any, ...]:
    conditions = getattr(guider, "conds", {})
    return (
        getattr(guider, "cfg", None),
        *((name, _active(condition, sigma)) for name, condition in conditions.items()),
        *(sigma >= limit for function in functions(model_options) for limit in _limits(function)),
    )


def combines(guider: Any, sigma: float) -> bool:
    """Are several conditions of one branch averaged over the whole picture at this noise level?

    Each pulls the picture its own way, and a small error decides which of them wins.
    """
    return any(
        sum("area" not in entry and "mask" not in entry for entry in _entries(condition, sigma)) > 1
        for condition in getattr(guider, "conds", {}).values()
    )


def _active(condition: list[dict[str, Any]], sigma: float) -> tuple[Any, ...]:
    """The active entries of a condition, each with everything that may change."""
    return tuple(
        (entry.get("uuid"), *_controls(entry.get("control"), sigma), *_keyframes(entry.get("hooks"), sigma))
        for entry in _entries(condition, sigma)
    )


def _entries(condition: list[dict[str, Any]], sigma: float) -> Iterator[dict[str, Any]]:
    """Those that are active at this noise level."""
    for entry in condition:
        if entry.get("timestep_start", sigma) >= sigma >= entry.get("timestep_end", sigma):
            yield entry


def _limits(function: Any) -> Iterator[float]:
    """The noise levels at which a patch begins or ends: variables or attributes with "sigma" in their names."""
    found = dict(getattr(getattr(function, "__self__", function), "__dict__", {}))
    code = getattr(function, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable without a value yet
            found[name] = cell.cell_contents
    for name, value in found.items():
        if "sigma" in name and isinstance(value, numbers.Real) and not isinstance(value, bool):
            yield float(value)


def _controls(control: Any, sigma: float) -> Iterator[bool]:
    """For each ControlNet of a chain: is it active?"""
    while control is not None:
        start, end = getattr(control, "timestep_range", None) or (math.inf, -math.inf)
        yield start >= sigma >= end
        control = getattr(control, "previous_controlnet", None)


def _keyframes(hooks: Any, sigma: float) -> Iterator[int]:
    """For each scheduled hook: how many of its keyframes have begun?"""
    for hook in getattr(hooks, "hooks", ()):
        frames = getattr(getattr(hook, "hook_keyframe", None), "keyframes", ())
        yield sum(frame.start_t >= sigma for frame in frames)
