"""Numbers from the samples of a run folder: streaming, in the order of the samples, without generating anything.

Scores against plain CFG were taken when a sample was made, on floats; one that was not is taken from the files.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from PIL import Image

from thg.bench.config import BenchConfig, Method
from thg.bench.data import PictureFolder, SoundFolder, read_statistics
from thg.bench.data.references import read_sound
from thg.bench.errors import RunFolderError
from thg.bench.metrics import Batch, Metric, SetMetric, Sources, load_metrics
from thg.bench.store import RunFolder

BATCH = 32


@dataclass(frozen=True)
class Row:
    """A method in the table. A metric that is None has its reason in the report's list of what is missing."""

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
    note: str = ""
    is_reference: bool = False

    @property
    def left_out(self) -> bool:
        return self.nfe is None


@dataclass(frozen=True)
class Measured:
    """All rows, (metric, reason) of what could not be measured, and what else a reader should know."""

    rows: list[Row]
    directions: dict[str, str]
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def missing_samples(config: BenchConfig, folder: RunFolder) -> int:
    """How many samples are still to be made, left-out methods aside."""
    methods = [method for method in config.methods if "left_out" not in folder.prepared(method.slug)]
    return sum(config.count - folder.done(method.slug, config.count) for method in methods)


def measure(config: BenchConfig, folder: RunFolder, device: str = "cpu") -> Measured:
    """Measures every method of a finished run."""
    if left := missing_samples(config, folder):
        raise RunFolderError(f"{left} samples are missing in {folder.path}: run thg bench again, it goes on from there")
    loaded = load_metrics(config.metrics, Sources.of(config.networks), device)
    skipped = list(loaded.skipped)
    sounds = folder.sample_path(config.reference_method.slug, 0, ".wav").exists()
    metrics = []
    for metric in loaded.metrics:
        reason = _lacks(metric, config, sounds)
        if reason:
            skipped.append((metric.name, reason))
        else:
            metrics.append(metric)
    notes = _count_references(metrics, config, sounds)
    rows = [_row(config, folder, method, metrics, sounds) for method in config.methods]
    return Measured(rows, {metric.name: metric.direction for metric in metrics}, skipped, notes)


def _lacks(metric: Metric, config: BenchConfig, sounds: bool) -> str:
    """Why a metric cannot be measured, or nothing."""
    if sounds and "pairs" in metric.needs:
        return "it compares pictures, and these are sounds"
    references = config.references
    if isinstance(metric, SetMetric) and references.folder is None and metric.name not in references.statistics:
        return f"there are no references: write [references] with folder, or statistics.{metric.name}"
    return ""


def _count_references(metrics: list[Metric], config: BenchConfig, sounds: bool) -> list[str]:
    """Gives set metrics what they compare with; a broken file is skipped and counted in what is returned."""
    waiting = []
    for metric in metrics:
        if isinstance(metric, SetMetric):
            statistics = config.references.statistics.get(metric.name)
            if statistics is None:
                waiting.append(metric)
            else:
                metric.use_statistics(read_statistics(statistics))
    if not waiting or config.references.folder is None:
        return []
    source = SoundFolder(config.references.folder) if sounds else PictureFolder(config.references.folder)
    for batch in source.batches():
        for metric in waiting:
            metric.add_reference(batch)
    if source.broken:
        return [f"{len(source.broken)} of {len(source.paths)} reference files could not be read and were skipped"]
    return []


def _row(config: BenchConfig, folder: RunFolder, method: Method, metrics: list[Metric], sounds: bool) -> Row:
    prepared = folder.prepared(method.slug)
    is_reference = method is config.reference_method
    nfe, note, values = None, prepared.get("left_out", ""), {}
    if "left_out" not in prepared:
        records = list(folder.records(method.slug, config.count))
        nfe = math.fsum(record["nfe"] for record in records) / len(records)
        values = _values(config, folder, method, metrics, records, sounds)
        note = _note(prepared)
    return Row(
        name=method.name,
        policy=method.policy_name,
        paper=method.policy.paper,
        group=method.group,
        steps=method.steps,
        guidance_scale=method.guidance_scale,
        nfe=nfe,
        seconds=folder.seconds_per_sample(method.slug),
        metrics={metric.name: values.get(metric.name) for metric in metrics},
        published=method.published,
        note=note,
        is_reference=is_reference,
    )


def _values(
    config: BenchConfig,
    folder: RunFolder,
    method: Method,
    metrics: list[Metric],
    records: list[dict[str, Any]],
    sounds: bool,
) -> dict[str, float | None]:
    is_reference = method is config.reference_method
    values: dict[str, float | None] = {}
    streamed = []
    for metric in metrics:
        if "pairs" in metric.needs and is_reference:
            continue
        if all(metric.name in record for record in records):
            values[metric.name] = math.fsum(float(record[metric.name]) for record in records) / len(records)
        else:
            streamed.append(metric.fresh())
    if streamed:
        pairs = any("pairs" in metric.needs for metric in streamed)
        prompts = [str(record["prompt"]) for record in records]
        other = config.reference_method.slug if pairs else None
        for batch in _batches(folder, method.slug, other, prompts, sounds):
            for metric in streamed:
                metric.update(batch)
        values |= {metric.name: metric.compute() for metric in streamed}
    return values


def _batches(folder: RunFolder, slug: str, reference: str | None, prompts: list[str], sounds: bool) -> Iterator[Batch]:
    if sounds:
        for index, prompt in enumerate(prompts):
            sound, rate = read_sound(folder.sample_path(slug, index, ".wav"))
            yield Batch(sound[None], prompts=(prompt,), sample_rate=rate)
        return
    for first in range(0, len(prompts), BATCH):
        indices = range(first, min(first + BATCH, len(prompts)))
        pictures = torch.stack([_bytes(folder.read_picture(slug, index)) for index in indices])
        others = (
            None if reference is None else torch.stack([_bytes(folder.read_picture(reference, i)) for i in indices])
        )
        yield Batch(pictures, prompts=tuple(prompts[first : indices.stop]), references=others)


def _bytes(picture: Image.Image) -> torch.Tensor:
    """A picture as (channels, height, width) bytes."""
    pixels = np.array(picture)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1)).permute(2, 0, 1).contiguous()


def _note(prepared: dict[str, Any]) -> str:
    """What was measured before the comparison, for people."""
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
