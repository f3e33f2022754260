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

from thg.bench.metrics import Batch, Metric, PackageMetric, load_metrics
from thg.bench.samples import reference_files
from thg.bench.store import BenchmarkRun, Series
from thg.bench.tables import code_digest, digest
from thg.processes import Shard, batches
from thg.rows import RowFiles

Say = Callable[[str], None]


class Measurer:
    """The metrics of a run. loaded: those that can be measured here, and why the others can not.

    sounds: whether the samples are sounds. names: of the metrics, if not all of the configuration.
    """

    def __init__(self, run: BenchmarkRun, device: str, sounds: bool, names: Iterable[str] | None = None) -> None:
        self.run, self.config, self.reference = run, run.config, run.series()[run.config.reference_method.name]
        names = run.config.metrics if names is None else names
        self.loaded = load_metrics(names, device, packages=run.config.packages, base=run.config.base)
        needs_references = any("set" in metric.needs for metric in self.loaded.of_packages)
        self.references = reference_files(run.config) if needs_references else None
        for metric in self.loaded.all:
            if reason := self._lacks(metric, sounds):
                self.loaded.skip(metric, reason)

    def _lacks(self, metric: Metric | PackageMetric, sounds: bool) -> str:
        """Why a metric cannot be measured here; empty if it can."""
        if metric.hears != sounds:
            measured, made = ("sounds", "pictures") if metric.hears else ("pictures", "sounds")
            return f"it measures {measured}, and these are {made}"
        if "set" not in metric.needs:
            return ""
        if isinstance(metric, Metric):
            known = metric.name in self.config.references.statistics
            return "" if known else f"there is no reference: write [references] with statistics.{metric.name}"
        return (
            self.references.complaint if self.references else "there are no references: write [references] with folder"
        )

    def applies(self, metric: Metric | PackageMetric, series: Series) -> bool:
        """Whether to measure the samples of a method: the reference is not compared with itself."""
        return "pairs" not in metric.needs or series.key != self.reference.key

    def metrics_of(self, series: Series) -> dict[str, Metric]:
        """The metrics to measure on the samples of a method in this process, by the name of their rows."""
        return {self._rows_of(metric): metric for metric in self.loaded.metrics if self.applies(metric, series)}

    def _rows_of(self, metric: Metric) -> str:
        """The name of a metric's rows: they depend on its file, and pairs on what they compare with."""
        compared = self.reference.key[:8] if "pairs" in metric.needs else ""
        return "-".join(filter(None, [metric.name, code_digest(type(metric))[:8], compared]))

    def measure(self, metrics: Mapping[str, Metric], series: Series, indices: Sequence[int], batch: Batch) -> None:
        """Measures a batch and stores the rows. Pairs are compared as floats, everything else as stored."""
        stored = batch.as_stored()
        for name, metric in metrics.items():
            rows = metric.measure(batch if "pairs" in metric.needs else stored)
            series.measured(name).add(indices, {"values": torch.cat(rows).numpy()}, [len(row) for row in rows])

    def missing(self, series: Series) -> dict[str, set[int]]:
        """The samples that are not measured yet, by the name of the rows."""
        everything = set(range(self.config.count))
        return {name: left for name in self.metrics_of(series) if (left := everything - series.measured(name).done())}

    def measure_files(self, shard: Shard, progress: Say) -> None:
        """This process's part of the missing measurements, from the files of existing samples."""
        mine = shard.of(batches(self.config.count, self.config.batch_size))
        units: list[tuple[Series, range, dict[str, Metric]]] = []
        for series in self.run.ready():
            missing, done, metrics = self.missing(series), series.done(), self.metrics_of(series)
            for batch in mine:
                todo = {name: metrics[name] for name, left in missing.items() if left & {*batch}}
                if todo and {*batch} <= done:
                    units.append((series, batch, todo))
        clock = Clock(progress, len(units), "measured")
        for series, batch, todo in units:
            pairs = any("pairs" in metric.needs for metric in todo.values())
            plain = self.reference.read(batch) if pairs else None
            texts = tuple(self.run.prompts.prompts[index] for index in batch)
            self.measure(todo, series, batch, Batch(series.read(batch), texts, plain))
            clock.tick()

    def complete(self) -> bool:
        """Whether nothing is missing any more: no sample, and no measurement of one."""
        return not self.run.missing_samples() and not any(map(self.missing, self.run.ready()))

    def rows(self, metric: Metric | PackageMetric, series: Series) -> torch.Tensor:
        """What was measured on all samples of a series; a package runs now, unless it has."""
        if isinstance(metric, Metric):
            files, samples = series.measured(self._rows_of(metric)), range(self.config.count)
        else:
            files, samples = self._by_package(metric, series), None
        return torch.from_numpy(files.read(samples)["values"])

    def _by_package(self, metric: PackageMetric, series: Series) -> RowFiles:
        """One number for each sample, or one for the set, stored as that of the first sample."""
        indices = range(self.config.count)
        references = self.references if "set" in metric.needs else None
        against = self.reference.key if "pairs" in metric.needs else references.identity if references else ""
        network = self.config.networks.get(metric.name, "")
        what = digest({"count": len(indices), "against": against, "network": network})
        files = series.measured(f"{metric.name}-{what[:8]}")
        if not files.done():
            job = {
                "samples": [str(series.file(index)) for index in indices],
                "prompts": self.run.prompts.prompts[: len(indices)],
                "plain": [str(self.reference.file(index)) for index in indices],
                "references": [str(path) for path in references.paths] if references else [],
                "network": network,
            }
            values = metric.values(job)
            files.add(indices[: len(values)], {"values": np.array(values)})
        return files


def measure_samples(run: BenchmarkRun, shard: Shard, progress: Say) -> Measurer | None:
    """Does this process's part of the measurements; returns the metrics if nothing is missing any more, else None."""
    reference = run.series()[run.config.reference_method.name]
    done = reference.done()
    if not done:
        return None  # other processes have not made samples yet
    measurer = Measurer(run, shard.device, sounds=reference.record(min(done)).get("rate") is not None)
    measurer.measure_files(shard, progress)
    return measurer if measurer.complete() else None


class Clock:
    """Reports progress: how many units of work are done, and the time left."""

    def __init__(self, progress: Say, of: int, what: str) -> None:
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
