"""Sounds in a comparison: their spectrograms as pictures, and their distance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from thg.models.pretrained import sampling_rate
from thg.plots.spectrogram import spectrogram


def pictures(items: list[Any], references: list[Any], pipe: Any) -> list[Image.Image]:
    """A spectrogram for each sound, relative to the loudest sample of its reference."""
    sounds = [np.asarray(item, dtype=np.float64) for item in items]
    peaks = [float(np.abs(reference).max()) or 1.0 for reference in references]
    return [spectrogram(sound / peak, sampling_rate(pipe)) for sound, peak in zip(sounds, peaks, strict=True)]


def snr(sound: ArrayLike, reference: ArrayLike) -> float:
    """Signal-to-noise ratio in decibels; infinite for identical sounds."""
    wanted = np.asarray(reference, dtype=np.float64)
    noise = float(np.sum((np.asarray(sound, dtype=np.float64) - wanted) ** 2))
    signal = float(np.sum(wanted**2))
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf
