"""The guidance term from two outputs, and the unconditional output from a term."""

from __future__ import annotations

import torch
from torch import Tensor

from thg.errors import UnsupportedPipelineError
from thg.plans.guide import Term


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
