"""The interface of all metrics: rows of numbers for each sample, and one number from the rows of many samples.

    rows = metric.measure(batch)        a tensor for each sample: its score, or its features in a network
    metric.reduce(torch.cat(rows))      the number, or None if there are too few rows

Rows can be stored in files and come from other processes; the number does not depend on how they were split. For a few
batches, `update(batch)` and `compute()` do both. `needs` lists what a batch, or the metric itself, needs besides the
samples.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, Literal, TypeVar

import torch

from thg.bench.metrics.batch import Batch, MetricError
from thg.media import worst_mean

Direction = Literal["higher", "lower"]
Need = Literal["pairs", "set", "prompts"]
"""pairs: `Batch.references`; set: `add_reference` or `use_statistics`; prompts: `Batch.prompts`."""

Statistics = Mapping[str, torch.Tensor]
MetricT = TypeVar("MetricT", bound="Metric")


class Metric(ABC):
    """A number computed from many samples. Abstract; see the module's docstring for its use.

    stored_as: the name of the rows in a store; metrics on the features of one network share it.
    """

    name: ClassVar[str]
    direction: ClassVar[Direction]
    needs: ClassVar[frozenset[Need]] = frozenset()
    stored_as: ClassVar[str] = ""

    def __init__(self) -> None:
        self._rows: list[torch.Tensor] = []

    @abstractmethod
    def measure(self, batch: Batch) -> list[torch.Tensor]:
        """The rows of each sample, on the CPU; usually one row, but a sound may have several and a sample none."""

    @abstractmethod
    def reduce(self, rows: torch.Tensor) -> float | None:
        """The number from the rows of all samples, or None when there are too few."""

    @property
    def rows_name(self) -> str:
        return self.stored_as or self.name

    def update(self, batch: Batch) -> None:
        """Count one batch."""
        self._rows += self.measure(batch)

    def rows(self) -> torch.Tensor:
        """All rows that were counted."""
        return torch.cat(self._rows) if self._rows else torch.empty(0)

    def compute(self) -> float | None:
        """The number so far, or None when too little was counted."""
        return self.reduce(self.rows())

    def fresh(self: MetricT) -> MetricT:
        """An empty copy of the metric that shares the network and the reference."""
        other = copy.copy(self)
        other._rows = []
        return other


class MeanMetric(Metric):
    """The mean of one score per sample, summed exactly: bit-identical for any split of the samples."""

    @abstractmethod
    def score(self, batch: Batch) -> torch.Tensor:
        """One number per sample."""

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        if "prompts" in self.needs and not batch.prompts:
            raise MetricError(f"{self.name} compares with the text: pass Batch(..., prompts=(one per sample))")
        with torch.inference_mode():
            return list(torch.split(self.score(batch).double().cpu(), 1))

    def reduce(self, rows: torch.Tensor) -> float | None:
        return math.fsum(rows.tolist()) / len(rows) if len(rows) else None

    def worst(self, rows: torch.Tensor) -> float | None:
        """The mean of the worst 5 % of the samples."""
        return worst_mean(rows.tolist(), self.direction == "higher") if len(rows) else None


Embedder = Callable[[Batch], torch.Tensor]
"""A network that gives rows of numbers for a batch, usually one row per sample."""

Seen = TypeVar("Seen")


class LastSeen(Generic[Seen]):
    """Caches a network's output for the last batch, so that several metrics on one network run it once."""

    def __init__(self, look: Callable[[Batch], Seen]):
        self._look = look
        self._last: tuple[Batch, Seen] | None = None

    def __call__(self, batch: Batch) -> Seen:
        if self._last is None or self._last[0] is not batch:
            self._last = (batch, self._look(batch))
        return self._last[1]


class SetMetric(Metric):
    """A distance between the set of samples and a set of references, in the features of a network.

    The references come in batches (`add_reference`), as rows (`use_rows`) or from a statistics file
    (`use_statistics`); `statistics` is the content of such a file. Lower is better.
    """

    direction = "lower"
    needs = frozenset({"set"})

    def __init__(self, embed: Embedder):
        super().__init__()
        self._embed = embed
        self._reference_rows: list[torch.Tensor] = []

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        with torch.inference_mode():
            return list(torch.split(self._embed(batch).float().cpu(), 1))

    def add_reference(self, batch: Batch) -> None:
        """Count one batch of references."""
        self.use_rows(torch.cat([*self._reference_rows, *self.measure(batch)]))

    def use_rows(self, rows: torch.Tensor) -> None:
        """Take the reference from the rows of all its samples."""
        self._reference_rows = [rows]

    def reference_rows(self) -> torch.Tensor:
        if not self._reference_rows or len(self._reference_rows[0]) < 2:
            count = len(self._reference_rows[0]) if self._reference_rows else 0
            raise MetricError(f"{self.name}: {count} references are too few for a distribution; add two or more")
        return self._reference_rows[0]

    @abstractmethod
    def statistics(self) -> dict[str, torch.Tensor]:
        """The reference as it is written into a statistics file."""

    @abstractmethod
    def use_statistics(self, statistics: Statistics) -> None:
        """Take the reference from a statistics file instead of from pictures or sounds."""
