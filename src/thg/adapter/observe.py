"""Watches `scheduler.step` in a run: a step is what happens between two of its calls.

Nothing is changed: every call is passed on, and the schedulers are restored after the run.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

NOISE_ARGUMENTS = ("eta", "s_churn")  # of a scheduler's `step`

Stepped = Callable[[dict[str, Any], Tensor], None]  # called with the arguments of a step and its input, before it


class StepWatch:
    """Replaces a scheduler's `step`, with the same signature, and reports its arguments."""

    def __init__(self, scheduler: Any, stepped: Stepped) -> None:
        self._scheduler, self._step, self._stepped = scheduler, scheduler.step, stepped
        functools.update_wrapper(self, type(scheduler).step)
        self.__signature__ = inspect.signature(self._step)
        self._names = tuple(self.__signature__.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        passed = arguments.get(self._names[0])
        if isinstance(passed, Tensor):
            self._stepped(arguments, passed)
        return self._step(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the scheduler, as some pipelines make in each call, is not watched."""
        copied = memo.get(id(self._scheduler), self._scheduler)
        return types.MethodType(type(copied).step, copied)


@contextmanager
def watched(pipe: Any, stepped: Stepped) -> Iterator[None]:
    """Reports the steps of the pipeline's schedulers within a block; they are restored afterwards."""
    schedulers = [part for part in vars(pipe).values() if hasattr(part, "step") and hasattr(part, "set_timesteps")]
    before = [vars(scheduler).get("step") for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.step = StepWatch(scheduler, stepped)
    try:
        yield
    finally:
        for scheduler, step in zip(schedulers, before, strict=True):
            if step is not None:
                scheduler.step = step
            else:
                vars(scheduler).pop("step", None)
