"""The shipped models: two tiny ones of Fashion-MNIST (Stable Diffusion and its flow-matching twin), emoji, and sounds.

`shipped.py` is the table of what they can do, `pretrained.py` loads them, and any other model, as ordinary diffusers
pipelines, `judge.py` judges their results. README.md next to this file has their quality, `training/` the code that
trained them.
"""

from __future__ import annotations

from typing import Any, Final

from thg.models.garments import EXAMPLE_PROMPTS, GARMENTS, TONES, benchmark_prompts, prompt_for
from thg.models.pretrained import load_folder, shipped_pipeline
from thg.models.shipped import SHIPPED, ShippedModel, ShippedName, shipped_path

__all__ = [
    "DEFAULT_CALL",
    "DEFAULT_GUIDANCE",
    "EXAMPLE_PROMPTS",
    "GARMENTS",
    "SHIPPED",
    "TONES",
    "ShippedModel",
    "ShippedName",
    "benchmark_prompts",
    "load_folder",
    "prompt_for",
    "shipped_path",
    "shipped_pipeline",
]

DEFAULT_GUIDANCE: Final[dict[ShippedName, float]] = {name: model.guidance_scale for name, model in SHIPPED.items()}
"""The recommended guidance scale of each model, at which it was measured."""

DEFAULT_CALL: Final[dict[ShippedName, dict[str, Any]]] = {name: dict(model.call) for name, model in SHIPPED.items()}
"""Further arguments for the call of each."""
