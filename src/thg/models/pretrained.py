"""Loads a pipeline from a hub id or a folder that `save_pretrained` wrote. Weights are safetensors only."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from thg.distribution import missing
from thg.errors import THGError, UnsupportedPipelineError


def pretrained(source: str, dtype: torch.dtype, *, variant: str | None = None, leave_out: Iterable[str] = ()) -> Any:
    """The pipeline, or a one-line error if it cannot be loaded.

    variant: of the weight files, such as "fp16".
    leave_out: components not to load, such as "safety_checker". Those that a folder was saved without are never
        loaded.
    """
    try:
        from diffusers import DiffusionPipeline
    except ImportError as error:
        raise missing("loading a model", "diffusers") from error
    absent = dict.fromkeys([*leave_out, *_saved_without(Path(source))])
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*torch_dtype.*", FutureWarning)  # older releases have no other name
            return DiffusionPipeline.from_pretrained(
                source, torch_dtype=dtype, variant=variant, use_safetensors=True, **absent
            )
    except Exception as error:  # the hub client, safetensors and json raise different errors
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise THGError(
            f"the model {source!r} cannot be loaded ({reason}); it must be eps, flow, the hub id of a pipeline with "
            "safetensors weights (once: hf download ID), or a folder that save_pretrained wrote"
        ) from error


def _saved_without(folder: Path) -> list[str]:
    """The components that a folder lists as absent; diffusers itself accepts that for some classes only."""
    if not folder.is_dir():
        return []
    try:
        index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
        return [name for name, origin in index.items() if origin == [None, None]]
    except FileNotFoundError:
        raise THGError(f"{folder} is not a diffusers pipeline: there is no model_index.json in it") from None
    except (OSError, ValueError, AttributeError) as error:
        raise THGError(f"{folder / 'model_index.json'} cannot be read ({error})") from error


def sampling_rate(pipe: Any) -> int:
    """The sampling rate of the sounds that a pipeline makes."""
    for part in (getattr(pipe, "vocoder", None), getattr(pipe, "vae", None)):
        rate = getattr(getattr(part, "config", None), "sampling_rate", None)
        if rate:
            return int(rate)
    raise UnsupportedPipelineError(f"{type(pipe).__name__} has no sampling rate for its sounds")
