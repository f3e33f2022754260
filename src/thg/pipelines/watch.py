"""Watches `scheduler.step` in a run: a step is what happens between two of its calls. Restored after the run."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from thg.plans.response import ADDS_NOISE

NOISE_ARGUMENTS = ("eta", "s_churn")  # of `scheduler.step`: above 0, it adds noise


def obstacle_in(arguments: Mapping[str, Any]) -> str:
    """Why the arguments of `scheduler.step` make its response useless, if they do."""
    noise = next((name for name in NOISE_ARGUMENTS if arguments.get(name)), "")
    return f"the scheduler {ADDS_NOISE} at every step ({noise} above 0)" if noise else ""


Replace = Callable[[Any, Tensor, dict[str, Any]], Tensor]
"""replace(scheduler, output, arguments): the output that the scheduler gets in place of this one."""


class StepWatch:
    """Replaces a scheduler's `step`, with the same signature, within a run of a pipeline."""

    def __init__(self, scheduler: Any, step: Callable[..., Any], replace: Replace) -> None:
        self._scheduler, self._step, self._replace = scheduler, step, replace
        functools.update_wrapper(self, type(scheduler).step)
        self.__signature__ = inspect.signature(step)
        self._names = tuple(self.__signature__.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self._names, args, strict=False)) | kwargs
        output = arguments.pop(self._names[0], None)
        if not isinstance(output, Tensor):
            return self._step(*args, **kwargs)
        return self._step(self._replace(self._scheduler, output, arguments), **arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Some pipelines make copies of their scheduler in each call; these are watched as well."""
        copied = memo.get(id(self._scheduler), self._scheduler)
        return StepWatch(copied, types.MethodType(type(copied).step, copied), self._replace)


@contextmanager
def watched(pipe: Any, replace: Replace) -> Iterator[None]:
    """Within a block, the pipeline's schedulers get the outputs that `replace` returns."""
    schedulers = [part for part in vars(pipe).values() if hasattr(part, "step") and hasattr(part, "set_timesteps")]
    before = [vars(scheduler).get("step") for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.step = StepWatch(scheduler, scheduler.step, replace)
    try:
        yield
    finally:
        for scheduler, step in zip(schedulers, before, strict=True):
            if step is not None:
                scheduler.step = step
            else:
                vars(scheduler).pop("step", None)
