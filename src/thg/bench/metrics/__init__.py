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
import json
import math
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from thg.bench.metrics import package_scripts
from thg.bench.metrics.base import Batch, MeanMetric, Metric, MetricError, Scored, SetMetric
from thg.bench.metrics.fidelity import PSNR, SNR, SSIM, LogMelDistance
from thg.bench.metrics.judges import GarmentJudge, emoji_metrics, garment_metrics, sound_metrics
from thg.bench.metrics.package_scripts import SCRIPTS, Inputs
from thg.bench.tables import from_file, is_file
from thg.distribution import install_line
from thg.errors import MissingExtraError
from thg.models.judge import EmojiJudge, Judge, SoundJudge

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


class PackageMetric(Scored):
    """One of `SCRIPTS`. python: the interpreter in whose environment the package is installed."""

    def __init__(self, name: str, python: str = sys.executable) -> None:
        self.name, self.python, self._script = name, python, SCRIPTS[name]
        self.direction, self.hears, self.needs = self._script.direction, self._script.hears, {self._script.need}

    def values(self, job: Inputs) -> list[float]:
        """One number per sample, or one for the set."""
        done = self._run([self.name], json.dumps(job))
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            reason = next((line for line in reversed(lines) if "Error:" in line), lines[-1])
            raise MetricError(f"{self.name} failed in {self.python}: {reason.strip()[:300]}")
        values: list[float] = json.loads(done.stdout.strip().splitlines()[-1])
        if not all(map(math.isfinite, values)):
            raise MetricError(f"{self.name} in {self.python} gave NaN or infinity")
        return values

    def require(self) -> PackageMetric:
        """Itself, or the error that says how to install the package."""
        if self._run([self.name, "--check"]).returncode:
            raise MissingExtraError(
                f"{self.python} has no package {self._script.package}; install it in an environment of its own, "
                f"{install_line('metric-packages')}, and write its Python into the configuration: "
                f'[packages] {self.name} = "/path/to/bin/python"'
            )
        return self

    def _run(self, words: list[str], text: str = "") -> subprocess.CompletedProcess[str]:
        try:
            command = [self.python, package_scripts.__file__, *words]
            return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MissingExtraError(
                f"cannot run {self.python} for {self.name} ({error.strerror}); [packages] names the Python in whose "
                "environment the package is installed"
            ) from None


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
    judge: GarmentJudge | None = None,
) -> Loaded:
    """Loads metrics. One whose weights or packages are missing is skipped with the reason.

    names: of `metric_names`, or "file.py:Class"; in the order in which the metrics are returned.
    packages: the Python of each metric that runs in a package. base: what files are relative to. device: where networks
    run. Sums are always kept on the CPU in float64. judge: instead of the one that is shipped with the models.
    """
    judged, loaded = _judged(judge), Loaded()
    for name in dict.fromkeys(names):
        try:
            if name in SCRIPTS:
                python = (packages or {}).get(name, sys.executable)
                if Path(python).name != python:  # else it is found on PATH
                    python = str(base / Path(python).expanduser())
                loaded.of_packages.append(PackageMetric(name, python).require())
            elif name in judged:
                loaded.metrics.append(judged[name])
            elif (make := _class(name, base)) is not None:
                takes_device = "device" in inspect.signature(make).parameters
                loaded.metrics.append(make(device=device) if takes_device else make())
            else:
                raise MetricError(f"there is no metric {name!r}; there are {', '.join(metric_names())}")
        except MissingExtraError as error:
            loaded.skipped.append((name, str(error)))
    return loaded


def metric_names() -> tuple[str, ...]:
    """All metrics: those of thg, and those that installed packages register."""
    return (*FIDELITY, *_judged(), *(entry.name for entry in entry_points(group=GROUP)), *SCRIPTS)


def shown_name(name: str, base: Path) -> str:
    """The name of a metric in a table: for a class in a file its own."""
    return str(getattr(from_file(name, base), "name", name.rpartition(":")[2])) if is_file(name) else name


def compares_with_plain_cfg(name: str, base: Path) -> bool:
    """Whether a metric needs the floats of plain CFG's pictures."""
    return "pairs" in getattr(_class(name, base), "needs", ())


def _class(name: str, base: Path) -> Any:
    """The class of a metric, or the function that makes it: in a file, of a package that registers it, or thg's own."""
    if is_file(name):
        return from_file(name, base)
    registered = {entry.name: entry for entry in entry_points(group=GROUP)}
    return registered[name].load() if name in registered else FIDELITY.get(name)


def _judged(judge: GarmentJudge | None = None) -> dict[str, Metric]:
    """The metrics of the judges, each of which is loaded when one of its metrics is measured."""
    garments = garment_metrics(cache(Judge.load) if judge is None else lambda: judge)
    metrics = [*garments, *emoji_metrics(cache(EmojiJudge.load)), *sound_metrics(cache(SoundJudge.load))]
    return {metric.name: metric for metric in metrics}
