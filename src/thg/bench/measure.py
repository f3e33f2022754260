"""Measuring: rows of scores and features for each sample and reference, kept in the store.

Each process measures the batches that it samples; existing rows are not measured again.
Scores against plain CFG are computed on floats when a sample is made, otherwise from the files. Metrics of packages run
on the files of a complete series.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from thg.bench.config import BenchConfig
from thg.bench.metrics import Batch, Metric, PackageMetric, load_metrics
from thg.bench.samples import read_samples, reference_files
from thg.bench.store import Series
from thg.bench.tables import code_digest, digest
from thg.processes import Shard, batches
from thg.rows import RowFiles

Progress = Callable[[str], None]


class Measurer:
    """The metrics of a benchmark. loaded: those that are available, and why the others are not."""

    def __init__(self, config: BenchConfig, device: str, names: Iterable[str] | None = None) -> None:
        self.config = config
        names = config.metrics if names is None else names
        self.loaded = load_metrics(names, device, packages=config.packages, base=config.base)
        needs_references = any("set" in metric.needs for metric in self.loaded.of_packages)
        self.references = reference_files(config) if needs_references else None

    def leave_out(self, sounds: bool) -> None:
        """Drops the metrics that cannot be measured here, with the reason."""
        for metric in self.loaded.all:
            if reason := self._lacks(metric, sounds):
                self.loaded.skip(metric, reason)

    def _lacks(self, metric: Metric | PackageMetric, sounds: bool) -> str:
        if metric.hears != sounds:
            return f"it measures {('pictures', 'sounds')[metric.hears]}, and these are {('pictures', 'sounds')[sounds]}"
        if "set" not in metric.needs:
            return ""
        if isinstance(metric, Metric):
            known = metric.name in self.config.references.statistics
            return "" if known else f"there is no reference: write [references] with statistics.{metric.name}"
        return (
            self.references.complaint if self.references else "there are no references: write [references] with folder"
        )

    def measures(self, is_reference: bool, reference: Series) -> dict[str, Metric]:
        """The metrics to measure on the samples of a method, by the name of their rows."""
        metrics = [metric for metric in self.loaded.metrics if not ("pairs" in metric.needs and is_reference)]
        return {self.rows_of(metric, reference): metric for metric in metrics}

    def rows_of(self, metric: Metric, reference: Series) -> str:
        """The name of a metric's rows: they depend on its file, and pairs on what they compare with."""
        compared = reference.key[:8] if "pairs" in metric.needs else ""
        return "-".join(filter(None, [metric.name, code_digest(type(metric))[:8], compared]))

    def measure(self, measures: Mapping[str, Metric], series: Series, indices: Sequence[int], batch: Batch) -> None:
        """Measures a batch and stores the rows. Pairs are compared as floats, everything else as stored."""
        stored = batch.as_stored()
        for name, metric in measures.items():
            pairs = "pairs" in metric.needs
            if not (pairs and batch.references is None):
                rows = metric.measure(batch if pairs else stored)
                series.measured(name).add(indices, {"values": torch.cat(rows).numpy()}, [len(row) for row in rows])

    def missing(self, series: Series, reference: Series) -> dict[str, set[int]]:
        """The samples that are not measured yet, by the name of the rows."""
        everything = set(range(self.config.count))
        names = self.measures(series.key == reference.key, reference)
        return {name: left for name in names if (left := everything - series.measured(name).done())}

    def measure_samples(
        self, all_series: Sequence[Series], reference: Series, prompts: Sequence[str], shard: Shard, progress: Progress
    ) -> None:
        """This process's part of the missing measurements, from the files of existing samples."""
        mine = shard.of(batches(self.config.count, self.config.batch_size))
        units: list[tuple[Series, range, dict[str, Metric]]] = []
        for series in all_series:
            missing, done = self.missing(series, reference), series.done()
            measures = self.measures(series.key == reference.key, reference)
            for batch in mine:
                todo = {name: metric for name, metric in measures.items() if missing.get(name, set()) & {*batch}}
                if todo and {*batch} <= done:
                    units.append((series, batch, todo))
        clock = Clock(progress, len(units), "measured")
        for series, batch, todo in units:
            pairs = any("pairs" in metric.needs for metric in todo.values())
            plain = read_samples(reference, batch) if pairs else None
            texts = tuple(prompts[index] for index in batch)
            self.measure(todo, series, batch, Batch(read_samples(series, batch), texts, plain))
            clock.tick()

    def rows(
        self, metric: Metric | PackageMetric, series: Series, reference: Series, prompts: Sequence[str]
    ) -> torch.Tensor:
        """What was measured on all samples of a series; a package runs now, unless it has."""
        if isinstance(metric, Metric):
            files, samples = series.measured(self.rows_of(metric, reference)), range(self.config.count)
        else:
            files, samples = self._by_package(metric, series, reference, prompts), None
        return torch.from_numpy(files.read(samples)["values"])

    def _by_package(self, metric: PackageMetric, series: Series, reference: Series, prompts: Sequence[str]) -> RowFiles:
        """One number for each sample, or one for the set, stored as that of the first sample."""
        indices = range(self.config.count)
        references = self.references if "set" in metric.needs else None
        against = reference.key if "pairs" in metric.needs else references.identity if references else ""
        network = self.config.networks.get(metric.name, "")
        what = digest({"count": len(indices), "against": against, "network": network})
        files = series.measured(f"{metric.name}-{what[:8]}")
        if not files.done():
            job = {
                "samples": [str(series.file(index)) for index in indices],
                "prompts": [prompts[index] for index in indices],
                "plain": [str(reference.file(index)) for index in indices],
                "references": [str(path) for path in references.paths] if references else [],
                "network": network,
            }
            values = metric.values(job)
            files.add(indices[: len(values)], {"values": np.array(values)})
        return files


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
        left = datetime.timedelta(seconds=round(elapsed / self._done * (self._of - self._done)))
        rest = f", about {left} left" if left else ""
        self._progress(f"{self._done} of {self._of} batches {self._what}{rest}")
