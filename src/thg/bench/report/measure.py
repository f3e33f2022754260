"""The numbers of a finished run, from the rows in its store; without sampling or running a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from thg.bench.config import Method
from thg.bench.data import read_statistics
from thg.bench.errors import RunFolderError
from thg.bench.measuring import Measurer
from thg.bench.metrics import MeanMetric, Metric, SetMetric
from thg.bench.stages import BenchmarkRun
from thg.bench.store import Series


@dataclass(frozen=True)
class Row:
    """A method in the table. For a metric that is None, the report's list of missing metrics has the reason.

    worst: for metrics that compare with plain CFG, the mean of the worst 5 % of the samples.
    """

    name: str
    policy: str
    paper: str
    group: str
    steps: int
    guidance_scale: float
    nfe: float | None
    seconds: float | None
    metrics: dict[str, float | None]
    published: dict[str, float]
    worst: dict[str, float] = field(default_factory=dict)
    note: str = ""
    is_reference: bool = False

    @property
    def left_out(self) -> bool:
        return self.nfe is None


@dataclass(frozen=True)
class Measured:
    """All rows, (metric, reason) of metrics that could not be measured, and further notes."""

    rows: list[Row]
    directions: Mapping[str, str]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def reduce_rows(run: BenchmarkRun, measurer: Measurer) -> Measured:
    """Every method's numbers."""
    notes = _use_references(measurer)
    reference = run.series()[run.config.reference_method.name]
    skipped = list(measurer.skipped)
    rows = [_row(run, method, measurer.metrics, measurer, reference, skipped) for method in run.config.methods]
    directions = {metric.name: metric.direction for metric in measurer.metrics}
    return Measured(rows, directions, list(dict.fromkeys(skipped)), notes)


def _use_references(measurer: Measurer) -> list[str]:
    """Sets the references of set metrics; returns notes on skipped reference files."""
    statistics, notes = measurer.config.references.statistics, []
    names = {metric.rows_name: name for metric, name in measurer.reference_measures()}
    for metric in measurer.metrics:
        if not isinstance(metric, SetMetric):
            continue
        if metric.name in statistics:
            metric.use_statistics(read_statistics(statistics[metric.name]))
        elif measurer.references is not None:
            files = measurer.store.references(measurer.references.identity, names[metric.rows_name])
            counts = files.counts()
            metric.use_rows(files.read(range(len(measurer.references.paths))))
            if broken := sum(count == 0 for count in counts.values()):
                notes.append(f"{broken} of {len(counts)} reference files could not be read and were skipped")
    return list(dict.fromkeys(notes))


def _row(
    run: BenchmarkRun,
    method: Method,
    metrics: Iterable[Metric],
    measurer: Measurer,
    reference: Series,
    skipped: list[tuple[str, str]],
) -> Row:
    place, is_reference = run.place(method.name), method is run.config.reference_method
    series, count = place.series, run.config.count
    nfe, note = None, place.left_out
    values: dict[str, float | None] = {}
    worst: dict[str, float] = {}
    if series is not None:
        nfe = math.fsum(record["nfe"] for record in series.records(count)) / count
        note = _note(place.prepared)
        for metric in metrics:
            if "pairs" in metric.needs and (is_reference or series.key == reference.key):
                continue
            try:
                rows = series.measured(measurer.rows_of(metric, reference)).read(range(count))
            except RunFolderError:
                skipped.append((metric.name, "samples that were not kept have not been measured with it"))
                continue
            values[metric.name] = metric.reduce(rows)
            if isinstance(metric, MeanMetric) and "pairs" in metric.needs:
                worst[metric.name] = metric.worst(rows) or 0.0
    return Row(
        name=method.name,
        policy=method.policy_name,
        paper=method.policy.paper,
        group=method.group,
        steps=method.steps,
        guidance_scale=method.guidance_scale,
        nfe=nfe,
        seconds=series.seconds_per_sample() if series else None,
        metrics={metric.name: values.get(metric.name) for metric in metrics},
        published=method.published,
        worst=worst,
        note=note,
        is_reference=is_reference,
    )


def _note(prepared: dict[str, Any]) -> str:
    """The result of a method's preparation, in words."""
    if "threshold" in prepared:
        return (
            f"threshold {prepared['threshold']:.6f}, found on {prepared['pilot']} prompts "
            f"({prepared['nfe_of_pilot']:.2f} evaluations there); NFE is the mean over samples"
        )
    if "nfe" in prepared:
        return "NFE counted by the work in the network's layers"
    if "plan" in prepared:
        return f"coarse grid {prepared['plan']['coarse']}"
    return ""
