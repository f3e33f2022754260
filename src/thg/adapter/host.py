"""A copy of a scheduler with all its tensors on the CPU, fetched with at most one wait."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def host_copy(scheduler: Any, timesteps: Any, first: Any = None) -> tuple[Any, list[Tensor]]:
    """A copy of a scheduler on the CPU, and the time of each call of a run as a tensor without dimensions.

    timesteps: those of the run, which may be a part of the scheduler's own. first: the time of the first call, if the
    pipeline skips the first steps.
    """
    clone = copy.copy(scheduler)
    methods = {name for name in vars(scheduler) if callable(getattr(type(scheduler), name, None))}  # wrapped by others
    own = {name: value for name, value in vars(scheduler).items() if name not in methods}
    state = {name: None if _is_latents(value) else value for name, value in own.items()}
    times = timesteps if isinstance(timesteps, Tensor) else torch.as_tensor([float(t) for t in timesteps])
    times = times.reshape(len(times), -1)[:, 0]
    start = times[:1] if first is None else torch.as_tensor(first).reshape(-1)[:1]
    *values, times, start = _fetch([*state.values(), times, start])
    clone.__dict__ = dict(zip(state, values, strict=True))
    matches = (times == start).nonzero()
    return clone, list(times[int(matches[0]) :] if len(matches) else times)


def _is_latents(value: Any) -> bool:
    """State of an earlier run, which a new run does not use."""
    return isinstance(value, Tensor) and value.ndim > 1


def _own(value: Any) -> Any:
    """A copy: schedulers modify their lists and tensors in place."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return [None if _is_latents(item) else item for item in value] if isinstance(value, list) else value


def _fetch(values: Sequence[Any]) -> list[Any]:
    """Copies on the CPU; tensors on a device are fetched in a single transfer. Integers up to 2^24 stay exact."""
    remote = [value for value in values if _is_remote(value)]
    flat = torch.cat([value.detach().reshape(-1).float() for value in remote]).cpu() if remote else torch.empty(0)
    parts = iter(torch.split(flat, [value.numel() for value in remote]))
    return [next(parts).reshape(value.shape).to(value.dtype) if _is_remote(value) else _own(value) for value in values]


def _is_remote(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"
