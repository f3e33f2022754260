"""Networks of the metrics that come from the Hugging Face hub through transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thg.distribution import missing
from thg.errors import MissingExtraError


def transformers_class(name: str, metric: str) -> Any:
    """A class of transformers, imported when it is first needed."""
    try:
        import transformers
    except ImportError as error:
        raise missing(metric, "diffusers") from error
    return getattr(transformers, name)


def from_hub(load: Callable[[str], Any], source: str, metric: str) -> Any:
    """`load(source)`, or the error that says which model is missing; `source` is a hub id or a folder."""
    try:
        return load(source)
    except (OSError, ValueError, ImportError) as error:
        cause = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MissingExtraError(
            f"{metric} needs the model {source}, which could not be loaded ({cause}). "
            f"Download it once with: hf download {source}"
        ) from error


def load_model(class_name: str, source: str, metric: str, device: str) -> Any:
    """A pretrained model in evaluation mode."""
    model_class = transformers_class(class_name, metric)
    return from_hub(model_class.from_pretrained, source, metric).eval().to(device)


def image_processor_class(name: str, metric: str) -> Any:
    """The processor that resizes with PIL: transformers 5 has it under a separate name, 4 under the plain one."""
    try:
        return transformers_class(f"{name}Pil", metric)
    except AttributeError:
        return transformers_class(name, metric)


def pooled(output: Any) -> torch.Tensor:
    """The projected embedding: transformers 4 returns the tensor itself, 5 an object that contains it."""
    embedding: torch.Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
    return embedding
