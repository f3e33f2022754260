"""Calls of a network and their outputs: the same call for fewer branches, outputs branch by branch.

Branches are stacked along the first dimension of arguments and outputs, with the same number of rows each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.pipelines.substitute import original_class
from thg.plans.run_info import Term

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

    module: the network. name: its name in the pipeline.
    """

    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str = ""

    def __call__(self) -> Any:
        return original_class(self.module).__call__(self.module, *self.args, **self.kwargs)

    @property
    def sample(self) -> Any:
        """The noisy sample among the arguments; samples in a list as one tensor, if they have one size."""
        given = self._arguments.get(self._sample_at)
        return together(given) if isinstance(given, list) else given

    @property
    def time(self) -> Any:
        """The time among the arguments, or None."""
        return self._arguments.get(self._time_at)

    @functools.cached_property
    def rows(self) -> int:
        """Rows in the batch."""
        sample = self._arguments.get(self._sample_at)
        if not isinstance(sample, list | tuple) and not (isinstance(sample, Tensor) and sample.ndim):
            raise UnsupportedPipelineError(f"thg finds no {_SAMPLE[0]} among the arguments of this network's call")
        return len(sample)

    @functools.cached_property
    def _arguments(self) -> dict[Place, Any]:
        return dict(enumerate(self.args)) | self.kwargs

    @functools.cached_property
    def _sample_at(self) -> Place:
        usual = (name for name in _SAMPLE if name in self.kwargs)
        similar = (place for place, value in self._arguments.items() if is_sample(value) and _may_be_batched(place))
        return next(chain[Place](usual, similar), next(iter(self._arguments), 0))

    @functools.cached_property
    def _time_at(self) -> Place:
        usual = (name for name in _TIME if name in self.kwargs)
        similar = (place for place, value in enumerate(self.args) if place != self._sample_at and _is_time(value))
        return next(chain[Place](usual, similar), 1)

    def with_sample(self, sample: Any, time: Any) -> Call:
        """The same call for another sample at another time."""
        arguments = self.kept()._arguments
        for place, usual, value in ((self._sample_at, _SAMPLE, sample), (self._time_at, _TIME, time)):
            if place not in arguments:
                raise UnsupportedPipelineError(f"thg finds no {usual[0]} among the arguments of this network's call")
            arguments[place] = list(value) if isinstance(arguments[place], list) else value
        return self._with(arguments)

    def kept(self) -> Call:
        """A copy of the call that can be made again later: some networks pop from the lists that they get."""
        own = {place: list(value) if isinstance(value, list) else value for place, value in self._arguments.items()}
        return self._with(own)

    def keeping(self, branches: Sequence[int], of: int) -> Call:
        """The same call with only some of its branches."""
        return self._with({place: self._cut(value, place, of, branches) for place, value in self._arguments.items()})

    def _with(self, arguments: dict[Place, Any]) -> Call:
        args = tuple(arguments[place] for place in range(len(self.args)))
        return replace(self, args=args, kwargs={name: arguments[name] for name in self.kwargs})

    def _cut(self, value: Any, place: Place, n: int, keep: Sequence[int]) -> Any:
        """An argument of a call with `n` branches, for the branches `keep` alone."""
        if not _may_be_batched(place):
            return value
        if isinstance(value, Tensor):
            if _is_one_of(place, _BATCH_SECOND):
                return self._cut(value.transpose(0, 1), "", n, keep).transpose(0, 1)
            size = len(value) if value.ndim else 0
            batched = size == self.rows or (size > 0 and size % self.rows == 0 and _is_one_of(place, _PER_FRAME))
            if not batched:
                return value
            parts = value.chunk(n)
            return parts[keep[0]] if len(keep) == 1 else torch.cat([parts[k] for k in keep])
        if isinstance(value, dict):
            return {key: self._cut(item, str(key), n, keep) for key, item in value.items()}
        if isinstance(value, list):
            if len(value) == self.rows and isinstance(self._arguments[self._sample_at], list):  # one entry per sample
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


def together(samples: list[Any]) -> Any:
    """The samples of a list as one tensor; the same list if they have different sizes."""
    one_size = all(isinstance(sample, Tensor) and sample.shape == samples[0].shape for sample in samples)
    return torch.stack(samples) if samples and one_size else samples


def _is_time(value: Any) -> bool:
    return value.ndim < 2 if isinstance(value, Tensor) else isinstance(value, int | float)


@functools.cache
def _is_one_of(place: Place, parts: tuple[str, ...]) -> bool:
    """Does the name of an argument contain one of these?"""
    return isinstance(place, str) and any(part in place for part in parts)


def _may_be_batched(place: Place) -> bool:
    return not _is_one_of(place, _NOT_BATCHED)


# -- outputs


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a network's output, or of its arguments, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, field.name) for field in fields(value)]
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for item in value for tensor in tensors_of(item)]


