"""Checks that the steps of a pipeline are those of its scheduler, one after the other.

A loop may skip some of the scheduler's time steps, or go back. Calls are assigned to steps by their number, so a plan
would then be followed at the wrong times.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DETOUR = 1.1  # longest way through the times, relative to their span: some schedulers round times to both sides


class Schedule:
    """The times of a run's calls. Never waits for a device: a time on a device is identified by its place in memory."""

    def __init__(self, times: Sequence[float], timesteps: Any) -> None:
        """timesteps: the tensor that the pipeline's loop takes its times from."""
        self._times, self._timesteps = times, timesteps
        self._first: float | None = None  # the time of the first call, or its place; None if it is not recognised

    def left_at(self, step: int, time: Any) -> bool:
        """Is the call of this step at another time than the schedule's? False if that cannot be told.

        Also at the first step of a schedule that itself goes back in time, to repeat steps.
        """
        if step == 0 and self._goes_back():
            return True
        if _on_host(time):
            found = float(time.reshape(-1)[0] if isinstance(time, Tensor) and time.ndim else time)
            known, expected = found == self._times[step], self._times[step]
        elif (place := _place(time, self._timesteps)) is not None:
            found, known, expected = place, True, (self._first or 0.0) + step
        else:
            return False
        if step == 0:
            self._first = found if known else None
        return step > 0 and self._first is not None and found != expected

    def _goes_back(self) -> bool:
        way = sum(abs(later - earlier) for earlier, later in itertools.pairwise(self._times))
        return way > DETOUR * abs(self._times[-1] - self._times[0])


def _on_host(time: Any) -> bool:
    """Can the time be read without a wait, with full precision?"""
    if isinstance(time, Tensor):
        exact = not time.is_floating_point() or torch.finfo(time.dtype).bits >= 32
        return time.device.type == "cpu" and time.numel() > 0 and exact
    return isinstance(time, int | float)


def _place(time: Any, timesteps: Any) -> float | None:
    """The index of a time in the tensor that it is a part of."""
    if not isinstance(time, Tensor) or not isinstance(timesteps, Tensor) or time.ndim or timesteps.ndim != 1:
        return None
    if time.untyped_storage()._cdata != timesteps.untyped_storage()._cdata:  # not views of one tensor
        return None
    return (time.storage_offset() - timesteps.storage_offset()) / max(1, timesteps.stride(0))
