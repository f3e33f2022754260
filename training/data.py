"""Fashion-MNIST: where its files are, how to read them, and the tensor form that every stage uses."""

import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where the Debian package `dataset-fashion-mnist` puts the four files."""

BORDER = 2
"""Black pixels around the 28x28 originals, so that sides are 32 and halve evenly."""


def read_idx(path: Path) -> np.ndarray:
    """Read one gzipped idx file of unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    if content[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path} is not an idx file of unsigned bytes")
    dimensions = content[3]
    shape = np.frombuffer(content, dtype=">u4", count=dimensions, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load_split(folder: Path, split: str, limit: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures as floats in [-1, 1], shape (n, 1, 32, 32), white on black, and their labels 0..9.

    `split` is "train" (60,000) or "t10k" (10,000); `limit` keeps only the first ones.
    """
    if not folder.is_dir():
        raise SystemExit(
            f"no Fashion-MNIST in {folder}: install the Debian package dataset-fashion-mnist or pass --data FOLDER"
        )
    raw = read_idx(folder / f"{split}-images-idx3-ubyte.gz")[:limit]
    labels = read_idx(folder / f"{split}-labels-idx1-ubyte.gz")[:limit]
    pictures = torch.from_numpy(raw.astype(np.float32)).div_(127.5).sub_(1.0)[:, None]
    return F.pad(pictures, (BORDER,) * 4, value=-1.0), torch.from_numpy(labels.astype(np.int64))
