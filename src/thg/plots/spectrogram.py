"""The spectrogram of a sound as a picture: time to the right, pitch upwards on a logarithmic scale, loud is bright."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 192
"""Pixels, both ways: as the cells of a sheet."""
WINDOW = 0.064
LOWEST = 50.0
"""In seconds and hertz."""
RANGE = 70.0
"""Decibels between black and white; white is full scale."""


def spectrogram(sound: NDArray[np.floating], rate: int) -> Image.Image:
    """The picture of one sound: samples in [-1, 1], or channels of them, of which the mean is taken."""
    samples = np.atleast_2d(np.asarray(sound, dtype=np.float64)).mean(0)
    window = max(2, round(WINDOW * rate))
    hann = np.hanning(window)
    padded = np.pad(samples, window // 2)
    starts = np.linspace(0, len(padded) - window, SIDE).round().astype(int)
    frames = np.stack([padded[start : start + window] * hann for start in starts])
    amplitudes = np.abs(np.fft.rfft(frames, axis=1)) * (2 / hann.sum())
    pitches = np.geomspace(LOWEST, rate / 2, SIDE)
    bins = pitches / rate * window
    values = np.stack([np.interp(bins, np.arange(amplitudes.shape[1]), frame) for frame in amplitudes], axis=1)
    decibels = 20 * np.log10(values.clip(10 ** (-RANGE / 20)))
    bright = (1 + decibels / RANGE).clip(0, 1)[::-1]
    return Image.fromarray(_coloured(bright))


def _coloured(bright: NDArray[np.floating]) -> NDArray[np.uint8]:
    """From black over blue, red and orange to white."""
    points = np.array([[8, 8, 24], [40, 30, 130], [190, 40, 90], [250, 160, 40], [255, 255, 240]])
    places = np.linspace(0, 1, len(points))
    channels = [np.interp(bright, places, points[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)
