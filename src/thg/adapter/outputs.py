"""The outputs of networks: their tensors, their branches, and the guidance term of two branches.

Branches are stacked along the first dimension: `n` of them with the same number of rows each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.plans.run import Term


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


def main_output(output: Any) -> tuple[Tensor, ...]:
    """The first tensor of an output, or its list of samples; nothing if there is none."""
    try:
        listed = _list_of_samples(output)
        return tuple(listed) if listed is not None else tuple(tensors_of(output)[:1])
    except UnsupportedPipelineError:
        return ()


def rows_of(output: Any) -> int:
    """The number of rows of a network's output; 0 if it has no tensors."""
    listed = _list_of_samples(output)
    return sum(len(tensor) for tensor in main_output(output) if tensor.ndim) if listed is None else len(listed)


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
