"""A font with the letters of a text: Pillow's own if possible, otherwise matplotlib's or one of the system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from PIL import ImageFont

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont

USUAL = (  # which Pillow finds in the folders of the system
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "Arial Unicode.ttf"),
    *("arial.ttf", "msgothic.ttc", "PingFang.ttc"),
)
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


def _opened(path: str, size: int) -> Font | None:
    try:
        return ImageFont.truetype(path, size)
    except OSError:
        return None
