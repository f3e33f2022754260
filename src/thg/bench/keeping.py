"""What is stored of a sample, how it is read, and the disk space of a run."""

from __future__ import annotations

import io
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from thg.bench.config import Storage
from thg.bench.data.references import read_sound
from thg.bench.errors import RunFolderError
from thg.bench.pipeline import Samples, decode
from thg.bench.store import Series, open_picture
from thg.media import png_bytes, wav_bytes

RECORD = 8192
"""Bytes of a record and of a timing on disk: a block each."""
SHARES = {"files": 0.65, "jpeg": 0.16}
"""File size per byte of a photograph's pixels, as PNG and as JPEG of quality 95."""
FEATURES = {"fid": 8192, "kid": 8192, "cmmd": 3072, "fad": 5120, "judge_frechet": 512}
"""Bytes of a sample's features, by the metric that takes them."""


def encoded(samples: Samples, place: int, storage: Storage, shown: bool) -> tuple[str, bytes | None]:
    """The file of one sample: its suffix and content; None if it is not kept. shown: the report shows it."""
    if samples.sample_rate is not None:
        keeps = storage.keep != "features"
        return ".wav", wav_bytes(samples.values[place].numpy(), samples.sample_rate) if keeps else None
    if storage.keep == "latents" and samples.latents is not None:
        return ".safetensors", save({"latents": samples.latents[place].contiguous()})
    pixels = samples.values[place].permute(1, 2, 0).numpy()
    if storage.keep == "jpeg":
        file = io.BytesIO()
        Image.open(io.BytesIO(png_bytes(pixels))).save(file, "JPEG", quality=storage.jpeg_quality)
        return ".jpg", file.getvalue()
    return ".png", png_bytes(pixels) if storage.keep == "files" or shown else None


def read_samples(series: Series, indices: Sequence[int], pipe: Any = None) -> Samples | None:
    """Samples from their files; None if some were not kept. pipe: decodes latents."""
    paths = [series.file(index) for index in indices]
    kept = [path for path in paths if path is not None]
    if len(kept) < len(paths):
        return None
    if kept[0].suffix == ".wav":
        sounds = [_sound(path) for path in kept]
        return Samples(torch.stack([sound for sound, _ in sounds]), sounds[0][1])
    return Samples(torch.stack([_bytes(read_picture(path, pipe)) for path in kept]))


def read_picture(path: Path, pipe: Any = None) -> Image.Image:
    """The picture in a file, or decoded from the latents in it."""
    if path.suffix != ".safetensors":
        return open_picture(path)
    if pipe is None:
        raise RunFolderError(f"{path} holds latents; thg bench decodes them, thg report does not")
    try:
        latents = load_file(path)["latents"]
    except (OSError, SafetensorError) as error:
        raise RunFolderError(f"cannot read {path} ({error}); delete its .json and run thg bench again") from None
    pixels = decode(pipe, latents[None])[0].float().cpu()
    values = (pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    return Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values)


def bytes_per_sample(samples: Samples, storage: Storage, metrics: Sequence[str]) -> float:
    """The disk space of such a sample, with its record and measurements."""
    values = samples.values[0]
    if samples.sample_rate is not None:
        content = 0.0 if storage.keep == "features" else 2.0 * values.numel()
    elif storage.keep == "latents":
        latents = samples.latents
        content = 0.0 if latents is None else float(latents[0].numel() * latents.element_size())
    else:
        content = values.numel() * SHARES.get(storage.keep, 0.0)
    return content + RECORD + sum(FEATURES.get(name, 64) for name in metrics)


def check_room(store: Path, samples: Samples, missing: int, storage: Storage, metrics: Sequence[str]) -> str:
    """The disk space needed for the missing samples and available; raises an error if it is too little."""
    needed = missing * bytes_per_sample(samples, storage, metrics)
    existing = next(folder for folder in (store, *store.resolve().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        small = missing * bytes_per_sample(samples, Storage(keep="features"), metrics)
        raise RunFolderError(
            f"{missing} samples take about {size(needed)} in {store}, but only {size(free)} are free; write "
            f"--keep jpeg or --keep features (about {size(small)}), or choose another disk with --store"
        )
    return f"{missing} samples to make, about {size(needed)} in {store}; {size(free)} are free"


def size(count: float) -> str:
    """A number of bytes in readable units."""
    power = min(4, int(math.log(count, 1000))) if count >= 1 else 0
    return f"{count / 1000**power:.{0 if power < 2 else 1}f} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"


def _sound(path: Path) -> tuple[torch.Tensor, int]:
    try:
        return read_sound(path)
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {path} ({error}); delete its .json and run thg bench again") from None


def _bytes(picture: Image.Image) -> torch.Tensor:
    """A picture as (channels, height, width) bytes."""
    pixels = np.array(picture)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()
