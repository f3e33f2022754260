"""Measuring: rows of scores and features for each sample and reference, kept in the store.

Each process measures the batches that it samples, and its part of the references; existing rows are not measured again.
Scores against plain CFG are computed on floats when a sample is made, otherwise from the files.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thg.bench.config import BenchConfig
from thg.bench.data import read_references
from thg.bench.inputs import ReferenceFiles, reference_files
from thg.bench.keeping import read_samples
from thg.bench.metrics import Batch, Metric, SetMetric, Sources, load_metrics
from thg.bench.pipeline import Samples
from thg.bench.shard import Shard, batches
from thg.bench.store import Series, Store

REFERENCES = 32
"""Reference files that are measured at a time."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """A metric, and the name under which its rows are kept."""

    metric: Metric
    rows: str


class Measurer:
    """The metrics of a benchmark, loaded; `skipped` has (name, reason) of those that are not available."""

    def __init__(self, config: BenchConfig, store: Store, device: str, names: Iterable[str] | None = None) -> None:
        self.config = config
        self.store = store
        loaded = load_metrics(config.metrics if names is None else names, Sources.of(config.networks), device)
        self.metrics = loaded.metrics
        self.skipped = loaded.skipped
        self.references: ReferenceFiles | None = None
        if any(isinstance(metric, SetMetric) for metric in self.metrics):
            self.references = reference_files(config)

    def leave_out(self, sounds: bool) -> None:
        """Drops the metrics that cannot be measured here, with the reason."""
        for metric in list(self.metrics):
            if reason := self._lacks(metric, sounds):
                self.metrics.remove(metric)
                self.skipped.append((metric.name, reason))

    def _lacks(self, metric: Metric, sounds: bool) -> str:
        if sounds and "pairs" in metric.needs:
            return "it compares pictures, and these are sounds"
        if not isinstance(metric, SetMetric) or metric.name in self.config.references.statistics:
            return ""
        if self.references is None:
            return f"there are no references: write [references] with folder, or statistics.{metric.name}"
        return self.references.complaint

    # -- samples

    def measures(self, is_reference: bool, reference: Series) -> list[Measure]:
        """The measurements on the samples of a method; metrics that share rows once."""
        by_rows: dict[str, Measure] = {}
        for metric in self.metrics:
            if not ("pairs" in metric.needs and is_reference):
                by_rows.setdefault(name := self.rows_of(metric, reference), Measure(metric, name))
        return list(by_rows.values())

    def rows_of(self, metric: Metric, reference: Series) -> str:
        """The name of a metric's rows: they depend on its network, and pairs on what they are compared with."""
        network = self.config.networks.get(metric.rows_name) or self.config.networks.get(metric.name)
        parts = [metric.rows_name, _short(network)] if network else [metric.rows_name]
        return "-".join([*parts, reference.key[:8]] if "pairs" in metric.needs else parts)

    def measure(self, measures: Sequence[Measure], series: Series, indices: Sequence[int], batch: Batch) -> None:
        """Measures a batch and stores the rows. Pairs are compared as floats, everything else as stored."""
        stored = batch.as_stored()
        for measure in measures:
            pairs = "pairs" in measure.metric.needs
            if not (pairs and batch.references is None):
                series.measured(measure.rows).add(indices, measure.metric.measure(batch if pairs else stored))

    def missing(self, series: Series, reference: Series, is_reference: bool) -> dict[str, set[int]]:
        """The samples that are not measured yet, by the name of the rows."""
        everything = set(range(self.config.count))
        names = [measure.rows for measure in self.measures(is_reference, reference)]
        return {name: left for name in names if (left := everything - series.measured(name).done())}

    def measure_samples(
        self,
        all_series: Sequence[Series],
        reference: Series,
        prompts: Sequence[str],
        shard: Shard,
        progress: Progress,
        pipe: Any = None,
    ) -> None:
        """This process's part of the missing measurements, from the files of existing samples."""
        mine = shard.of(batches(self.config.count, self.config.batch_size))
        units: list[tuple[Series, range, list[Measure]]] = []
        for series in all_series:
            is_reference, done = series.key == reference.key, series.done()
            missing = self.missing(series, reference, is_reference)
            for batch in mine:
                todo = [m for m in self.measures(is_reference, reference) if missing.get(m.rows, set()) & {*batch}]
                if todo and {*batch} <= done:
                    units.append((series, batch, todo))
        clock = Clock(progress, len(units), "measured")
        for series, batch, todo in units:
            other = None if series.key == reference.key else reference
            self._measure_files(todo, series, other, batch, prompts, pipe)
            clock.tick()

    def _measure_files(
        self, todo: list[Measure], series: Series, other: Series | None, batch: range, prompts: Sequence[str], pipe: Any
    ) -> None:
        samples = read_samples(series, batch, pipe)
        if samples is None:
            return  # not kept: it was measured when it was made
        pairs = any("pairs" in measure.metric.needs for measure in todo) and other is not None
        plain = read_samples(other, batch, pipe) if pairs and other is not None else None
        self.measure(todo, series, batch, as_batch(samples, plain, [prompts[index] for index in batch]))

    # -- references

    def reference_measures(self) -> list[tuple[SetMetric, str]]:
        """Set metrics that take their reference from files, one for each kind of rows."""
        by_rows: dict[str, SetMetric] = {}
        for metric in self.metrics:
            if isinstance(metric, SetMetric) and metric.name not in self.config.references.statistics:
                network = self.config.networks.get(metric.rows_name) or self.config.networks.get(metric.name)
                by_rows.setdefault("-".join(filter(None, [metric.rows_name, _short(network)])), metric)
        return [(metric, name) for name, metric in by_rows.items()]

    def missing_references(self) -> dict[str, set[int]]:
        if self.references is None:
            return {}
        identity, everything = self.references.identity, set(range(len(self.references.paths)))
        names = [name for _, name in self.reference_measures()]
        return {name: left for name in names if (left := everything - self.store.references(identity, name).done())}

    def measure_references(self, shard: Shard, progress: Progress) -> None:
        """This process's part of the references."""
        if self.references is None or not (missing := self.missing_references()):
            return
        identity, paths = self.references.identity, self.references.paths
        units = [u for u in shard.of(batches(len(paths), REFERENCES)) if any({*u} & left for left in missing.values())]
        clock = Clock(progress, len(units), "of references measured")
        for unit in units:
            places, found = read_references([paths[index] for index in unit])
            for metric, name in self.reference_measures():
                rows = [torch.empty(0)] * len(unit)  # a broken file has none
                measured = [row for batch in found for row in metric.measure(batch)]
                for place, row in zip(places, measured, strict=True):
                    rows[place] = row
                self.store.references(identity, name).add(unit, rows)
            clock.tick()


class Clock:
    """Reports progress: how many units of work are done, and the time left."""

    def __init__(self, progress: Progress, of: int, what: str) -> None:
        self._progress, self._of, self._what = progress, of, what
        self._done, self._started, self._reported = 0, time.perf_counter(), 0.0

    def tick(self) -> None:
        self._done += 1
        now = time.perf_counter()
        elapsed = now - self._started
        if self._done < self._of and now - self._reported < max(1.0, elapsed / 60):  # rarely in a long run
            return
        self._reported = now
        left = elapsed / self._done * (self._of - self._done)
        rest = f", about {_duration(left)} left" if self._done < self._of else ""
        self._progress(f"{self._done} of {self._of} batches {self._what}{rest}")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def as_batch(samples: Samples, reference: Samples | None, prompts: Sequence[str]) -> Batch:
    return Batch(samples.values, tuple(prompts), None if reference is None else reference.values, samples.sample_rate)


def _short(text: str | None) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8] if text else ""
