"""Results as files: atomically, under unique names, with their settings as metadata."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

from PIL import Image

from thg.errors import THGError
from thg.files import atomic_target, write_atomically
from thg.media import Array, Output, picture, png_text, wav_bytes

SUFFIX = {"image": ".png", "audio": ".wav", "video": ".gif"}
NAMES = {"image": "pictures", "audio": "sounds", "video": "videos"}


def check_writable(path: Path) -> None:
    """Raises an error before the work starts if there could be no file of this name."""
    folder = path.parent
    if path.is_dir():
        raise THGError(f"{path} is a folder; name a file in it")
    if not folder.is_dir():
        raise THGError(f"the folder {folder} does not exist; write mkdir -p {folder} first")
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise THGError(f"{path} cannot be written; choose another place")


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


def save(path: Path, output: Output, number: int, how: dict[str, Any], enlarge: int = 1) -> None:
    """One of the results: a picture, a WAV file of 16 bits, or an animated GIF (or WebP) of the frames of a video."""
    item = output.items[number]
    if output.kind == "audio":
        write_atomically(path, wav_bytes(item.squeeze(), output.rate))
    elif output.kind == "image":
        shown = picture(item)
        size = enlarge * shown.width, enlarge * shown.height
        save_picture(path, shown.resize(size, Image.Resampling.NEAREST), how)
    else:
        first, *others = map(picture, item)
        with atomic_target(path) as target:
            first.save(target, save_all=True, append_images=others, duration=1000 // output.rate, loop=0)


def save_picture(path: Path, shown: Image.Image, how: dict[str, Any]) -> None:
    """A PNG with the text chunk "thg": how it was made, as JSON. Other formats are saved without it."""
    options: dict[str, Any] = {"pnginfo": png_text(how)} if path.suffix.lower() == ".png" else {}
    with atomic_target(path) as target:
        shown.save(target, **options)


def four_frames(video: Array) -> Image.Image:
    """The first frame of a video, the last, and two between them, as a square."""
    chosen = [picture(video[round(i * (len(video) - 1) / 3)]) for i in range(4)]
    width, height = chosen[0].size
    page = Image.new("RGB", (2 * width, 2 * height))
    for i, frame in enumerate(chosen):
        page.paste(frame, (i % 2 * width, i // 2 * height))
    return page
