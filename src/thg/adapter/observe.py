"""Seeing what a pipeline does in a step: the calls of its networks, and what it passes to `scheduler.step`.

Nothing is changed: the watch passes every call on as it came, and is taken off as soon as nothing is left to see.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thg.adapter import rows
from thg.adapter.caches.unknown import suspects
from thg.adapter.call import Call
from thg.adapter.readings import Outputs

# Modules that never make a step's output; they are left alone while a layout is learned.
_OTHERS = ("vae", "text_encoder", "image_encoder", "tokenizer", "safety_checker", "feature_extractor", "vocoder")
# Attention processors that treat each row of a batch by itself: those of diffusers' models.
_ROWWISE = "diffusers.models."


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call that has been made. mixed: why its branches may not run one without the other, if so."""

    call: Call
    output: Any
    mixed: str = ""

    def outputs(self) -> Outputs:
        return Outputs(self.call.name, rows.main_output(self.output))

    def replay(self) -> Call:
        """The same call for accounting; its network runs only for other arguments."""
        return self.call.answered_by(functools.partial(self._answer, self.call.module))

    def _answer(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        own, given = (*self.call.args, *self.call.kwargs.values()), (*args, *kwargs.values())
        same = len(own) == len(given) and all(a is b for a, b in zip(own, given, strict=True))
        return self.output if same else self.call.network(*args, **kwargs)


class StepWatch:
    """Stands in for `step` of a scheduler, with its signature, and shows what is passed to it."""

    def __init__(self, scheduler: Any, show: Callable[[Tensor, Any], None]) -> None:
        """show: gets the model output and the sample, before the step."""
        self._scheduler, self._step, self._show = scheduler, scheduler.step, show
        functools.update_wrapper(self, type(scheduler).step)
        self.__signature__ = inspect.signature(self._step)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        passed = self.__signature__.bind_partial(*args, **kwargs).arguments
        output = next(iter(passed.values()), None)
        if isinstance(output, Tensor):
            self._show(output, passed.get("sample"))
        return self._step(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the scheduler, as some pipelines make in each call, is not watched."""
        copied = memo.get(id(self._scheduler), self._scheduler)
        return types.MethodType(type(copied).step, copied)


@contextmanager
def watched(pipe: Any, show: Callable[[Tensor, Any], None]) -> Iterator[None]:
    """Shows what the pipeline passes to its schedulers; they are afterwards what they were."""
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


def mixes_rows(network: torch.nn.Module) -> str:
    """Why a branch of this network cannot run without the others, as far as its parts tell; empty if it can.

    Attention processors and forward methods that a pipeline has put in may look from one branch at another.
    """
    for module in network.modules():
        processor = type(getattr(module, "processor", None))
        if processor is not types.NoneType and _looks_at_other_rows(processor):
            return f"its attention processor {processor.__name__} may look from one branch at another"
    replaced = suspects(network)
    return f"{replaced[0]} is in its network, and may look from one branch at another" if replaced else ""


def _looks_at_other_rows(processor: type) -> bool:
    return not processor.__module__.startswith(_ROWWISE) or "PAG" in processor.__name__


def outputs_of(seen: list[SeenCall]) -> list[Outputs]:
    """What is to be learned from: the calls that returned tensors."""
    return [outputs for call in seen if (outputs := call.outputs()).outputs]
