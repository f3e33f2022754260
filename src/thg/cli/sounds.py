"""Sounds in a comparison: their spectrograms as pictures, and their distance."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from thg.models.pretrained import sampling_rate
from thg.plots.pictures import spectrogram


def spectrograms(items: list[Any], references: list[Any], pipe: Any) -> list[Image.Image]:
    """A spectrogram for each sound, relative to the loudest sample of its reference."""
    sounds = [np.asarray(item, dtype=np.float64) for item in items]
    peaks = [float(np.abs(reference).max()) or 1.0 for reference in references]
    return [spectrogram(sound / peak, sampling_rate(pipe)) for sound, peak in zip(sounds, peaks, strict=True)]
