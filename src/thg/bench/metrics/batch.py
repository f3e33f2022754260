"""The input of a metric: a batch of pictures or sounds, with prompts and references.

Pictures are (batch, channels, height, width), floats in [0, 1] or bytes; sounds are (batch, samples), floats in
[-1, 1], with a sample rate. This module is independent of the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
import torch
from PIL import Image

from thg.distribution import missing
from thg.errors import NonFiniteError, THGError

RANGE_SLACK = 1e-3
"""How far outside [0, 1] a decoder's rounding may put a pixel."""


class MetricError(THGError, ValueError):
    """An unknown metric, or samples that a metric cannot measure."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Samples of one run, with their prompts and references.

    `samples`: pictures or sounds; a list if their sizes differ. `prompts`: one text per sample. `references`: the
    plain CFG result for the same prompts and seeds, of the same shape. `sample_rate`: in hertz, for sounds; None means
    pictures.
    """

    samples: torch.Tensor | Sequence[torch.Tensor]
    prompts: tuple[str, ...] = ()
    references: torch.Tensor | None = None
    sample_rate: int | None = None

    def __post_init__(self) -> None:
        for part in self._parts():
            if self.sample_rate is None:
                _check_pictures(part)
            else:
                _check_sounds(part, self.sample_rate)
        if self.prompts and len(self.prompts) != len(self.samples):
            raise MetricError(
                f"{len(self.samples)} samples but {len(self.prompts)} prompts: give one prompt per sample"
            )
        if self.references is not None and self.references.shape != self._stacked().shape:
            raise MetricError(
                f"samples of shape {tuple(self._stacked().shape)} cannot be compared with references of shape "
                f"{tuple(self.references.shape)}: generate both at the same size"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def as_stored(self) -> Batch:
        """The samples as a reader of their files sees them: bytes, or sounds of 16 bits. Without references."""
        stacked = self._stacked()
        if self.sample_rate is not None:
            stacked = (stacked.clamp(-1, 1) * 32767).round() / 32768
        elif stacked.dtype != torch.uint8:
            stacked = (_as_floats(stacked) * 255).round().to(torch.uint8)
        return Batch(stacked, self.prompts, None, self.sample_rate)

    def singles(self) -> Iterator[Batch]:
        """Each sample as a batch of its own."""
        for number, sample in enumerate(self.samples):
            prompts = self.prompts[number : number + 1]
            references = None if self.references is None else self.references[number : number + 1]
            yield Batch(sample[None], prompts, references, self.sample_rate)

    def pictures(self) -> torch.Tensor:
        """The pictures as floats in [0, 1]; all of one size."""
        return _as_floats(self._stacked())

    def reference_pictures(self) -> torch.Tensor:
        """The plain CFG pictures as floats in [0, 1]."""
        if self.references is None:
            raise MetricError("this metric compares with plain CFG: pass Batch(..., references=the CFG pictures)")
        _check_pictures(self.references)
        return _as_floats(self.references)

    def rgb_bytes(self) -> list[torch.Tensor]:
        """The pictures as in the saved files: (3, height, width) each, uint8."""
        pictures = [picture for part in self._parts() for picture in part]
        in_bytes = [p if p.dtype == torch.uint8 else (_as_floats(p) * 255).round().to(torch.uint8) for p in pictures]
        return [picture.expand(3, -1, -1).cpu() for picture in in_bytes]

    def pil_pictures(self) -> list[Image.Image]:
        """The pictures as PIL images."""
        return [Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy())) for picture in self.rgb_bytes()]

    def _parts(self) -> list[torch.Tensor]:
        """The samples in tensors with a batch dimension."""
        return [self.samples] if isinstance(self.samples, torch.Tensor) else [sample[None] for sample in self.samples]

    def _stacked(self) -> torch.Tensor:
        if isinstance(self.samples, torch.Tensor):
            return self.samples
        shapes = {tuple(sample.shape) for sample in self.samples}
        if len(shapes) > 1:
            raise MetricError(f"samples of {len(shapes)} sizes cannot be stacked, such as {sorted(shapes)[:2]}")
        return torch.stack(list(self.samples))

    def sounds_at(self, rate: int) -> torch.Tensor:
        """The sounds resampled to `rate` (polyphase filter), float32 on the CPU."""
        if self.sample_rate is None:
            raise MetricError("this metric is for sounds: pass Batch(sounds, sample_rate=16000), not pictures")
        sounds = self._stacked().detach().float().cpu()
        if rate == self.sample_rate:
            return sounds
        try:
            from scipy.signal import resample_poly
        except ImportError as error:
            raise missing("resampling sounds", "metrics") from error
        shared = gcd(rate, self.sample_rate)
        resampled = resample_poly(sounds.numpy(), rate // shared, self.sample_rate // shared, axis=-1)
        return torch.from_numpy(np.ascontiguousarray(resampled, dtype=np.float32))


def _as_floats(pictures: torch.Tensor) -> torch.Tensor:
    if pictures.dtype == torch.uint8:
        return pictures.float() / 255
    return pictures.detach().float().clamp(0, 1)


def _check_pictures(pictures: torch.Tensor) -> None:
    if pictures.ndim != 4 or pictures.shape[1] not in (1, 3):
        raise MetricError(
            f"pictures have shape {tuple(pictures.shape)}: expected (batch, 1 or 3, height, width); "
            "sounds need Batch(..., sample_rate=...)"
        )
    if pictures.dtype == torch.uint8:
        return
    if not pictures.is_floating_point():
        raise MetricError(f"pictures are of type {pictures.dtype}: give floats in [0, 1] or torch.uint8")
    if pictures.numel() == 0:
        return
    if not bool(torch.isfinite(pictures).all()):
        raise NonFiniteError("NaN or infinity in a picture: it cannot be measured; look at the run that made it")
    low, high = float(pictures.min()), float(pictures.max())
    if low < -RANGE_SLACK or high > 1 + RANGE_SLACK:
        raise MetricError(f"pixels reach from {low:.3g} to {high:.3g}, expected [0, 1]: for [-1, 1] write (x + 1) / 2")


def _check_sounds(sounds: torch.Tensor, sample_rate: int) -> None:
    if sample_rate < 1:
        raise MetricError(f"sample_rate={sample_rate}: give the samples per second, for example 16000")
    if sounds.ndim != 2 or not sounds.is_floating_point():
        raise MetricError(
            f"sounds are {sounds.dtype} of shape {tuple(sounds.shape)}: expected floats in [-1, 1], (batch, samples)"
        )
    if not bool(torch.isfinite(sounds).all()):
        raise NonFiniteError("NaN or infinity in a sound: it cannot be measured; look at the run that made it")
