"""What a metric is given, and the interface of all metrics.

    rows = metric.measure(batch)        a tensor for each picture: its score, or its features in a network
    metric.reduce(torch.cat(rows))      the number, or None if there are too few rows

Rows can be stored in files and come from other processes; the number does not depend on how they were split. For a few
batches, `update(batch)` and `compute()` do both. A metric measures pictures, or sounds (`hears`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from thg.errors import NonFiniteError, THGError
from thg.media import worst_mean

RANGE_SLACK = 1e-3
"""How far outside [0, 1] a decoder's rounding may put a pixel."""


class MetricError(THGError, ValueError):
    """An unknown metric, or pictures that a metric cannot measure."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Pictures or sounds of one run, with their prompts and references.

    `samples`: pictures (batch, channels, height, width), floats in [0, 1] or bytes; or
    sounds (batch, time), floats in [-1, 1]. `prompts`: one text per sample. `references`: the plain CFG result for the
    same prompts and seeds, of the same shape.
    """

    samples: torch.Tensor
    prompts: tuple[str, ...] = ()
    references: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self._check()
        if self.prompts and len(self.prompts) != len(self.samples):
            raise MetricError(
                f"{len(self.samples)} samples but {len(self.prompts)} prompts: give one prompt per sample"
            )
        if self.references is not None and self.references.shape != self.samples.shape:
            raise MetricError(
                f"samples of shape {tuple(self.samples.shape)} cannot be compared with references of shape "
                f"{tuple(self.references.shape)}: generate both at the same size"
            )

    def __len__(self) -> int:
        return len(self.samples)

    def as_stored(self) -> Batch:
        """The samples as a reader of their files sees them: bytes, or sounds of 16 bits. Without references."""
        if self._are_sounds:
            return Batch(self.sounds().clamp(-1, 1).mul(32767).round().div(32767), self.prompts)
        return Batch((self.pictures() * 255).round().to(torch.uint8), self.prompts)

    def sounds(self) -> torch.Tensor:
        """The sounds, (batch, time)."""
        return self.samples.detach().float()

    def reference_sounds(self) -> torch.Tensor:
        """The plain CFG sounds."""
        return self._plain().sounds()

    def pictures(self) -> torch.Tensor:
        """The pictures as floats in [0, 1]."""
        pictures = self.samples.detach().float()
        return pictures / 255 if self.samples.dtype == torch.uint8 else pictures.clamp(0, 1)

    def reference_pictures(self) -> torch.Tensor:
        """The plain CFG pictures as floats in [0, 1]."""
        return self._plain().pictures()

    def _plain(self) -> Batch:
        if self.references is None:
            raise MetricError("this metric compares with plain CFG: pass Batch(..., references=the CFG samples)")
        return Batch(self.references)

    @property
    def _are_sounds(self) -> bool:
        return self.samples.ndim == 2 and self.samples.is_floating_point()

    def _check(self) -> None:
        samples = self.samples
        if not self._are_sounds and (samples.ndim != 4 or samples.shape[1] not in (1, 3)):
            raise MetricError(f"pictures have shape {tuple(samples.shape)}: expected (batch, 1 or 3, height, width)")
        if samples.dtype == torch.uint8 or samples.numel() == 0:
            return
        if not samples.is_floating_point():
            raise MetricError(f"pictures are of type {samples.dtype}: give floats in [0, 1] or torch.uint8")
        if not bool(torch.isfinite(samples).all()):
            what = "sound" if self._are_sounds else "picture"
            raise NonFiniteError(f"NaN or infinity in a {what}: it cannot be measured; look at the run that made it")
        low, high = float(samples.min()), float(samples.max())
        if not self._are_sounds and (low < -RANGE_SLACK or high > 1 + RANGE_SLACK):
            raise MetricError(
                f"pixels reach from {low:.3g} to {high:.3g}, expected [0, 1]: for [-1, 1] write (x + 1) / 2"
            )


Direction = Literal["higher", "lower"]
Need = Literal["pairs", "set", "prompts"]
"""pairs: `Batch.references`; set: `use_statistics`; prompts: `Batch.prompts`."""


class Metric(ABC):
    """A number computed from many pictures or sounds. Abstract; see the module's docstring for its use.

    needs: what it needs besides the samples. hears: whether it measures sounds, not pictures.
    """

    name: str
    direction: Direction
    needs: frozenset[Need] = frozenset()
    hears: bool = False

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []

    @abstractmethod
    def measure(self, batch: Batch) -> list[torch.Tensor]:
        """The rows of each picture, on the CPU; usually one row, but a picture may have none."""

    @abstractmethod
    def reduce(self, rows: torch.Tensor) -> float | None:
        """The number from the rows of all pictures, or None when there are too few."""

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        self._rows += self.measure(batch)

    def rows(self) -> torch.Tensor:
        """All rows that were counted."""
        return torch.cat(self._rows) if self._rows else torch.empty(0)

    def compute(self) -> float | None:
        """The number so far, or None when too little was counted."""
        return self.reduce(self.rows())


class Scored:
    """A number that is the mean of one score per sample, summed exactly: bit-identical for any split of the samples."""

    direction: Direction

    def reduce(self, rows: torch.Tensor) -> float | None:
        return math.fsum(rows.tolist()) / len(rows) if len(rows) else None

    def worst(self, rows: torch.Tensor) -> float | None:
        """The mean of the worst 5 % of the samples."""
        return worst_mean(rows.tolist(), self.direction == "higher") if len(rows) else None


class MeanMetric(Scored, Metric):
    """The mean of one score per picture, summed exactly: bit-identical for any split of the pictures."""

    @abstractmethod
    def score(self, batch: Batch) -> torch.Tensor:
        """One number per picture."""

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        if "prompts" in self.needs and not batch.prompts:
            raise MetricError(f"{self.name} compares with the text: pass Batch(..., prompts=(one per sample))")
        with torch.inference_mode():
            return list(torch.split(self.score(batch).double().cpu(), 1))


Embedder = Callable[[Batch], torch.Tensor]
"""A network that gives a row of numbers for each picture of a batch."""


class SetMetric(Metric):
    """A distance between the set of pictures and a set of references, in the features of a network.

    The reference comes from a statistics file. Lower is better.
    """

    direction = "lower"
    needs = frozenset({"set"})

    def __init__(self, embed: Embedder):
        super().__init__()
        self._embed = embed

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        with torch.inference_mode():
            return list(torch.split(self._embed(batch).float().cpu(), 1))

    @abstractmethod
    def use_statistics(self, statistics: Mapping[str, torch.Tensor]) -> None:
        """Takes the reference from the tensors of a statistics file."""
