"""Outputs as files for the page (PNG, WAV, frames), and the PSNR between two outputs."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from thg import media
from thg.errors import THGError
from thg.models.pretrained import sampling_rate
from thg.plots.pictures import spectrogram

Kind = Literal["image", "audio", "video"]
Array = NDArray[np.float64]

FRAMES_PER_SECOND = 8


@dataclass(frozen=True)
class Output:
    """The output of a pipeline: one array per seed. Pixels lie in [0, 1], samples in [-1, 1]."""

    kind: Kind
    items: tuple[Array, ...]
    rate: int = FRAMES_PER_SECOND

    @classmethod
    def of(cls, result: Any, pipe: Any) -> Output:
        """Reads a pipeline's output (output_type="np")."""
        if (images := getattr(result, "images", None)) is not None:
            return cls("image", tuple(_array(image) for image in images))
        if (audios := getattr(result, "audios", None)) is not None:
            return cls("audio", tuple(_array(audio) for audio in audios), sampling_rate(pipe))
        if (frames := getattr(result, "frames", None)) is not None:
            return cls("video", tuple(_array(video) for video in frames))
        raise THGError(f"{type(pipe).__name__} made neither pictures nor sound nor frames that the studio can show")

    def for_page(self, how: Sequence[Mapping[str, object]]) -> list[dict[str, Any]]:
        """One entry per seed, with its files in base64. how: of each picture, for its metadata."""
        if self.kind == "image":
            pictures = zip(self.items, how, strict=True)
            return [{"kind": "image", "files": [png(item, about)]} for item, about in pictures]
        if self.kind == "audio":
            return [
                {"kind": "audio", "files": [wav(item, self.rate)], "spectrogram": _spectrogram(item, self.rate)}
                for item in self.items
            ]
        return [{"kind": "video", "rate": self.rate, "files": [png(frame) for frame in item]} for item in self.items]


def psnr(output: Output, reference: Output) -> list[float | None]:
    """Decibels per seed; None if both are identical. The peak of a sound is that of its reference."""
    values: list[float | None] = []
    for item, wanted in zip(output.items, reference.items, strict=True):
        peak = 1.0 if output.kind != "audio" else max(float(np.abs(wanted).max()), 1e-9)
        value = media.psnr(item, wanted, peak)
        values.append(value if math.isfinite(value) else None)
    return values


def png(pixels: Array, how: Mapping[str, object] | None = None) -> str:
    """An array of height x width (x channels) in [0, 1] as a PNG in base64."""
    return base64.b64encode(media.png_bytes(pixels, compress_level=3, how=how)).decode()


def wav(samples: Array, rate: int) -> str:
    """Samples (channels x time, or time) in [-1, 1] as a WAV in base64."""
    return base64.b64encode(media.wav_bytes(samples, rate)).decode()


def _spectrogram(samples: Array, rate: int) -> str:
    """Relative to the loudest sample, as a PNG in base64."""
    peak = max(float(np.abs(samples).max()), 1e-9)
    return png(np.asarray(spectrogram(samples / peak, rate), dtype=np.float64) / 255)


def _array(item: Any) -> Array:
    if isinstance(item, list):  # frames
        return np.stack([_array(part) for part in item])
    if isinstance(item, Image.Image):
        return np.asarray(item, dtype=np.float64) / 255
    if hasattr(item, "detach"):
        item = item.detach().float().cpu().numpy()
    return np.asarray(item, dtype=np.float64)
