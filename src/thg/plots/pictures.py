"""Pictures by Pillow: a labelled sheet with a row for each prompt and a column for each method, and spectrograms.

Where the pictures of a row hardly differ, a part of each can be shown enlarged below it; by default the part in which
they differ most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from thg.plots import HARE, TORTOISE

CELL, GAP, MARGIN, LABEL, HEAD = 192, 12, 24, 190, 108
TITLE, TEXT, LINE = 17, 13, 18  # sizes of the letters, height of a line
INK, FAINT, PAPER = (24, 24, 32), (110, 110, 122), (255, 255, 255)
GAIN = 10
"""How many times a difference is shown."""
DETAIL = 4
"""The enlarged part is a quarter of the picture's side."""

FONTS = (  # which Pillow finds in the folders of the system
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "Arial Unicode.ttf"),
    *("arial.ttf", "msgothic.ttc", "PingFang.ttc"),
)
UNASSIGNED = "\U0010ffff"  # no font has it: drawn as the box for a missing character
WINDOW, LOWEST, RANGE = 0.064, 50.0, 70.0  # of a spectrogram: seconds, hertz, decibels from black to white (full scale)

Box = tuple[int, ...]  # left, top, right, bottom
Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


@dataclass(frozen=True)
class Column:
    """One method: its name, up to three lines below it, and a picture for each row."""

    title: str
    caption: str
    pictures: list[Image.Image]


def sheet(labels: Sequence[str], columns: Sequence[Column], details: Sequence[Box] = ()) -> Image.Image:
    """All columns side by side, under their titles and captions. details: for each row, the part to enlarge."""
    row_height = (2 * CELL + 2 * GAP) if details else CELL + GAP
    width = 2 * MARGIN + LABEL + len(columns) * (CELL + GAP)
    page = Image.new("RGB", (width, 2 * MARGIN + HEAD + len(labels) * row_height), PAPER)
    draw = ImageDraw.Draw(page)
    bold = font_for("".join(column.title for column in columns), TITLE)
    plain = font_for("".join(column.caption for column in columns), TEXT)
    for c, column in enumerate(columns):
        x = MARGIN + LABEL + c * (CELL + GAP)
        title = _wrapped(column.title, bold, CELL, most=2)
        caption = [_shortened(line, plain, CELL) for line in column.caption.splitlines()]
        below = MARGIN + HEAD - LINE * (1 + len(caption)) + 8
        draw.multiline_text(
            (x, below - 22 * len(title)), "\n".join(title), font=bold, fill=TORTOISE if c == 0 else HARE
        )
        draw.multiline_text((x, below), "\n".join(caption), font=plain, fill=FAINT)
        for r, picture in enumerate(column.pictures):
            y = MARGIN + HEAD + r * row_height
            page.paste(_fit(picture), (x, y))
            if details:
                _enlarge(page, draw, picture, details[r], x, y)
    for r, label in enumerate(labels):
        own = font_for(label, TEXT)  # a label with rare letters does not change the others
        lines = _wrapped(label, own, LABEL - 16, most=6)
        y = MARGIN + HEAD + r * row_height + CELL // 2 - 9 * len(lines)
        draw.multiline_text((MARGIN, y), "\n".join(lines), font=own, fill=INK)
    return page


def difference_of(picture: Image.Image, reference: Image.Image) -> Image.Image:
    """The absolute difference of two pictures of one size, enlarged GAIN times; white is none."""
    ours, theirs = (np.asarray(each.convert("RGB"), dtype=np.int32) for each in (picture, reference))
    return Image.fromarray((255 - GAIN * np.abs(ours - theirs)).clip(0, 255).astype(np.uint8))


