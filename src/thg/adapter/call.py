"""One call of a network: its arguments, and the same call for other samples or fewer branches.

Branches are stacked along the first dimension of the arguments, with the same number of rows each.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError

Network = functools.partial[Any]  # a network's own `__call__`, bound to it
Place = int | str  # of an argument: its index, or its name

_SAMPLE = ("sample", "hidden_states", "x", "latents")
_TIME = ("timestep", "timesteps", "t", "timestep_ratio", "r")

# Positional tables and masks of IP-Adapters have no batch dimension, even if their first dimension matches.
_NOT_BATCHED = ("rotary", "freqs", "img_ids", "txt_ids", "pos_embed", "position", "ip_adapter_masks")
# Some pipelines repeat these for each frame, so that they hold a multiple of the batch.
_PER_FRAME = ("encoder_hidden_states", "image_embeds", "residual", "controlnet")
# The layers of a language model, stacked: their batch is the second dimension.
_BATCH_SECOND = ("hidden_states_llama3",)
# Residuals of a ControlNet or an adapter come as tuples of batched tensors; other tuples are not cut.
_TUPLES_OF_BATCHES = ("residual", "controlnet", "block_samples")


@dataclass(eq=False)
class Call:
    """A call of a network that has not run yet. `call()` runs it.

    name: of the network in the pipeline. context: the pipeline's current cache context.
    """

    network: Network
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str = ""
    context: str = ""

    def __call__(self) -> Any:
        return self.network(*self.args, **self.kwargs)

    @property
    def module(self) -> Any:
        """The network."""
        return self.network.args[0]

    @property
    def sample(self) -> Any:
        """The noisy sample among the arguments."""
        return self._arguments.get(self._sample_at)

    @property
    def time(self) -> Any:
        """The time among the arguments, or None."""
        return self._arguments.get(self._time_at)

    @functools.cached_property
    def rows(self) -> int:
        """Rows in the batch."""
        sample = self.sample
        if not isinstance(sample, list | tuple) and not (isinstance(sample, Tensor) and sample.ndim):
            raise UnsupportedPipelineError(f"thg finds no {_SAMPLE[0]} among the arguments of this network's call")
        return len(sample)

    @functools.cached_property
    def _arguments(self) -> dict[Place, Any]:
        return dict(enumerate(self.args)) | self.kwargs

    @functools.cached_property
    def _sample_at(self) -> Place:
        usual: Iterator[Place] = (name for name in _SAMPLE if name in self.kwargs)
        similar = (place for place, value in self._arguments.items() if is_sample(value) and _may_be_batched(place))
        return next(chain(usual, similar), next(iter(self._arguments), 0))

    @functools.cached_property
    def _time_at(self) -> Place:
        usual: Iterator[Place] = (name for name in _TIME if name in self.kwargs)
        similar = (place for place, value in enumerate(self.args) if place != self._sample_at and _is_time(value))
        return next(chain(usual, similar), 1)

    def with_sample(self, sample: Any, time: Any) -> Call:
        """The same call for another sample at another time."""
        arguments = self.kept()._arguments
        for place, usual, value in ((self._sample_at, _SAMPLE, sample), (self._time_at, _TIME, time)):
            if place not in arguments:
                raise UnsupportedPipelineError(f"thg finds no {usual[0]} among the arguments of this network's call")
            arguments[place] = value
        return self._with(arguments)

    def kept(self) -> Call:
        """A copy of the call that can be made again later: some networks pop from the lists that they get."""
        return self._with({place: _own_list(value) for place, value in self._arguments.items()})

    def keeping(self, branches: Sequence[int], of: int) -> Call:
        """The same call with only some of its branches."""
        return self._with({place: self._cut(value, place, of, branches) for place, value in self._arguments.items()})

    def _with(self, arguments: dict[Place, Any]) -> Call:
        args = tuple(arguments[place] for place in range(len(self.args)))
        return replace(self, args=args, kwargs={name: arguments[name] for name in self.kwargs})

    # -- branches

    def _cut(self, value: Any, place: Place, n: int, keep: Sequence[int]) -> Any:
        """An argument of a call with `n` branches, for the branches `keep` alone."""
        if not _may_be_batched(place):
            return value
        if isinstance(value, Tensor):
            if _is_one_of(place, _BATCH_SECOND):
                return self._cut(value.transpose(0, 1), "", n, keep).transpose(0, 1)
            size = len(value) if value.ndim else 0
            batched = size == self.rows or (size > 0 and size % self.rows == 0 and _is_one_of(place, _PER_FRAME))
            return _select(value, n, keep) if batched else value
        if isinstance(value, dict):
            return {key: self._cut(item, str(key), n, keep) for key, item in value.items()}
        if isinstance(value, list):
            if len(value) == self.rows and isinstance(self.sample, list):  # the network takes one entry per sample
                size = len(value) // n
                return [item for branch in keep for item in value[branch * size : (branch + 1) * size]]
            return [self._cut(item, place, n, keep) for item in value]  # a new list: some networks pop from it
        if isinstance(value, tuple) and _is_one_of(place, _TUPLES_OF_BATCHES):
            return tuple(self._cut(item, place, n, keep) for item in value)
        return value


def is_sample(value: Any) -> bool:
    """Could this be a batch of samples, or a list of them?"""
    if isinstance(value, list | tuple):
        return len(value) > 0 and all(map(is_sample, value))
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 1


def time_on_host(time: Any) -> float | None:
    """A time argument as a number; None if reading it would wait for a device, or lose precision."""
    if isinstance(time, Tensor):
        exact = not time.is_floating_point() or torch.finfo(time.dtype).bits >= 32
        return float(time.reshape(-1)[0]) if time.device.type == "cpu" and time.numel() and exact else None
    return float(time) if isinstance(time, int | float) else None


def same_arguments(one: Any, other: Any) -> bool:
    """Are these the same objects, including the entries of lists, tuples and dicts? Never waits for a device.

    Equal views of one tensor count as the same object.
    """
    if one is other:
        return True
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        place, same_place = (
            (id(value._base), value.storage_offset(), value.shape, value.stride()) for value in (one, other)
        )
        return one._base is not None and place == same_place
    if isinstance(one, Call) and isinstance(other, Call):
        return same_arguments((one.args, one.kwargs), (other.args, other.kwargs))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_arguments(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same_arguments, one, other))
    return isinstance(one, int | float | str) and isinstance(other, int | float | str) and one == other


def _select(value: Tensor, n: int, keep: Sequence[int]) -> Tensor:
    """The rows of some of the `n` branches."""
    parts = value.chunk(n)
    return parts[keep[0]] if len(keep) == 1 else torch.cat([parts[k] for k in keep])


def _is_time(value: Any) -> bool:
    return value.ndim < 2 if isinstance(value, Tensor) else isinstance(value, int | float)


def _own_list(value: Any) -> Any:
    """A copy if it is a list."""
    return list(value) if isinstance(value, list) else value


@functools.cache
def _is_one_of(place: Place, parts: tuple[str, ...]) -> bool:
    """Does the name of an argument contain one of these?"""
    return isinstance(place, str) and any(part in place for part in parts)


def _may_be_batched(place: Place) -> bool:
    return not _is_one_of(place, _NOT_BATCHED)
