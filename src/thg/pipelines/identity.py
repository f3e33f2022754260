"""Which network a pipeline has, so that a profile is not used on another, and what `thg.tune` has measured on it."""

from __future__ import annotations

import hashlib
import logging
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from thg.errors import PlanError
from thg.pipelines.layouts import DENOISERS
from thg.pipelines.substitute import original_class
from thg.plans.tolerance import Tuned, folder

SWITCH = "THG_TUNED"  # 0: no result of `thg.tune` is looked for
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


# -- results of `thg.tune`: of a network with its weights, a scheduler and a precision


def identity(pipe: Any) -> dict[str, str]:
    """What a result of `thg.tune` belongs to."""
    network = denoiser_of(pipe)
    dtype = next((parameter.dtype for parameter in network.parameters()), None) if network is not None else None
    return {
        "network": f"{fingerprint(pipe)}:{_checksum(network)}",
        "scheduler": _configured(pipe.scheduler),
        "precision": str(dtype).removeprefix("torch."),
    }


def place_of(pipe: Any) -> Path:
    """The file in which a result for this pipeline is kept."""
    key = "\n".join(identity(pipe).values())
    return folder() / f"{fingerprint(pipe).replace(':', '-')}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"


def remembered(pipe: Any) -> Tuned | None:
    """The result of an earlier `thg.tune`, if there is one and it can be read."""
    if os.environ.get(SWITCH) == "0" or not any(folder().glob(f"{fingerprint(pipe).replace(':', '-')}-*.json")):
        return None
    path = place_of(pipe)
    if not path.exists():
        return None
    try:
        return Tuned.load(path)
    except PlanError as error:
        logging.getLogger("thg").warning("%s: not used: %s", type(pipe).__name__, error)
        return None


def _checksum(network: torch.nn.Module | None) -> str:
    """Of one number of each parameter: other weights have other errors. Empty if they are not at hand (offloaded).

    Read anew at each call, which is at the start of a run: a LoRA adapter is fused by writing to `.data`, which
    changes neither version nor address of a tensor. Its rounding remains when it is taken out again, hence 3 digits.
    """
    if network is None:
        return ""
    adapters = _adapters(network)
    groups: dict[tuple[torch.device, torch.dtype], dict[str, torch.Tensor]] = {}  # of those that one transfer fetches
    for name, parameter in network.named_parameters():
        value = parameter.data
        if value.is_meta:
            return ""
        if value.numel() and type(value) is torch.Tensor and (adapters or "lora_" not in name):
            first = value[(0,) * value.ndim]
            groups.setdefault((value.device, value.dtype), {})[name.replace(".base_layer.", ".")] = first
    numbers = dict(adapters)
    for values in groups.values():
        numbers |= zip(values, torch.stack(list(values.values())).float().tolist(), strict=True)
    digits = " ".join(f"{name} {number:.3g}" for name, number in sorted(numbers.items()))
    return hashlib.sha256(digits.encode()).hexdigest()[:8] if numbers else ""


def _adapters(network: torch.nn.Module) -> dict[str, float]:
    """The strengths of LoRA adapters that act beside the weights: neither disabled nor fused into them."""
    return {
        f"{prefix} {name}": float(strength)
        for prefix, module in network.named_modules()
        if hasattr(module, "merged_adapters") and not (module.merged or module.disable_adapters)
        for name, strength in module.scaling.items()
        if name in module.active_adapters
    }


def _configured(scheduler: Any) -> str:
    """The scheduler's class and its settings, without what diffusers adds to them in no fixed order."""
    config = {name: value for name, value in dict(scheduler.config).items() if not name.startswith("_")}
    return f"{type(scheduler).__name__} {sorted(config.items(), key=lambda item: item[0])!r}"
