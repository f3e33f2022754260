"""Selects branches from the inputs of a batched call, and joins outputs.

Branches are stacked along the first dimension: `n` of them with the same number of rows each. Independent of plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Term

# Positional tables and masks of IP-Adapters have no batch dimension, even if their first dimension matches.
_NOT_BATCHED = ("rotary", "freqs", "img_ids", "txt_ids", "pos_embed", "position", "ip_adapter_masks")
# Some pipelines repeat these for each frame, so that they hold a multiple of the batch.
_PER_FRAME = ("encoder_hidden_states", "image_embeds", "residual", "controlnet")
# The layers of a language model, stacked: their batch is the second dimension.
_BATCH_SECOND = ("hidden_states_llama3",)
# Residuals of a ControlNet or an adapter come as tuples of batched tensors; other tuples are not cut.
_TUPLES_OF_BATCHES = ("residual", "controlnet", "block_samples")

_SAMPLE = ("sample", "hidden_states", "x", "latents")
_TIME = ("timestep", "timesteps", "t", "timestep_ratio", "r")


def first_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The noisy sample among the arguments of a network."""
    for name in _SAMPLE:
        if name in kwargs:
            return kwargs[name]
    named = [value for name, value in kwargs.items() if not any(part in name for part in _NOT_BATCHED)]
    return next(filter(is_sample, (*args, *named)), next(iter((*args, *kwargs.values())), None))


def is_sample(value: Any) -> bool:
    """Could this be a batch of samples, or a list of them?"""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(is_sample, value))
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1


