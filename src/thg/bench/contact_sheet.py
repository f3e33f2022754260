"""The sheet: the same prompts across methods, each with its number of evaluations and a magnified region.

The region is the part of a picture in which the methods differ most, unless the configuration names one.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from thg.files import write_atomically
from thg.plots.colours import HARE, TORTOISE

SIDE = 160
GAP = 8
TEXT = 18
SHARE = 4
"""The magnified region is a quarter of the picture's side."""

Box = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class Column:
    """A method: its pictures, one a prompt, as (channels, height, width) bytes."""

    name: str
    nfe: float
    is_reference: bool
    pictures: list[torch.Tensor]


def draw_sheet(columns: list[Column], prompts: list[str], path: Path, region: tuple[int, ...] = ()) -> None:
    """Writes the sheet: a row for each prompt, a column for each method, the magnified region below each picture."""
    cell, row_height = SIDE + GAP, TEXT + 2 * SIDE + 2 * GAP
    sheet = Image.new("RGB", (GAP + cell * len(columns), TEXT + GAP + row_height * len(prompts)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, column in enumerate(columns):
        draw.text((GAP + number * cell, 3), _fit(draw, column.name, SIDE), "black", font=_font())
    for row, prompt in enumerate(prompts):
        top = TEXT + GAP + row * row_height
        draw.text((GAP, top), _fit(draw, prompt, cell * len(columns) - GAP), "black", font=_font())
        pictures = [column.pictures[row] for column in columns]
        height, width = pictures[0].shape[1:]
        box: Box = (region[0], region[1], region[2], region[3]) if region else most_different(pictures)
        box = (min(box[0], width - 1), min(box[1], height - 1), min(box[2], width), min(box[3], height))
        for number, (column, picture) in enumerate(zip(columns, pictures, strict=True)):
            left, upper = GAP + number * cell, top + TEXT
            image = _image(picture)
            sheet.paste(_enlarged(image), (left, upper))
            sheet.paste(_enlarged(image.crop(box)), (left, upper + SIDE + GAP // 2))
            _badge(draw, left, upper, column)
            _frame(draw, left, upper, box, image.size)
    buffer = BytesIO()
    sheet.save(buffer, "PNG")
    write_atomically(path, buffer.getvalue())


def most_different(pictures: list[torch.Tensor]) -> Box:
    """The square in which the pictures vary most."""
    stack = torch.stack([picture.float().mean(0) for picture in pictures])
    height, width = stack.shape[1:]
    side = max(1, min(height, width) // SHARE)
    variance = stack.var(0, unbiased=False)[None, None]
    scores = torch.nn.functional.avg_pool2d(variance, side, stride=1)[0, 0]
    top, left = divmod(int(scores.argmax()), scores.shape[1])
    return left, top, left + side, top + side


def _image(picture: torch.Tensor) -> Image.Image:
    return Image.fromarray(picture.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())


def _enlarged(image: Image.Image) -> Image.Image:
    small = min(image.size) < SIDE
    return image.resize((SIDE, SIDE), Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS)


def _frame(draw: ImageDraw.ImageDraw, left: int, upper: int, box: Box, size: tuple[int, int]) -> None:
    x, y = SIDE / size[0], SIDE / size[1]
    corners = [left + box[0] * x, upper + box[1] * y, left + box[2] * x - 1, upper + box[3] * y - 1]
    draw.rectangle(corners, outline=HARE, width=2)
    below = upper + SIDE + GAP // 2
    draw.rectangle([left, below, left + SIDE - 1, below + SIDE - 1], outline=HARE, width=2)


def _badge(draw: ImageDraw.ImageDraw, left: int, upper: int, column: Column) -> None:
    text = f"NFE {column.nfe:.0f}"
    width = draw.textlength(text, font=_font()) + 8
    draw.rectangle([left, upper, left + width, upper + TEXT], fill="#444444" if column.is_reference else TORTOISE)
    draw.text((left + 4, upper + 3), text, "white", font=_font())


def _fit(draw: ImageDraw.ImageDraw, text: str, width: int) -> str:
    if draw.textlength(text, font=_font()) <= width:
        return text
    while text and draw.textlength(text + "…", font=_font()) > width:
        text = text[:-1]
    return text + "…"


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(12)
