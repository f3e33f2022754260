"""The identity of the guidance at a call: the active conditions, their ControlNets and hooks, the context window, and
the active patches of the network."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from .guards import patches

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


def active_patches(model_options: dict[str, Any], sigma: float) -> tuple[bool, ...]:
    """For each patch inside the network that is limited to a part of the run: is it active?"""
    ranges = (_range(patch) for patch in patches(model_options))
    return tuple(start >= sigma >= end for start, end in filter(None, ranges))


def _range(patch: Any) -> tuple[float, float] | None:
    """The noise levels of a patch. ComfyUI's own patches have them as variables or attributes of these names."""
    if hasattr(patch, "__code__"):
        cells = dict(zip(patch.__code__.co_freevars, patch.__closure__ or (), strict=True))
        found = {name: cells[name].cell_contents for name in ("sigma_start", "sigma_end") if name in cells}
    else:
        found = getattr(patch, "__dict__", {})
    try:
        return float(found["sigma_start"]), float(found["sigma_end"])
    except (KeyError, TypeError):
        return None


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
