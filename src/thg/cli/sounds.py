"""Sounds in a comparison: their spectrograms as pictures, and their files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from thg.cli import files
from thg.models.pretrained import sampling_rate
from thg.plots.spectrogram import spectrogram


def pictures(items: list[Any], pipe: Any) -> list[Image.Image]:
    """A spectrogram for each sound."""
    return [spectrogram(np.asarray(item, dtype=np.float64), sampling_rate(pipe)) for item in items]


def existing(sheet: Path) -> list[Path]:
    """Sound files of an earlier comparison with this sheet."""
    return sorted(sheet.parent.glob(f"{sheet.stem}-*.wav"))


def save_all(sheet: Path, results: dict[str, list[Any]], pipe: Any) -> str:
    """Writes each sound next to the sheet, as name-method-0.wav. Returns what was written, in a sentence."""
    count = 0
    for title, items in results.items():
        method = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
        for number, item in enumerate(items):
            files.save_sound(sheet.with_name(f"{sheet.stem}-{method}-{number}.wav"), item, sampling_rate(pipe))
            count += 1
    return f"{sheet.with_name(sheet.stem)}-*.wav: {count} sounds"
