"""The shipped models: two tiny ones of Fashion-MNIST (Stable Diffusion and its flow-matching twin), emoji, and sounds.

This module locates their files and loads them as ordinary diffusers pipelines, offline. `shipped.py` is the table of
what they can do, `training/` has the code that trained them, and README.md next to this file their quality.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from safetensors import SafetensorError

from thg.distribution import missing
from thg.errors import MissingExtraError, THGError
from thg.models.garments import EXAMPLE_PROMPTS, GARMENTS, TONES, benchmark_prompts, prompt_for
from thg.models.shipped import SHIPPED, ShippedModel, ShippedName

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

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


def shipped_path(name: ShippedName = "eps") -> Path:
    """The folder of a shipped model, in the layout that diffusers' `from_pretrained` reads."""
    if name not in SHIPPED:
        known = " or ".join(f'shipped_pipeline("{each}")' for each in SHIPPED)
        raise THGError(f"there is no shipped model {name!r}; write {known}")
    return Path(__file__).parent / name


def shipped_pipeline(
    name: ShippedName = "eps", *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DiffusionPipeline:
    """Load a shipped model. Nothing is downloaded.

    "emoji" is a `StableDiffusionPipeline` that draws emoji of 64x64 pixels in colour ("a panda", "blue heart"), "audio"
    an `AudioLDM2Pipeline` that plays notes, chords, melodies and drum patterns ("a soft low trumpet note"). "eps" and
    "flow", a `StableDiffusionPipeline` and a `StableDiffusion3Pipeline`, are smaller and draw grey garments of 32x32
    pixels ("a dark ankle boot").

    device: the CPU unless given.
    dtype: of the weights in memory; float32 unless given (the files contain float16).
    """
    return load_folder(shipped_path(name), device=device, dtype=dtype)


def load_folder(
    folder: Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> DiffusionPipeline:
    """Load a pipeline from a folder that `training.export` wrote, or raise a one-line error."""
    index = _read_index(folder)
    try:
        import diffusers
        import transformers  # noqa: F401
    except ImportError as error:
        raise missing("a shipped model", "diffusers") from error
    left_out: dict[str, Any] = {part: None for part, origin in index.items() if origin == [None, None]}
    try:
        pipeline_class: Any = getattr(diffusers, index["_class_name"])
        with _without_warnings():
            pipe = pipeline_class.from_pretrained(folder, local_files_only=True, use_safetensors=True, **left_out)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        raise _broken(folder, error) from error
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module) and part.dtype != (dtype or torch.float32):
            part.to(dtype=dtype or torch.float32)
    return pipe if device is None else pipe.to(device)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Diffusers warns of an autoencoder of another class than the pipeline's usual one, which is meant here."""
    from diffusers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MissingExtraError(f"no model in {folder}: this installation has no weights; reinstall thg") from None
    except (OSError, ValueError) as error:
        raise _broken(folder, error) from error
    if not isinstance(index, dict):
        raise _broken(folder, TypeError("model_index.json is not an object"))
    return index


def _broken(folder: Path, error: Exception) -> THGError:
    reason = " ".join(str(error).split())[:300]
    return THGError(f"the model in {folder} is broken ({type(error).__name__}: {reason}); reinstall thg")
