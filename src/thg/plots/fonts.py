"""A font with the letters of a text: Pillow's own if possible, otherwise matplotlib's or one of the system."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont

USUAL = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "Arial Unicode.ttf", "arial.ttf")
UNASSIGNED = "\U0010ffff"  # no font has it: drawn as the box for a missing character


def font_for(text: str, size: int) -> Font:
    """The first font that has every letter of the text; if none does, the first of those that lack the fewest."""
    best: Font = ImageFont.load_default(size)
    fewest = _lacking(best, text)
    for path in _candidates():
        if not fewest:
            break
        font = _opened(path, size)
        if font is not None and (lacking := _lacking(font, text)) < fewest:
            best, fewest = font, lacking
    return best


def _lacking(font: Font, text: str) -> int:
    """How many different letters of the text the font does not have."""
    missing = bytes(font.getmask(UNASSIGNED))
    return sum(bytes(font.getmask(letter)) == missing for letter in set(text) if not letter.isspace())


def _candidates() -> Iterator[str]:
    try:
        import matplotlib

        yield str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")
    except ImportError:
        pass
    yield from USUAL
    yield from _system_fonts()


@cache
def _system_fonts() -> tuple[str, ...]:
    if sys.platform == "win32":
        folders = [Path(os.environ.get("WINDIR", "C:/Windows")) / "Fonts"]
    elif sys.platform == "darwin":
        folders = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), Path.home() / "Library" / "Fonts"]
    else:
        folders = [Path("/usr/share/fonts"), Path("/usr/local/share/fonts"), Path.home() / ".local" / "share" / "fonts"]
    files = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*"))]
    return tuple(str(path) for path in files if path.suffix.lower() in (".ttf", ".ttc", ".otf"))


def _opened(path: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(path, size)
    except OSError:
        return None
