"""The metrics of the benchmark by name: available ones are loaded, the others are listed with the reason.

    loaded = load_metrics(["psnr", "ssim"])
    for metric in loaded.metrics:
        metric.update(Batch(pictures, prompts=prompts, references=plain_cfg_pictures))
        metric.compute()

An own metric is a `Metric` class, or a function that returns a metric (a parameter `device` gets the device to run on).
It is named by its file, "my_metrics.py:Brightness", or registered by a package as an entry point of the group
`thg.bench.metrics`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from thg.bench.metrics.base import Batch, MeanMetric, Metric, MetricError, Scored, SetMetric
from thg.bench.metrics.fidelity import PSNR, SNR, SSIM, LogMelDistance
from thg.bench.metrics.judges import Judge, emoji_metrics, garment_metrics, sound_metrics
from thg.bench.metrics.package_scripts import SCRIPTS
from thg.bench.metrics.packages import PackageMetric
from thg.bench.tables import from_file, is_file
from thg.errors import MissingExtraError
from thg.models.emoji_prompts import emoji_names
from thg.models.judge import JUDGE_PATH, EmojiJudge, SoundJudge
from thg.models.judge import Judge as ShippedJudge

__all__ = [
    "Batch",
    "Loaded",
    "MeanMetric",
    "Metric",
    "MetricError",
    "PackageMetric",
    "Scored",
    "SetMetric",
    "load_metrics",
    "metric_names",
]

GROUP = "thg.bench.metrics"
"""The group of entry points."""

FIDELITY: dict[str, type[Metric]] = {metric.name: metric for metric in (PSNR, SSIM, SNR, LogMelDistance)}
"""Those that compare with plain CFG."""


@dataclass(frozen=True)
class Loaded:
    """Loaded metrics, those of packages, and (name, reason) of those that are not available."""

    metrics: list[Metric] = field(default_factory=list)
    of_packages: list[PackageMetric] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def all(self) -> list[Metric | PackageMetric]:
        return [*self.metrics, *self.of_packages]

    def skip(self, metric: Metric | PackageMetric, reason: str) -> None:
        """Drops a metric that cannot be measured here."""
        group: list[Any] = self.metrics if isinstance(metric, Metric) else self.of_packages
        group.remove(metric)
        self.skipped.append((metric.name, reason))


def load_metrics(
    names: Iterable[str],
    device: str = "cpu",
    *,
    packages: Mapping[str, str] | None = None,
    base: Path = Path(),
    judge: Judge | None = None,
) -> Loaded:
    """Loads metrics. One whose weights or packages are missing is skipped with the reason.

    names: of `metric_names`, or "file.py:Class"; in the order in which the metrics are returned.
    packages: the Python of each metric that runs in a package. base: what files are relative to. device: where networks
    run. Sums are always kept on the CPU in float64. judge: instead of the one that is shipped with the models.
    """
    makers, loaded = _makers(device, judge), Loaded()
    for name in dict.fromkeys(names):
        try:
            if name in SCRIPTS:
                metric = PackageMetric(name, *([packages[name]] if packages and name in packages else []))
                loaded.of_packages.append(metric.require())
            elif is_file(name):
                loaded.metrics.append(_made(from_file(name, base), device))
            elif name in makers:
                loaded.metrics.append(makers[name]())
            else:
                raise MetricError(f"there is no metric {name!r}; there are {', '.join(metric_names())}")
        except MissingExtraError as error:
            loaded.skipped.append((name, str(error)))
    return loaded


def shown_name(name: str, base: Path) -> str:
    """The name of a metric in a table: for a class in a file its own."""
    return str(getattr(from_file(name, base), "name", name.rpartition(":")[2])) if is_file(name) else name


def compares_with_plain_cfg(name: str, base: Path) -> bool:
    """Whether a metric needs the floats of plain CFG's pictures."""
    if name in FIDELITY:
        return True
    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    found = from_file(name, base) if is_file(name) else registered[name].load() if name in registered else None
    return "pairs" in getattr(found, "needs", ())


def _makers(device: str, judge: Judge | None) -> dict[str, Callable[[], Metric]]:
    judges: dict[tuple[str, ...], Callable[[], list[Metric]]] = {  # each is loaded when one of its metrics is
        ("judge_accuracy", "tone_accuracy", "judge_frechet"): cache(
            lambda: garment_metrics(judge or ShippedJudge.load(JUDGE_PATH))
        ),
        ("emoji_recall_1", "emoji_recall_5", "emoji_frechet"): cache(
            lambda: emoji_metrics(EmojiJudge.load(), emoji_names())
        ),
        ("sound_accuracy", "instrument_accuracy", "sound_frechet"): cache(lambda: sound_metrics(SoundJudge.load())),
    }
    judged = {
        name: partial(lambda load, place: load()[place], load, place)
        for names, load in judges.items()
        for place, name in enumerate(names)
    }
    own = {entry.name: partial(lambda entry: _made(entry.load(), device), entry) for entry in entry_points(group=GROUP)}
    return {**FIDELITY, **judged, **own}


def _made(make: Any, device: str) -> Metric:
    metric: Metric = make(device=device) if "device" in inspect.signature(make).parameters else make()
    return metric


def metric_names() -> tuple[str, ...]:
    """All metrics: those of thg, and those that installed packages register."""
    return (*_makers("cpu", None), *SCRIPTS)
