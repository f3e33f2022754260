"""A labelled sheet of pictures: a row for each prompt, a column for each method."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from thg.plots.colours import HARE, TORTOISE

CELL, GAP, MARGIN, LABEL, HEAD = 160, 12, 24, 190, 64
INK, FAINT, PAPER = (24, 24, 32), (110, 110, 122), (255, 255, 255)


@dataclass(frozen=True)
class Column:
    """One method: its name, what it has cost, and a picture for each row."""

    title: str
    caption: str
    pictures: list[Image.Image]


def sheet(labels: list[str], columns: list[Column]) -> Image.Image:
    """All columns side by side, under their titles and captions."""
    width = 2 * MARGIN + LABEL + len(columns) * (CELL + GAP)
    height = 2 * MARGIN + HEAD + len(labels) * (CELL + GAP)
    page = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(page)
    bold, plain = ImageFont.load_default(17), ImageFont.load_default(13)
    for c, column in enumerate(columns):
        x = MARGIN + LABEL + c * (CELL + GAP)
        draw.text((x, MARGIN), column.title, font=bold, fill=TORTOISE if c == 0 else HARE)
        draw.text((x, MARGIN + 26), column.caption, font=plain, fill=FAINT)
        for r, picture in enumerate(column.pictures):
            page.paste(_fit(picture), (x, MARGIN + HEAD + r * (CELL + GAP)))
    for r, label in enumerate(labels):
        lines = _wrapped(label, plain, LABEL - 16)
        y = MARGIN + HEAD + r * (CELL + GAP) + CELL // 2 - 9 * len(lines)
        draw.multiline_text((MARGIN, y), "\n".join(lines), font=plain, fill=INK)
    return page


def _fit(picture: Image.Image) -> Image.Image:
    """The picture in a square cell: small ones are enlarged without smoothing, so that pixels stay visible."""
    scale = CELL / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    method = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    cell = Image.new("RGB", (CELL, CELL), PAPER)
    cell.paste(picture.convert("RGB").resize(size, method), ((CELL - size[0]) // 2, (CELL - size[1]) // 2))
    return cell


def _wrapped(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines[:4]