def samples_of(output: Any) -> list[Tensor] | None:
    """The list of per-sample tensors that some networks return in place of a batch."""
    while isinstance(output, tuple) and len(output) >= 1:
        output = output[0]
    if is_dataclass(output):
        output = getattr(output, fields(output)[0].name)
    return output if isinstance(output, list) else None


def rows_of(output: Any) -> int:
    """The number of rows of a network's output; 0 if it has no tensors."""
    listed = samples_of(output)
    if listed is not None:
        return len(listed)
    tensors = tensors_of(output) or tensors_of(getattr(output, "__dict__", {}))  # or a class of the network's own
    return sum(len(tensor) for tensor in tensors[:1] if tensor.ndim)


def branch_terms(output: Any, n: int) -> list[Term]:
    """The output of a call with `n` branches, branch by branch; samples in a list as one tensor if they have one size.

    So the tensors of a term are parts of each sample, and their rows are samples.
    """
    tensors, listed = tensors_of(output), samples_of(output)
    if not tensors:
        raise UnsupportedPipelineError(f"thg cannot split a network output of type {type(output).__name__}")
    if listed is not None:
        size = len(listed) // n
        found = [together(listed[k * size : (k + 1) * size]) for k in range(n)]
        return [(branch,) if isinstance(branch, Tensor) else tuple(branch) for branch in found]
    parts = [tensor.chunk(n) for tensor in tensors]
    return [tuple(part[k] for part in parts) for k in range(n)]


def assemble(template: Any, branches: Sequence[Term]) -> Any:
    """An output with the structure of `template` (of any number of branches), from these branches."""
    listed = samples_of(template)
    if listed is not None:
        stacked = branches[0][0].ndim > listed[0].ndim
        own = [tensor for branch in branches for tensor in (branch[0] if stacked else branch)]
        return _mapped(template, lambda tensor: tensor, {id(listed): own})
    joined = branches[0] if len(branches) == 1 else [torch.cat(parts) for parts in zip(*branches, strict=True)]
    values = iter(joined)
    return _mapped(template, lambda _: next(values))


def expand_rows(output: Any, n: int, keep: Sequence[int]) -> Any:
    """An output for the branches `keep`, expanded to all `n`; the others are filled with the first kept branch."""

    def expanded(tensor: Tensor) -> Tensor:
        kept = dict(zip(keep, tensor.chunk(len(keep)), strict=True))
        return torch.cat([kept.get(k, kept[keep[0]]) for k in range(n)])

    return _mapped(output, expanded)


def copied(output: Any) -> Any:
    """A copy that stays when the pipeline computes in place, or when the network writes its next output there."""
    return _mapped(output, Tensor.clone)


def on_a_line(last: Any, earlier: Any, weight: float) -> Any:
    """What two outputs of one call make with this weight on the earlier one; the last if they are not alike."""
    new, old = tensors_of(last), tensors_of(earlier)
    if [one.shape for one in new] != [one.shape for one in old] or not all(one.is_floating_point() for one in new):
        return last
    values = iter([one.lerp(before, weight) for one, before in zip(new, old, strict=True)])
    return _mapped(last, lambda _: next(values))


def _mapped(output: Any, change: Callable[[Tensor], Tensor], lists: Mapping[int, list[Tensor]] | None = None) -> Any:
    """The output with its tensors changed, and with these lists in place of its own."""
    if lists and id(output) in lists:
        return lists[id(output)]
    if isinstance(output, Tensor):
        return change(output)
    if isinstance(output, list | tuple):
        items = [_mapped(item, change, lists) for item in output]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    if is_dataclass(output) and not isinstance(output, type):
        values = {field.name: _mapped(getattr(output, field.name), change, lists) for field in fields(output)}
        return type(output)(**values)
    if isinstance(output, Mapping):
        return type(output)({key: _mapped(item, change, lists) for key, item in output.items()})  # type: ignore[call-arg]
    return output


# -- the guidance term


def difference(conditional: Term, unconditional: Term) -> Term:
    """d = e_c - e_u, in at least float32."""
    for c, u in zip(conditional, unconditional, strict=True):
        if c.shape != u.shape:
            raise UnsupportedPipelineError(
                f"the conditional output has the shape {tuple(c.shape)} and the unconditional one {tuple(u.shape)}; "
                "thg needs equal shapes"
            )
    return tuple(at_least_float32(c) - at_least_float32(u) for c, u in zip(conditional, unconditional, strict=True))


def unconditional(conditional: Term, term: Term | None) -> Term:
    """e_u = e_c - d, in the network's own precision. No term means no guidance: e_u = e_c."""
    if term is None:
        return conditional
    return tuple((at_least_float32(c) - d).to(c.dtype) for c, d in zip(conditional, term, strict=True))


def at_least_float32(value: Tensor) -> Tensor:
    """Half precision is too coarse for differences of outputs."""
    return value if value.dtype == torch.float64 else value.float()
