"""Finds what `thg.tune` has measured on a pipeline's network, scheduler and precision."""

from __future__ import annotations

import hashlib
import os
import weakref
from pathlib import Path
from typing import Any

import torch

from thg.errors import PlanError
from thg.pipelines.identity import denoiser_of, fingerprint
from thg.plans.tuned import Tuned, folder

SWITCH = "THG_TUNED"  # 0: nothing is looked for

_weights: weakref.WeakKeyDictionary[torch.nn.Module, str] = weakref.WeakKeyDictionary()


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
    try:
        return Tuned.load(place_of(pipe))
    except PlanError:
        return None


def _checksum(network: torch.nn.Module | None) -> str:
    """Of a few weights: other weights have other errors. Empty if they are not at hand (offloaded to disk)."""
    if network is None:
        return ""
    if network not in _weights:
        parameters = sorted(network.named_parameters(), key=lambda item: item[0])
        chosen = [value.detach().flatten()[:8] for _, value in parameters[:: max(1, len(parameters) // 16)]]
        if any(value.is_meta for value in chosen) or not chosen:
            return ""
        numbers = torch.cat([value.float().cpu() for value in chosen])
        digits = " ".join(f"{number:.3g}" for number in numbers.tolist())
        _weights[network] = hashlib.sha256(digits.encode()).hexdigest()[:8]
    return _weights[network]


def _configured(scheduler: Any) -> str:
    """The scheduler's class and its settings, without what diffusers adds to them in no fixed order."""
    config = {name: value for name, value in dict(scheduler.config).items() if not name.startswith("_")}
    return f"{type(scheduler).__name__} {sorted(config.items(), key=lambda item: item[0])!r}"
