"""Statistics of a reference set, computed once and stored in a file.

`mu`, `sigma` and `n` for a Frechet distance, `features` for KID and CMMD; as safetensors (ours), or the npz files of
clean-fid (`mu` and `sigma`, or `feats`). npz files are read without pickle.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thg.files import write_atomically
from thg.prompts import DataError


def read_statistics(path: str | Path) -> dict[str, torch.Tensor]:
    """The tensors for a set metric's `use_statistics`."""
    path = Path(path)
    if path.suffix not in (".safetensors", ".npz"):
        raise DataError(f"{path} ends in {path.suffix!r}: statistics are read from .safetensors or .npz")
    try:
        statistics = load_file(path) if path.suffix == ".safetensors" else _read_npz(path)
    except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot read the statistics {path}: {error}") from error
    _check(statistics, path)
    return statistics


def write_statistics(path: str | Path, statistics: Mapping[str, torch.Tensor]) -> None:
    """Writes the result of a set metric's `statistics`, atomically."""
    path = Path(path)
    if path.suffix != ".safetensors":
        raise DataError(f"statistics are written as .safetensors, not as {path.name}")
    write_atomically(path, save({name: tensor.contiguous() for name, tensor in statistics.items()}))


def _read_npz(path: Path) -> dict[str, torch.Tensor]:
    with np.load(path, allow_pickle=False) as file:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(file[name])) for name in file.files}
    return {"features" if name == "feats" else name: tensor for name, tensor in tensors.items()}


def _check(statistics: Mapping[str, torch.Tensor], path: Path) -> None:
    names = set(statistics)
    if "features" in names:
        if statistics["features"].ndim != 2:
            raise DataError(
                f"{path}: features have shape {tuple(statistics['features'].shape)}, not (samples, features)"
            )
    elif names >= {"mu", "sigma"}:
        size = statistics["mu"].numel()
        if statistics["mu"].ndim != 1 or statistics["sigma"].shape != (size, size):
            raise DataError(
                f"{path}: mu of shape {tuple(statistics['mu'].shape)} and sigma of shape "
                f"{tuple(statistics['sigma'].shape)} do not belong together"
            )
    else:
        raise DataError(f"{path} has {sorted(names)}: statistics have mu and sigma (Frechet) or features (KID, CMMD)")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in statistics.values()):
        raise DataError(f"{path} holds NaN or infinity: compute the statistics again")
