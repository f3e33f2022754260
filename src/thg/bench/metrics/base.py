"""The one interface of all metrics.

    metric.update(batch)        as often as there are batches; nothing but small state is kept
    metric.compute()            the number, or None when there is nothing to say yet
    metric.state()              what another process needs:  metric.merge(their_state)
    metric.fresh()              the same metric for the next method: shares network and reference, counts from zero

`needs` says what a batch, or the metric itself, must be given besides the samples.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, Literal, Protocol, TypeVar

import torch

from thg.bench.metrics.batch import Batch, MetricError

Direction = Literal["higher", "lower"]
Need = Literal["pairs", "set", "prompts"]
"""pairs: `Batch.references`; set: `add_reference` or `use_statistics`; prompts: `Batch.prompts`."""

State = Mapping[str, torch.Tensor]
MetricT = TypeVar("MetricT", bound="Metric")


class Metric(ABC):
    """A number about many samples. Abstract; see the module's text for how it is used."""

    name: ClassVar[str]
    direction: ClassVar[Direction]
    needs: ClassVar[frozenset[Need]] = frozenset()

    @abstractmethod
    def reset(self) -> None:
        """Forget what was counted; keep network and reference."""

    @abstractmethod
    def update(self, batch: Batch) -> None:
        """Count one batch."""

    @abstractmethod
    def compute(self) -> float | None:
        """The number so far, or None when too little was counted."""

    @abstractmethod
    def state(self) -> dict[str, torch.Tensor]:
        """What was counted, as tensors: save them as safetensors or send them to another process."""

    @abstractmethod
    def merge(self, state: State) -> None:
        """Add what another process counted."""

    def fresh(self: MetricT) -> MetricT:
        """The same metric with nothing counted, sharing the network and the reference."""
        other = copy.copy(self)
        other.reset()
        return other


class MeanMetric(Metric):
    """The mean of one score per sample.

    All scores are kept (8 bytes a sample) and summed exactly, so that the mean has the same bits however the samples
    were split between batches and processes.
    """

    def __init__(self) -> None:
        self._scores: list[torch.Tensor] = []

    @abstractmethod
    def score(self, batch: Batch) -> torch.Tensor:
        """One number per sample."""

    def reset(self) -> None:
        self._scores = []

    def update(self, batch: Batch) -> None:
        if "prompts" in self.needs and not batch.prompts:
            raise MetricError(f"{self.name} compares with the text: pass Batch(..., prompts=(one per sample))")
        with torch.inference_mode():
            self._scores.append(self.score(batch).double().cpu())

    def scores(self) -> torch.Tensor:
        """One number per sample, in the order in which they were counted."""
        return torch.cat([torch.empty(0, dtype=torch.float64), *self._scores])

    def compute(self) -> float | None:
        scores = self.scores().tolist()
        return math.fsum(scores) / len(scores) if scores else None

    def state(self) -> dict[str, torch.Tensor]:
        return {"scores": self.scores()}

    def merge(self, state: State) -> None:
        self._scores.append(state["scores"].double())


Embedder = Callable[[Batch], torch.Tensor]
"""A network that gives rows of numbers for a batch, usually one row per sample."""

Seen = TypeVar("Seen")


class LastSeen(Generic[Seen]):
    """Remembers what a network said of the last batch, so that several metrics on one network run it once."""

    def __init__(self, look: Callable[[Batch], Seen]):
        self._look = look
        self._last: tuple[Batch, Seen] | None = None

    def __call__(self, batch: Batch) -> Seen:
        if self._last is None or self._last[0] is not batch:
            self._last = (batch, self._look(batch))
        return self._last[1]


class Store(Protocol):
    """Where a set metric collects its rows."""

    count: int

    def add(self, rows: torch.Tensor) -> None: ...

    def state(self) -> dict[str, torch.Tensor]: ...

    def merge(self, state: State) -> None: ...


StoreT = TypeVar("StoreT", bound=Store)


class SetMetric(Metric, Generic[StoreT]):
    """A distance between the set of samples and a set of references, in the features of a network.

    The references come in batches (`add_reference`, and `merge_reference` between processes) or ready-made from a
    statistics file (`use_statistics`); `statistics` is what to write into such a file.
    """

    needs = frozenset({"set"})

    def __init__(self, embed: Embedder):
        self._embed = embed
        self._reference = self.new_store()
        self._counted = self.new_store()

    @abstractmethod
    def new_store(self) -> StoreT:
        """An empty store."""

    @abstractmethod
    def statistics(self) -> dict[str, torch.Tensor]:
        """The reference as it is written into a statistics file."""

    @abstractmethod
    def use_statistics(self, statistics: State) -> None:
        """Take the reference from a statistics file instead of from pictures or sounds."""

    def reset(self) -> None:
        self._counted = self.new_store()

    def update(self, batch: Batch) -> None:
        with torch.inference_mode():
            self._counted.add(self._embed(batch))

    def state(self) -> dict[str, torch.Tensor]:
        return self._counted.state()

    def merge(self, state: State) -> None:
        self._counted.merge(state)

    def add_reference(self, batch: Batch) -> None:
        """Count one batch of references."""
        with torch.inference_mode():
            self._reference.add(self._embed(batch))

    def reference_state(self) -> dict[str, torch.Tensor]:
        """The references counted here, for `merge_reference` of another process."""
        return self._reference.state()

    def merge_reference(self, state: State) -> None:
        """Add the references that another process counted."""
        self._reference.merge(state)