def most_different(pictures: Sequence[Image.Image]) -> Box:
    """The square in which the pictures vary most."""
    stack = torch.stack([torch.from_numpy(np.asarray(picture.convert("L"), dtype=np.float32)) for picture in pictures])
    height, width = stack.shape[1:]
    side = max(1, min(height, width) // DETAIL)
    variance = stack.var(0, unbiased=False)[None, None]
    scores = torch.nn.functional.avg_pool2d(variance, side, stride=1)[0, 0]
    top, left = divmod(int(scores.argmax()), scores.shape[1])
    return left, top, left + side, top + side


def _enlarge(page: Image.Image, draw: ImageDraw.ImageDraw, picture: Image.Image, box: Box, x: int, y: int) -> None:
    """A part of the picture below it, both framed."""
    width, height = picture.size
    left, top = min(box[0], width - 1), min(box[1], height - 1)
    right, bottom = max(left + 1, min(box[2], width)), max(top + 1, min(box[3], height))
    below = y + CELL + GAP // 2
    page.paste(_fit(picture.crop((left, top, right, bottom))), (x, below))
    draw.rectangle([x, below, x + CELL - 1, below + CELL - 1], outline=HARE, width=2)
    scale = CELL / max(picture.size)
    across, down = x + (CELL - width * scale) / 2, y + (CELL - height * scale) / 2
    corners = [across + left * scale, down + top * scale, across + right * scale - 1, down + bottom * scale - 1]
    draw.rectangle(corners, outline=HARE, width=2)


def _fit(picture: Image.Image) -> Image.Image:
    """The picture in a square cell: small ones are enlarged without smoothing, so that pixels stay visible."""
    method = Image.Resampling.NEAREST if max(picture.size) < CELL else Image.Resampling.LANCZOS
    return ImageOps.pad(picture.convert("RGB"), (CELL, CELL), method, PAPER)


def _shortened(text: str, font: Font, width: int) -> str:
    """As much of the text as fits into the width."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


def _wrapped(text: str, font: Font, width: int, most: int) -> list[str]:
    """The text in lines of this width, at most so many; words that are wider than a line are broken."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width:
            lines[-1] = longer
            continue
        lines += [""] if lines[-1] else []
        for letter in word:
            if font.getlength(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines if len(lines) <= most else [*lines[: most - 1], _shortened(" ".join(lines[most - 1 :]), font, width)]


# -- letters: prompts may be in any language


def font_for(text: str, size: int) -> Font:
    """Pillow's own font; if it lacks letters of the text, the first of those that lack the fewest."""
    usual = ImageFont.load_default(size)
    if not _lacking(usual, text):
        return usual
    return min([usual, *_other_fonts(size)], key=lambda font: _lacking(font, text))


def _lacking(font: Font, text: str) -> int:
    """How many different letters of the text the font does not have."""
    missing = bytes(font.getmask(UNASSIGNED))
    return sum(bytes(font.getmask(letter)) == missing for letter in set(text) if not letter.isspace())


def _other_fonts(size: int) -> Iterator[Font]:
    """matplotlib's, if it is installed, and those of the system."""
    try:
        import matplotlib

        shipped = [str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")]
    except ImportError:
        shipped = []
    for path in (*shipped, *FONTS):
        try:
            yield ImageFont.truetype(path, size)
        except OSError:
            continue


# -- sounds


def spectrogram(sound: NDArray[np.floating], rate: int) -> Image.Image:
    """A sound as a picture: time to the right, pitch upwards on a logarithmic scale, loud is bright.

    sound: samples in [-1, 1], or channels of them, of which the mean is taken.
    """
    samples = np.atleast_2d(np.asarray(sound, dtype=np.float64)).mean(0)
    window = max(2, round(WINDOW * rate))
    hann = np.hanning(window)
    padded = np.pad(samples, window // 2)
    starts = np.linspace(0, len(padded) - window, CELL).round().astype(int)
    frames = np.stack([padded[start : start + window] * hann for start in starts])
    amplitudes = np.abs(np.fft.rfft(frames, axis=1)) * (2 / hann.sum())
    bins = np.geomspace(LOWEST, rate / 2, CELL) / rate * window
    values = np.stack([np.interp(bins, np.arange(amplitudes.shape[1]), frame) for frame in amplitudes], axis=1)
    decibels = 20 * np.log10(values.clip(10 ** (-RANGE / 20)))
    bright = (1 + decibels / RANGE).clip(0, 1)[::-1]
    # from black over blue, red and orange to white
    colours = np.array([[8, 8, 24], [40, 30, 130], [190, 40, 90], [250, 160, 40], [255, 255, 240]])
    places = np.linspace(0, 1, len(colours))
    channels = [np.interp(bright, places, colours[:, channel]) for channel in range(3)]
    return Image.fromarray(np.stack(channels, axis=-1).round().astype(np.uint8))
