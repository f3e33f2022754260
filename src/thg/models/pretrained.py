"""Loads a pipeline from a hub id, a folder that `save_pretrained` wrote, or a single file; safetensors only."""

from __future__ import annotations

import importlib.util
import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

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
            "safetensors weights (once: hf download ID), a folder that save_pretrained wrote, or a .safetensors file"
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


def is_single_file(source: str) -> bool:
    """Does this name one file with all weights, as artists share them?"""
    return Path(source).suffix.lower() in (".safetensors", ".ckpt", ".pt", ".pth", ".bin")


def single_file(source: str, dtype: torch.dtype, *, config: str | None = None) -> Any:
    """The pipeline whose weights are in one file, in the layout of the model's authors.

    config: a folder (or hub id) of a diffusers pipeline of the same kind, which has the tokenizers and the sizes of the
        networks, and the components that the file lacks. By default that of the model that the file seems to be made
        from, which the hub's client downloads once, without weights.
    """
    path = Path(source)
    if path.suffix.lower() != ".safetensors":
        raise THGError(f"{source} may hold a pickle, which can run any code when it is read; get it as .safetensors")
    try:
        import diffusers
        from diffusers.loaders.single_file_utils import fetch_diffusers_config
    except ImportError as error:
        raise missing("loading a model", "diffusers") from error
    weights = _shapes(path)
    if any("lora" in name for name in weights):
        raise THGError(f"{source} is a LoRA, which changes a model: write --model MODEL --lora {source}")
    known: str = config or fetch_diffusers_config(weights)["pretrained_model_name_or_path"]
    _refuse_pickles(Path(known))
    try:
        name = diffusers.DiffusionPipeline.load_config(known)["_class_name"]
    except Exception as error:  # the hub client and json raise different errors
        raise THGError(
            f"{source} needs the configuration (tokenizers and sizes, no weights) of {known}, which cannot be read "
            "here; with a network it is downloaded once, or write --config FOLDER, a diffusers model of the same kind"
        ) from error
    try:
        return getattr(diffusers, name).from_single_file(source, config=known, torch_dtype=dtype)
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise THGError(f"{source} cannot be loaded as {name} with the configuration of {known} ({reason})") from error


def _shapes(path: Path) -> dict[str, torch.Tensor]:
    """The names and shapes of the tensors in a file, without their values."""
    if not path.is_file():
        raise THGError(f"there is no file {path}")
    try:
        with safe_open(str(path), framework="pt") as file:
            return {name: torch.empty(file.get_slice(name).get_shape(), device="meta") for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise THGError(f"{path} is not a complete safetensors file ({error})") from error


def _refuse_pickles(folder: Path) -> None:
    """Components that the file lacks come from here, and not every loader prefers safetensors."""
    for path in folder.glob("*/*.bin") if folder.is_dir() else ():
        if not list(path.parent.glob("*.safetensors")):
            raise THGError(f"{path} is a pickle, which can run any code when it is read; save it as .safetensors")


def add_loras(pipe: Any, loras: Iterable[tuple[Path, float]]) -> None:
    """Loads LoRA files, each with its scale."""
    scales: dict[str, float] = {}
    for path, scale in loras:
        if importlib.util.find_spec("peft") is None:
            raise missing("--lora", "lora")
        _shapes(path)  # a missing, damaged or pickled file
        name = f"lora_{len(scales)}"
        try:
            pipe.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=name, use_safetensors=True)
        except Exception as error:  # of torch, of peft, of a pipeline class without LoRA
            reason = " ".join(str(error).split())[:200]
            raise THGError(f"{path} does not fit {type(pipe).__name__} ({reason})") from error
        if not any(name in names for names in pipe.get_list_adapters().values()):
            raise THGError(f"{path} has no weights for {type(pipe).__name__}: it was made for another kind of model")
        scales[name] = scale
    if scales:
        pipe.set_adapters(list(scales), list(scales.values()))


def image_to_image(pipe: Any) -> Any:
    """The same components as a pipeline that starts from a picture."""
    from diffusers import AutoPipelineForImage2Image

    try:
        return AutoPipelineForImage2Image.from_pipe(pipe)
    except ValueError:
        raise UnsupportedPipelineError(
            f"diffusers has no image-to-image variant of {type(pipe).__name__}; leave --image out"
        ) from None


def sampling_rate(pipe: Any) -> int:
    """The sampling rate of the sounds that a pipeline makes."""
    for part in (getattr(pipe, "vocoder", None), getattr(pipe, "vae", None)):
        rate = getattr(getattr(part, "config", None), "sampling_rate", None)
        if rate:
            return int(rate)
    raise UnsupportedPipelineError(f"{type(pipe).__name__} has no sampling rate for its sounds")
