"""Reference pictures and sounds from a folder, in batches. A broken file is skipped and counted, never fatal."""

from __future__ import annotations

import wave
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from PIL import Image

from thg.bench.data.errors import DataError
from thg.bench.metrics.batch import Batch

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})
SOUND_SUFFIXES = frozenset({".wav"})

Item = TypeVar("Item")


class ReferenceFolder(Generic[Item]):
    """Files of one kind below a folder, in the order of their names.

    `paths`: all of them. `broken`: those that could not be read, filled while the batches are walked through.
    """

    def __init__(self, folder: str | Path, suffixes: frozenset[str], read: Callable[[Path], Item]):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise DataError(f"there is no reference folder {self.folder}")
        self.paths = sorted(path for path in self.folder.rglob("*") if path.suffix.lower() in suffixes)
        if not self.paths:
            raise DataError(f"{self.folder} has no file that ends in {', '.join(sorted(suffixes))}")
        self.broken: list[Path] = []
        self._read = read

    def items(self, shard: int = 0, shards: int = 1) -> Iterator[Item]:
        """Every `shards`-th file from the `shard`-th on: the part of one of several processes."""
        self.broken = []
        mine = self.paths[shard::shards]
        for path in mine:
            try:
                item = self._read(path)
            except (OSError, EOFError, ValueError, SyntaxError, wave.Error, Image.DecompressionBombError):
                self.broken.append(path)
                continue
            yield item
        if mine and len(self.broken) == len(mine):
            raise DataError(f"none of the {len(mine)} files in {self.folder} could be read; the first is {mine[0]}")


class PictureFolder(ReferenceFolder[torch.Tensor]):
    """Pictures below a folder, as RGB bytes."""

    def __init__(self, folder: str | Path):
        super().__init__(folder, PICTURE_SUFFIXES, read_picture)

    def batches(self, size: int = 32, shard: int = 0, shards: int = 1) -> Iterator[Batch]:
        """Up to `size` pictures at a time; a picture of other measures starts a new batch."""
        waiting: list[torch.Tensor] = []
        for picture in self.items(shard, shards):
            if waiting and (len(waiting) == size or waiting[0].shape != picture.shape):
                yield Batch(torch.stack(waiting))
                waiting = []
            waiting.append(picture)
        if waiting:
            yield Batch(torch.stack(waiting))


class SoundFolder(ReferenceFolder[tuple[torch.Tensor, int]]):
    """Wav files below a folder, as mono."""

    def __init__(self, folder: str | Path):
        super().__init__(folder, SOUND_SUFFIXES, read_sound)

    def batches(self, shard: int = 0, shards: int = 1) -> Iterator[Batch]:
        """One sound at a time, since lengths differ."""
        for sound, rate in self.items(shard, shards):
            yield Batch(sound[None], sample_rate=rate)


def read_picture(path: Path) -> torch.Tensor:
    """One picture as (3, height, width) bytes."""
    with Image.open(path) as picture:
        return torch.from_numpy(np.array(picture.convert("RGB"))).permute(2, 0, 1).contiguous()


def read_sound(path: Path) -> tuple[torch.Tensor, int]:
    """One wav file of 8, 16, 24 or 32-bit integers: mono floats in [-1, 1], and the sample rate."""
    with wave.open(str(path)) as file:
        channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
        raw = np.frombuffer(file.readframes(file.getnframes()), dtype=np.uint8).reshape(-1, width)
    if len(raw) == 0:
        raise EOFError(f"{path} holds no sound")
    if width == 1:  # the only unsigned format
        values = (raw[:, 0].astype(np.float64) - 128) / 128
    else:
        padded = np.zeros((len(raw), 4), dtype=np.uint8)
        padded[:, 4 - width :] = raw
        values = padded.view("<i4")[:, 0].astype(np.float64) / 2**31
    return torch.from_numpy(values.reshape(-1, channels).mean(axis=1)).float(), rate
