"""Which network is this? So that a profile is not used on a model of another kind."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from thg.adapter.layouts import DENOISERS


def fingerprint(pipe: Any) -> str:
    """Class and architecture of the network that a pipeline denoises with: "UNet2DConditionModel-1f3a9c20".

    Fine-tuned weights of one architecture share it: their guidance behaves alike. Empty where there is no telling.
    """
    for name in DENOISERS:
        network = getattr(pipe, name, None)
        if isinstance(network, torch.nn.Module):
            config = {key: value for key, value in dict(getattr(network, "config", {})).items() if key[:1] != "_"}
            digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()
            return f"{type(network).__name__}-{digest[:8]}"
    return ""
