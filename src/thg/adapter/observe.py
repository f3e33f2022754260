"""Observes a step of a pipeline: the calls of its networks, and the input of `scheduler.step`.

Nothing is changed: every call is passed on, and the observer is removed after the run.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from thg.adapter.call import Call
from thg.adapter.outputs import main_output
from thg.adapter.readings import Outputs

# Modules that are never the denoiser; they are ignored while a layout is inferred.
_OTHERS = ("vae", "text_encoder", "image_encoder", "tokenizer", "safety_checker", "feature_extractor", "vocoder")

Show = Callable[[Tensor, Tensor | None], None]  # called with the scheduler's input and the sample, before a step


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call that has been made. mixed: why its branches may not be separable, if so."""

    call: Call
    output: Any
    mixed: str = ""

    def outputs(self) -> Outputs:
        return Outputs(self.call.name, main_output(self.output))

    def replay(self) -> Call:
        """The same call with its recorded output; the network runs only for other arguments."""
        return replace(self.call, network=functools.partial(self._answer, self.call.module))

    def _answer(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        own, given = (*self.call.args, *self.call.kwargs.values()), (*args, *kwargs.values())
        same = len(own) == len(given) and all(a is b for a, b in zip(own, given, strict=True))
        return self.output if same else self.call.network(*args, **kwargs)


class StepWatch:
    """Replaces a scheduler's `step`, with the same signature, and reports its input."""

    def __init__(self, scheduler: Any, show: Show) -> None:
        self._scheduler, self._step, self._show = scheduler, scheduler.step, show
        functools.update_wrapper(self, type(scheduler).step)
        self.__signature__ = inspect.signature(self._step)
        self._names = tuple(self.__signature__.parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        passed = dict(zip(self._names, args, strict=False)) | kwargs
        output, sample = passed.get(self._names[0]), passed.get("sample")
        if isinstance(output, Tensor):
            self._show(output, sample if isinstance(sample, Tensor) else None)
        return self._step(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the scheduler, as some pipelines make in each call, is not observed."""
        copied = memo.get(id(self._scheduler), self._scheduler)
        return types.MethodType(type(copied).step, copied)


@contextmanager
def watched(pipe: Any, show: Show) -> Iterator[None]:
    """Reports what the pipeline passes to its schedulers within a block; they are restored afterwards."""
    schedulers = [part for part in vars(pipe).values() if hasattr(part, "step") and hasattr(part, "set_timesteps")]
    before = [vars(scheduler).get("step") for scheduler in schedulers]
    for scheduler in schedulers:
        scheduler.step = StepWatch(scheduler, show)
    try:
        yield
    finally:
        for scheduler, step in zip(schedulers, before, strict=True):
            if step is not None:
                scheduler.step = step
            else:
                vars(scheduler).pop("step", None)


def candidates(pipe: Any) -> dict[str, torch.nn.Module]:
    """The networks of a pipeline that could be its denoiser, by name."""
    return {
        name: part
        for name, part in vars(pipe).items()
        if isinstance(part, torch.nn.Module) and not any(other in name for other in _OTHERS)
    }


def outputs_of(seen: list[SeenCall]) -> list[Outputs]:
    """The outputs of the calls that returned tensors."""
    return [outputs for call in seen if (outputs := call.outputs()).outputs]
