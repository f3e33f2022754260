"""The state of a call: what changes the guided prediction besides time. When it changes, predictions start anew.

The numbers of the guider (its scale, or where it has switched), the active conditions with their ControlNets and hooks,
and patches of other nodes that begin or end at a noise level. What a guider or a patch remembers from one evaluation to
the next is no state: it cannot be predicted.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import numbers
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .guards import functions, leaves

MOST = 0.8  # of the picture
NO_LIMIT = "sigma_data"  # of a noise schedule


def state(guider: Any, model_options: dict[str, Any], sigma: float) -> tuple[Any, ...]:
    conditions = getattr(guider, "conds", {})
    return (
        *((name, value) for name, value in vars(guider).items() if isinstance(value, numbers.Real)),
        *((name, _active(condition, sigma)) for name, condition in conditions.items()),
        *(sigma >= limit for function in functions(model_options) for limit in _limits(function)),
    )


def combines(guider: Any, sigma: float, shape: tuple[int, ...]) -> bool:
    """Are several conditions of one branch averaged over the whole picture, of this shape, at this noise level?

    Each pulls the picture its own way, and a small error decides which of them wins.
    """
    return any(
        sum(_coverage(entry, shape) > MOST for entry in _entries(condition, sigma)) > 1
        for condition in getattr(guider, "conds", {}).values()
    )


def _coverage(entry: dict[str, Any], shape: tuple[int, ...]) -> float:
    """The share of the picture that a condition is for."""
    if (mask := entry.get("mask")) is not None:
        return float((mask > 0).float().mean())
    area = entry.get("area") or ()
    sizes = area[: len(area) // 2]  # positions follow
    return math.prod(sizes) / math.prod(shape[len(shape) - len(sizes) :])


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


def memory(guider: Any, model_options: dict[str, Any], shape: tuple[int, ...]) -> set[tuple[Tensor, int]]:
    """What the guider and other nodes remember: tensors in the shape of the latents, with the number of times that they
    were written."""
    items = leaves(vars(guider), model_options, *map(_variables, functions(model_options)))
    return {(item, item._version) for item in items if isinstance(item, Tensor) and item.shape == shape}


def _variables(function: Any) -> dict[str, Any]:
    """Those that a function closes over, and the attributes of its object."""
    found = dict(getattr(getattr(function, "__self__", function), "__dict__", {}))
    code = getattr(function, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # a variable without a value yet
            found[name] = cell.cell_contents
    return found


def _limits(function: Any) -> Iterator[float]:
    """The noise levels at which a patch begins or ends: variables or attributes with "sigma" in their names."""
    found = _variables(function)
    lists = (value for value in found.values() if isinstance(value, list))
    several = [part for value in lists for part in value if isinstance(part, dict)]  # IPAdapter: one for each picture
    for name, value in itertools.chain.from_iterable(names.items() for names in (found, *several)):
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if is_number and "sigma" in str(name) and name != NO_LIMIT:
            yield float(value)


def _controls(control: Any, sigma: float) -> Iterator[tuple[bool, int]]:
    """For each ControlNet of a chain: is it active, and how many of its keyframes (Advanced-ControlNet) have begun?"""
    while control is not None:
        start, end = getattr(control, "timestep_range", None) or (math.inf, -math.inf)
        yield start >= sigma >= end, _begun(getattr(control, "timestep_keyframes", None), sigma)
        control = getattr(control, "previous_controlnet", None)


def _keyframes(hooks: Any, sigma: float) -> Iterator[int]:
    """For each scheduled hook: how many of its keyframes have begun?"""
    for hook in getattr(hooks, "hooks", ()):
        yield _begun(getattr(hook, "hook_keyframe", None), sigma)


def _begun(group: Any, sigma: float) -> int:
    return sum(frame.start_t >= sigma for frame in getattr(group, "keyframes", ()))
