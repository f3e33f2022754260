"""Does a branch give the same output alone as beside the others?

diffusers' own networks treat each row of a batch separately (`observe.mixes_rows` finds what was added to them). Of any
other network this is measured, by one more evaluation in the run in which its layout is inferred.
"""

from __future__ import annotations

from typing import Any

import torch

from thg.adapter.call import Call
from thg.adapter.classes import original_class
from thg.adapter.layouts import Batched
from thg.adapter.outputs import branch_terms

OWN = "diffusers."


def is_foreign(network: Any) -> bool:
    """Is this network not one of diffusers?"""
    while isinstance(getattr(network, "_orig_mod", None), torch.nn.Module):  # torch.compile
        network = network._orig_mod
    return not original_class(network).__module__.startswith(OWN)


def differs_alone(call: Call, output: Any, layout: Batched) -> bool:
    """Evaluates the kept branches of a call alone, and compares them with its output. Waits for the device."""
    count = len(layout.branches)
    keep = layout.kept
    beside = branch_terms(output, count)
    alone = branch_terms(call.keeping(keep, of=count)(), len(keep))
    errors = [
        (a - b).float().norm() / b.float().norm() / torch.finfo(b.dtype).eps ** 0.5
        for k, term in zip(keep, alone, strict=True)
        for a, b in zip(term, beside[k], strict=True)
        if b.is_floating_point()
    ]
    return not bool(torch.stack(errors).max() < 1)
