"""The shipped models: two tiny ones of Fashion-MNIST (Stable Diffusion and its flow-matching twin), emoji, and sounds.

`shipped.py` is the table of what they can do, `pretrained.py` loads them, and any other model, as ordinary diffusers
pipelines, `judge.py` judges their results. README.md next to this file has their quality, `training/` the code that
trained them.
"""

from thg.models.garments import EXAMPLE_PROMPTS, GARMENTS, TONES, benchmark_prompts, prompt_for
from thg.models.pretrained import load_folder, shipped_pipeline
from thg.models.shipped import SHIPPED, ShippedModel, ShippedName, shipped_path

__all__ = [
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
