"""Reference pictures and sounds from files. A broken file is skipped and counted, never fatal."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from thg.bench.metrics.batch import Batch
from thg.prompts import DataError

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})
SOUND_SUFFIXES = frozenset({".wav"})
READERS = 4
"""Threads that decode files."""


def files_below(folder: Path) -> list[Path]:
    """All pictures and sounds below a folder, in the order of their names."""
    suffixes = PICTURE_SUFFIXES | SOUND_SUFFIXES
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in suffixes)


def read_references(paths: Sequence[Path]) -> tuple[list[int], list[Batch]]:
    """The indices of the readable files, and these files in batches: all pictures, or the sounds of one sample rate.

    Pictures of a batch may differ in size. The indices are in the order of the batches.
    """
    with ThreadPoolExecutor(READERS) as pool:
        read = list(pool.map(_read, paths))
    places: list[int] = []
    batches: list[Batch] = []
    for rate in dict.fromkeys(item[1] for item in read if item is not None):
        good = [(place, item[0]) for place, item in enumerate(read) if item is not None and item[1] == rate]
        places += [place for place, _ in good]
        batches.append(Batch([sample for _, sample in good], sample_rate=rate))
    return places, batches


def _read(path: Path) -> tuple[torch.Tensor, int | None] | None:
    try:
        return read_sound(path) if path.suffix.lower() in SOUND_SUFFIXES else (read_picture(path), None)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return None


def read_picture(path: Path) -> torch.Tensor:
    """One picture as (3, height, width) bytes."""
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


def read_sound(path: Path) -> tuple[torch.Tensor, int]:
    """One wav file of 8, 16, 24 or 32-bit integers: mono floats in [-1, 1], and the sample rate."""
    try:
        with wave.open(str(path)) as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            raw = np.frombuffer(file.readframes(file.getnframes()), dtype=np.uint8).reshape(-1, width)
    except (wave.Error, EOFError) as error:
        raise DataError(f"{path} is not a wav file ({error})") from None
    if len(raw) == 0:
        raise DataError(f"{path} contains no sound")
    if width == 1:  # the only unsigned format
        values = (raw[:, 0].astype(np.float64) - 128) / 128
    else:
        padded = np.zeros((len(raw), 4), dtype=np.uint8)
        padded[:, 4 - width :] = raw
        values = padded.view("<i4")[:, 0].astype(np.float64) / 2**31
    return torch.from_numpy(values.reshape(-1, channels).mean(axis=1)).float(), rate
