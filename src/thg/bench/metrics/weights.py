"""Locates and reads the networks of the metrics: safetensors or plain tensors, never pickle."""

from __future__ import annotations

import hashlib
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from thg.distribution import missing
from thg.errors import MissingExtraError


def cache_folder() -> Path:
    """The default folder of weights files: the user's cache folder, ~/.cache/thg on Linux."""
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise missing("finding the networks of the metrics", "metrics") from error
    return Path(user_cache_path("thg", appauthor=False))


def require_file(path: Path, metric: str, how_to_get: str) -> Path:
    """`path`, or the error that says which file is missing and how to get it."""
    if not path.is_file():
        raise MissingExtraError(f"{metric} needs the file {path}, which does not exist. {how_to_get}")
    return path


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a .safetensors file, or of a .pt/.pth file that holds nothing but tensors."""
    try:
        if path.suffix == ".safetensors":
            tensors: dict[str, torch.Tensor] = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise MissingExtraError(f"{path} holds more than tensors, or is not a weights file: refused") from error
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError) as error:
        raise MissingExtraError(f"{path} is not a readable weights file ({error}): download it again") from error
    return tensors


def load_into(network: torch.nn.Module, tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Fill a network; the error for a file of another network names the first difference."""
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise MissingExtraError(f"{path} holds the weights of another network: {str(error)[:300]}") from error


def sha256(path: Path) -> str:
    """Digest of a file, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
