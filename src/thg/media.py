"""What pipelines make: pictures, sounds and videos as arrays, their files, and their distance in decibels."""

from __future__ import annotations

import io
import json
import math
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from thg.errors import NonFiniteError, THGError
from thg.models.pretrained import sampling_rate

Kind = Literal["image", "audio", "video"]
Array = NDArray[np.float64]

FRAMES_PER_SECOND = 8
CAP = 100.0
"""The PSNR in decibels that a mean counts for identical samples."""
WORST = 0.05
"""The share of the samples whose mean is shown next to the mean of all."""


@dataclass(frozen=True)
class Output:
    """The output of a pipeline: one array per sample. Pixels lie in [0, 1], samples of sounds in [-1, 1].

    rate: samples or frames per second.
    """

    kind: Kind
    items: tuple[Array, ...]
    rate: int = FRAMES_PER_SECOND

    @classmethod
    def of(cls, result: Any, pipe: Any) -> Output:
        """Reads what a pipeline returns, of whatever type."""
        if (images := getattr(result, "images", None)) is not None:
            return cls("image", tuple(_array(image) for image in images))
        if (audios := getattr(result, "audios", None)) is not None:
            return cls("audio", tuple(_array(audio) for audio in audios), sampling_rate(pipe))
        if (frames := getattr(result, "frames", None)) is not None:
            return cls("video", tuple(_array(video) for video in frames))
        raise THGError(f"{type(pipe).__name__} made neither pictures nor sound nor frames, but {type(result).__name__}")

    def decibels(self, reference: Output) -> list[float]:
        """The PSNR of each picture or video, the SNR of each sound; infinite for identical ones."""
        distance = snr if self.kind == "audio" else psnr
        return [distance(item, wanted) for item, wanted in zip(self.items, reference.items, strict=True)]


def _array(item: Any) -> Array:
    if isinstance(item, list):  # frames
        return np.stack([_array(part) for part in item])
    if isinstance(item, Image.Image):
        return np.asarray(item, dtype=np.float64) / 255
    if hasattr(item, "detach"):
        item = item.detach().float().cpu().numpy()
    return np.asarray(item, dtype=np.float64)


def picture(pixels: NDArray[np.floating]) -> Image.Image:
    """An array of height x width (x channels) in [0, 1] as a picture of 8 bits."""
    if not np.isfinite(pixels).all():
        raise NonFiniteError("the picture holds NaN or infinity; with float16 on a CPU, try --dtype float32")
    values = (np.clip(pixels, 0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(values[..., 0] if values.ndim == 3 and values.shape[-1] == 1 else values)


def psnr(sample: ArrayLike, reference: ArrayLike, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio, 10 log10(peak^2 / MSE), in decibels; infinite for identical samples."""
    difference = np.asarray(sample, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    error = float(np.mean(difference**2))
    return math.inf if error == 0 else 10 * math.log10(peak**2 / error)


def snr(sample: ArrayLike, reference: ArrayLike) -> float:
    """Signal-to-noise ratio of a sound in decibels, the reference being the signal; infinite for identical sounds."""
    signal = np.asarray(reference, dtype=np.float64)
    noise = float(np.sum((np.asarray(sample, dtype=np.float64) - signal) ** 2))
    power = float(np.sum(signal**2))
    if noise == 0:
        return math.inf
    return 10 * math.log10(power / noise) if power else -math.inf


def mean_psnr(values: Sequence[float]) -> float:
    """The mean over samples; identical ones count as 100 dB."""
    return math.fsum(min(value, CAP) for value in values) / len(values)


def worst_mean(values: Sequence[float], higher_is_better: bool = True) -> float:
    """The mean of the worst 5 % of the samples; of one sample at least."""
    ordered = sorted(values, reverse=not higher_is_better)
    return math.fsum(worst := ordered[: max(1, math.ceil(WORST * len(ordered)))]) / len(worst)


def png_bytes(pixels: NDArray[np.floating], compress_level: int = 6, how: Mapping[str, object] | None = None) -> bytes:
    """Pixels in [0, 1] as a PNG file. how: as `png_text` takes it."""
    file = io.BytesIO()
    text = None if how is None else png_text(how)
    picture(pixels).save(file, "PNG", compress_level=compress_level, pnginfo=text)
    return file.getvalue()


def png_text(how: Mapping[str, object]) -> PngInfo:
    """The text chunk "thg" of a PNG: how the picture was made, as JSON."""
    text = PngInfo()
    text.add_text("thg", json.dumps(how))
    return text


def wav_bytes(samples: NDArray[np.floating], rate: int) -> bytes:
    """Samples (channels x time, or time) in [-1, 1] as a WAV file of 16 bits."""
    values = (np.atleast_2d(samples).T.clip(-1, 1) * 32767).round().astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(values.shape[1])
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(values.tobytes())
    return file.getvalue()


def wav_samples(content: bytes) -> NDArray[np.float32]:
    """The samples in [-1, 1] of a WAV file that `wav_bytes` has made: time, or channels x time."""
    with wave.open(io.BytesIO(content)) as sound:
        values = np.frombuffer(sound.readframes(sound.getnframes()), "<i2").reshape(-1, sound.getnchannels())
    return (values.T.squeeze() / 32767).astype(np.float32)
