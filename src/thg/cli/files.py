"""Writing results: atomically, under unique names, with their settings as metadata."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from thg.errors import THGError
from thg.files import atomic_target, write_atomically
from thg.media import png_text, wav_bytes

SUFFIX = {"image": ".png", "audio": ".wav", "video": ".gif"}
NAMES = {"image": "pictures", "audio": "sounds", "video": "videos"}


def check_writable(path: Path) -> None:
    """Raises an error before the work starts if there could be no file of this name."""
    folder = path.parent
    if path.is_dir():
        raise THGError(f"{path} is a folder; write -o {path / 'picture.png'}")
    if not folder.is_dir():
        raise THGError(f"the folder {folder} does not exist; write mkdir -p {folder} first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise THGError(f"{path} cannot be written; choose another place with -o")


def check_format(path: Path, kind: str) -> None:
    """Raises an error if results of this kind ("image", "audio" or "video") cannot be saved under this name."""
    suffix = path.suffix.lower()
    known = Image.registered_extensions().get(suffix) in (Image.SAVE_ALL if kind == "video" else Image.SAVE)
    if not (suffix == SUFFIX[kind] if kind == "audio" else known):
        better = path.with_suffix(SUFFIX[kind])
        raise THGError(f"{path}: there is no format {suffix!r} for {NAMES[kind]}; write -o {better}")


def check_free(paths: list[Path], force: bool) -> None:
    """Raises an error before the work starts if these files exist and must not be replaced."""
    if (taken := [path for path in paths if path.exists()]) and not force:
        more = f" (and {len(taken) - 1} more)" if len(taken) > 1 else ""
        raise THGError(f"{taken[0]}{more} exists already; write --force to replace it, or another -o")


def numbered(path: Path, count: int) -> list[Path]:
    """The path itself for one result, name-0.png, name-1.png, ... for several."""
    return [path] if count == 1 else [path.with_name(f"{path.stem}-{i}{path.suffix}") for i in range(count)]


def free(path: Path, count: int) -> Path:
    """The path, or the first of name_2.png, name_3.png, ... for which nothing has to be replaced."""
    others = (path.with_name(f"{path.stem}_{i}{path.suffix}") for i in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not any(each.exists() for each in numbered(p, count)))


def save_picture(path: Path, picture: Image.Image, how: dict[str, Any]) -> None:
    """A PNG with the text chunk "thg": how it was made, as JSON. Other formats are saved without it."""
    options: dict[str, Any] = {"pnginfo": png_text(how)} if path.suffix.lower() == ".png" else {}
    with atomic_target(path) as target:
        picture.save(target, **options)


def save_sound(path: Path, sound: Any, rate: int) -> None:
    """A WAV file of 16 bits."""
    samples = np.asarray(torch.as_tensor(sound).float().cpu().numpy() if isinstance(sound, torch.Tensor) else sound)
    write_atomically(path, wav_bytes(samples.squeeze(), rate))


def save_frames(path: Path, frames: Any, fps: int = 8) -> None:
    """An animated GIF (or WebP) of the frames of a video."""
    pictures = frames_of(frames)
    with atomic_target(path) as target:
        pictures[0].save(target, save_all=True, append_images=pictures[1:], duration=1000 // fps, loop=0)


def frames_of(video: Any) -> list[Image.Image]:
    """The frames of a video as pictures, whatever type the pipeline has made."""
    return [frame if isinstance(frame, Image.Image) else _picture(frame) for frame in video]


def _picture(frame: Any) -> Image.Image:
    values = np.asarray(frame.float().cpu().numpy() if isinstance(frame, torch.Tensor) else frame)
    return Image.fromarray((values.clip(0, 1) * 255).round().astype("uint8"))
