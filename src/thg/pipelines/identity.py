"""A fingerprint of a network, so that a profile is not used on another model."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from thg.pipelines.layouts import DENOISERS
from thg.pipelines.substitute import original_class

_ADDED = ("lora_", "processor.", "encoder_hid_proj")  # parameters that users load on top of a network

_fingerprints: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


def fingerprint(pipe: Any) -> str:
    """Class and architecture of the network that a pipeline denoises with: "UNet2DConditionModel:1f3a9c20".

    The architecture is given by the names and shapes of the parameters: it stays the same when a network is compiled,
    quantised, adapted or fine-tuned. Empty if the pipeline has no network under a usual name.
    """
    network = denoiser_of(pipe)
    if network is None:
        return ""
    if network not in _fingerprints:
        digest = hashlib.sha256("\n".join(sorted(_parameters(network))).encode()).hexdigest()
        _fingerprints[network] = f"{original_class(network).__name__}:{digest[:8]}"
    return _fingerprints[network]


def denoiser_of(pipe: Any) -> torch.nn.Module | None:
    """The network under the first of the usual names."""
    found = (getattr(pipe, name, None) for name in DENOISERS)
    return next((uncompiled(network) for network in found if isinstance(network, torch.nn.Module)), None)


def uncompiled(network: torch.nn.Module) -> torch.nn.Module:
    """The network inside a compiled one."""
    while isinstance(inner := getattr(network, "_orig_mod", None), torch.nn.Module):
        network = inner
    return network


def _parameters(network: torch.nn.Module) -> Iterator[str]:
    for prefix, module in network.named_modules():
        for name, parameter in module._parameters.items():
            place = f"{prefix}.{name}".replace(".base_layer.", ".")  # LoRA wraps layers
            if parameter is None or any(part in place for part in _ADDED):
                continue
            shape = tuple(parameter.shape)
            if name == "weight" and hasattr(module, "in_features"):  # quantised weights are packed
                shape = (int(module.out_features), int(module.in_features))
            yield f"{place} {shape}"
