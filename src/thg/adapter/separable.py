"""Does a branch give the same output alone as beside the others?

diffusers' own networks treat each row of a batch separately, unless something was added to them. Of any other network
this is measured, by one more evaluation in the run in which its layout is inferred.
"""

from __future__ import annotations

from typing import Any

import torch

from thg.adapter.caches.unknown import suspects
from thg.adapter.call import Call
from thg.adapter.classes import original_class
from thg.adapter.identity import uncompiled
from thg.adapter.layouts import Batched
from thg.adapter.outputs import branch_terms

_OWN = "diffusers."
# Attention processors that treat each row of a batch separately: those of diffusers' models.
_ROWWISE = "diffusers.models."


def mixes_rows(network: torch.nn.Module) -> str:
    """Why the branches of this network may not be separable, judged by its modules; empty if they are.

    Attention processors and forward methods that a pipeline has installed may mix branches.
    """
    own = (vars(module).get("processor", module._modules.get("processor")) for module in network.modules())
    for processor in dict.fromkeys(type(value) for value in own if value is not None):
        if not processor.__module__.startswith(_ROWWISE) or "PAG" in processor.__name__:
            return f"its attention processor {processor.__name__} may mix branches"
    replaced = suspects(network)
    return f"{replaced[0]} is in its network, and may mix branches" if replaced else ""


def is_foreign(network: Any) -> bool:
    """Is this network not one of diffusers?"""
    return not original_class(uncompiled(network)).__module__.startswith(_OWN)


def differs_alone(call: Call, output: Any, layout: Batched) -> bool:
    """Evaluates the kept branches of a call alone, and compares them with its output. Waits for the device."""
    count = len(layout.branches)
    beside = branch_terms(output, count)
    alone = branch_terms(call.keeping(layout.kept, of=count)(), len(layout.kept))
    errors = [
        (a - b).float().norm() / b.float().norm() / torch.finfo(b.dtype).eps ** 0.5
        for k, term in zip(layout.kept, alone, strict=True)
        for a, b in zip(term, beside[k], strict=True)
        if b.is_floating_point()
    ]
    return not bool(torch.stack(errors).max() < 1)
