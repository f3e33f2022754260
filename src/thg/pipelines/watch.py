"""What a run observes of the pipeline's networks: which they are, and whether a call repeats an earlier one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thg.adapter.call import Call

# Modules that are not part of a denoising loop, even if a callback calls them there.
_OTHERS = ("vae", "movq", "text_encoder", "image_encoder", "tokenizer", "safety", "feature_extractor", "vocoder")


def networks_of(pipe: Any) -> dict[torch.nn.Module, str]:
    """The networks of a pipeline that may run in its denoising loop, with their names."""
    return {
        part: name
        for name, part in vars(pipe).items()
        if isinstance(part, torch.nn.Module) and not any(other in name for other in _OTHERS)
    }


# -- network calls


@dataclass(frozen=True, eq=False)
class SeenCall:
    """A network call of the last evaluated step.

    shapes: of the tensors among its arguments. tensors: these, without keeping them alive. steady: whether each was the
    same object in the evaluated step before: a condition of the run.
    """

    module: Any
    output: Any
    shapes: tuple[Any, ...]
    tensors: tuple[weakref.ref[Tensor], ...]
    steady: tuple[bool, ...]

    @classmethod
    def of(cls, call: Call, run: Callable[[], Any], before: SeenCall | None) -> SeenCall:
        """Makes a call. before: the same call of the evaluated step before."""
        found = list(_tensors((call.args, call.kwargs)))
        shapes = tuple(tuple(tensor.shape) for tensor in found)
        steady = [False] * len(found)
        if before is not None and before.module is call.module and before.shapes == shapes:
            steady = [old() is new for old, new in zip(before.tensors, found, strict=True)]
        references = tuple(weakref.ref(tensor) for tensor in found)
        return cls(call.module, run(), shapes, references, tuple(steady))

    def repeats(self, call: Call) -> bool:
        """Is this the same call at another time: the same network, shapes and conditions?"""
        found = list(_tensors((call.args, call.kwargs)))
        if call.module is not self.module or self.shapes != tuple(tuple(tensor.shape) for tensor in found):
            return False
        conditions = zip(self.tensors, found, self.steady, strict=True)
        return all(old() is new for old, new, steady in conditions if steady)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