def count(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Rows in the batch of a network call."""
    sample = first_input(args, kwargs)
    if not isinstance(sample, list | tuple) and not (isinstance(sample, Tensor) and sample.ndim):
        raise UnsupportedPipelineError(f"thg finds no {_SAMPLE[0]} among the arguments of this network's call")
    return len(sample)


def timestep(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The time among the arguments of a network."""
    for name in _TIME:
        if name in kwargs:
            return kwargs[name]
    place = _places(args)[1]
    return args[place] if place < len(args) else None


def _places(args: Sequence[Any]) -> tuple[int, int]:
    """The places of the sample and of the time among the positional arguments; the usual ones if they are not found."""
    sample = next((place for place, value in enumerate(args) if is_sample(value)), 0)
    time = next((place for place, value in enumerate(args) if place != sample and _is_time(value)), 1)
    return sample, time


def _is_time(value: Any) -> bool:
    return value.ndim < 2 if isinstance(value, Tensor) else isinstance(value, int | float)


def with_sample(
    args: Sequence[Any], kwargs: Mapping[str, Any], sample: Any, time: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with another sample and time."""
    positional, named = own_lists(args, kwargs)
    for names, place, value in zip((_SAMPLE, _TIME), _places(args), (sample, time), strict=True):
        name = next((name for name in names if name in named), None)
        if name is not None:
            named[name] = value
        elif len(positional) > place:
            positional[place] = value
        else:
            raise UnsupportedPipelineError(f"thg finds no {names[0]} among the arguments of this network's call")
    return tuple(positional), named


def own_lists(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments with copied lists: some networks pop from them."""
    return [_own_list(value) for value in args], {name: _own_list(value) for name, value in kwargs.items()}


def _own_list(value: Any) -> Any:
    """A copy if it is a list."""
    return list(value) if isinstance(value, list) else value


def cut(
    args: Sequence[Any], kwargs: Mapping[str, Any], rows: int, n: int, keep: Sequence[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call with `n` branches in `rows` rows, for the branches `keep` alone."""
    cutter = _Cutter(rows, n, keep, listed=isinstance(first_input(args, kwargs), list))
    return tuple(cutter.cut(value, "") for value in args), {name: cutter.cut(v, name) for name, v in kwargs.items()}


class _Cutter:
    def __init__(self, rows: int, n: int, keep: Sequence[int], listed: bool) -> None:
        """listed: the network takes a list of samples in place of a batch."""
        self.rows, self.n, self.keep, self.listed = rows, n, keep, listed

    def cut(self, value: Any, name: str) -> Any:
        if any(part in name for part in _NOT_BATCHED):
            return value
        if isinstance(value, Tensor) and any(part in name for part in _BATCH_SECOND):
            return self._tensor(value.transpose(0, 1), may_be_multiple=False).transpose(0, 1)
        if isinstance(value, Tensor):
            return self._tensor(value, any(part in name for part in _PER_FRAME))
        if isinstance(value, dict):
            return {key: self.cut(item, str(key)) for key, item in value.items()}
        if isinstance(value, list):
            if len(value) == self.rows and self.listed:
                return self._list(value)  # one entry per sample
            return [self.cut(item, name) for item in value]  # a new list: some networks pop from it
        if isinstance(value, tuple) and any(part in name for part in _TUPLES_OF_BATCHES):
            return tuple(self.cut(item, name) for item in value)
        return value

    def _tensor(self, value: Tensor, may_be_multiple: bool) -> Tensor:
        size = value.shape[0] if value.ndim else 0
        batched = size == self.rows or (may_be_multiple and size > 0 and size % self.rows == 0)
        return select(value, self.n, self.keep) if batched else value

    def _list(self, value: list[Any]) -> list[Any]:
        size = len(value) // self.n
        return [item for branch in self.keep for item in value[branch * size : (branch + 1) * size]]


def select(value: Tensor, n: int, keep: Sequence[int]) -> Tensor:
    """The rows of some of the `n` branches."""
    size = value.shape[0] // n
    if len(keep) == 1:
        return value[keep[0] * size : (keep[0] + 1) * size]
    return torch.cat([value[k * size : (k + 1) * size] for k in keep])


# -- outputs


def tensors_of(output: Any) -> list[Tensor]:
    """The tensors of a network's output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [tensor for item in output for tensor in tensors_of(item)]
    if isinstance(output, Mapping):
        return [tensor for item in output.values() for tensor in tensors_of(item)]
    if is_dataclass(output):
        return [tensor for field in fields(output) for tensor in tensors_of(getattr(output, field.name))]
    if output is None:
        return []
    raise UnsupportedPipelineError(f"thg cannot split a network output of type {type(output).__name__}")


def form(output: Any) -> tuple[int, list[torch.Size]]:
    """The number of rows of a network's output, and the shapes of a row; samples in a list may have different ones."""
    listed = _list_of_samples(output)
    if listed is not None:
        return len(listed), []
    tensors = tensors_of(output)
    return len(tensors[0]), [tensor.shape[1:] for tensor in tensors]


def main_output(output: Any) -> tuple[Tensor, ...]:
    """The first tensor of an output, or its list of samples; nothing if there is none."""
    try:
        listed = _list_of_samples(output)
        return tuple(listed) if listed is not None else tuple(tensors_of(output)[:1])
    except UnsupportedPipelineError:
        return ()


def branch_terms(output: Any, n: int) -> list[Term]:
    """The output of a call with `n` branches, branch by branch."""
    if n == 1:
        return [tuple(tensors_of(output))]
    listed = _list_of_samples(output)
    if listed is not None:
        size = len(listed) // n
        return [tuple(listed[k * size : (k + 1) * size]) for k in range(n)]
    parts = [tensor.chunk(n) for tensor in tensors_of(output)]
    return [tuple(part[k] for part in parts) for k in range(n)]


def outline(output: Any) -> Any:
    """An output of the same structure and types, with empty tensors."""
    return _replace(output, [tensor.new_empty(0) for tensor in tensors_of(output)])


def assemble(template: Any, branches: Sequence[Term]) -> Any:
    """An output with the structure of `template` (of any number of branches), from these branches."""
    listed = _list_of_samples(template)
    if listed is not None:
        values: list[Any] = [[tensor for branch in branches for tensor in branch]]
        return _replace(template, values, samples=listed)
    joined = list(branches[0]) if len(branches) == 1 else [torch.cat(parts) for parts in zip(*branches, strict=True)]
    return _replace(template, joined)


def expand_rows(output: Any, n: int, keep: Sequence[int]) -> Any:
    """An output for the branches `keep`, expanded to all `n`; the others are filled with the first kept branch."""
    if isinstance(output, Tensor):
        kept = dict(zip(keep, output.chunk(len(keep)), strict=True))
        return torch.cat([kept.get(k, kept[keep[0]]) for k in range(n)])
    values = [expand_rows(tensor, n, keep) for tensor in tensors_of(output)]
    return _replace(output, values)


def _list_of_samples(output: Any) -> list[Tensor] | None:
    """The list of per-sample tensors that some networks return in place of a batch."""
    while isinstance(output, tuple) and len(output) >= 1:
        output = output[0]
    if is_dataclass(output):
        output = getattr(output, fields(output)[0].name)
    return output if isinstance(output, list) else None


def _replace(template: Any, values: list[Any], samples: list[Tensor] | None = None) -> Any:
    """The template with its tensors (or its list of samples) replaced, from the front of `values`."""
    if isinstance(template, Tensor) or (samples is not None and template is samples):
        return values.pop(0)
    if isinstance(template, list | tuple):
        return type(template)(_replace(item, values, samples) for item in template)
    if is_dataclass(template) and not isinstance(template, type):
        return type(template)(
            **{field.name: _replace(getattr(template, field.name), values, samples) for field in fields(template)}
        )
    if isinstance(template, Mapping):
        return type(template)({key: _replace(item, values, samples) for key, item in template.items()})  # type: ignore[call-arg]
    return template
