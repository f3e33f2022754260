"""The stages of a benchmark: sample, measure, report. Each does this process's part of the missing work.

Processes share the store and never wait for each other: the one that finishes last finds nothing missing and writes the
report.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thg.bench.config import BenchConfig, parse_config
from thg.bench.inputs import PromptList, load_prompts
from thg.bench.keys import StoredMethod
from thg.bench.measure import Measurer, Progress
from thg.bench.runner import Runner
from thg.bench.store import RunFolder, RunFolderError, Series, Store
from thg.processes import Shard


@dataclass(frozen=True)
class BenchmarkRun:
    """A benchmark, the folder of its report and the store of its samples."""

    config: BenchConfig
    folder: RunFolder
    store: Store
    prompts: PromptList

    @classmethod
    def start(cls, config: BenchConfig, folder: Path, store: Path | None = None) -> BenchmarkRun:
        """Starts or resumes a run. store: by default `store` next to the folder, which other runs share."""
        return cls(config, RunFolder(folder), Store(store or folder.absolute().parent / "store"), load_prompts(config))

    @classmethod
    def stored(cls, folder: Path) -> BenchmarkRun:
        """The run of a folder."""
        stored = RunFolder(folder).stored()
        config = parse_config(stored["config"], Path(stored["base"]))
        return cls(config, RunFolder(folder), Store(Path(stored["store"])), load_prompts(config))

    def open(self) -> None:
        config = self.config
        self.folder.open(config.source, config.identity(), config.base, self.store.path)

    def stored_method(self, name: str) -> StoredMethod:
        return StoredMethod(self.store, self.config, self.config.method(name), self.prompts.digest)

    def series(self) -> dict[str, Series]:
        """The series of every method that is prepared and not skipped, by name; the reference first."""
        reference = self.config.reference_method.name
        names = sorted((method.name for method in self.config.methods), key=lambda name: name != reference)
        by_name = {name: self.stored_method(name).series for name in names}
        return {name: series for name, series in by_name.items() if series is not None}

    def missing_samples(self) -> int:
        """How many samples are missing, not counting skipped methods."""
        everything = set(range(self.config.count))
        methods = [self.stored_method(method.name) for method in self.config.methods]
        return sum(len(everything - stored.done()) for stored in methods if not stored.left_out)


def make_samples(run: BenchmarkRun, shard: Shard, progress: Progress) -> None:
    """Makes this process's part of the samples."""
    runner = Runner(run.config, run.store, run.prompts, shard, progress)
    if runner.missing_batches():
        runner.load()
    run.open()
    runner.run()


def measure_samples(run: BenchmarkRun, shard: Shard, progress: Progress) -> Measurer | None:
    """Does this process's part of the measurements; returns the metrics if nothing is missing any more, else None."""
    series = run.series()
    reference = series.get(run.config.reference_method.name)
    record = reference.any_record() if reference else None
    if reference is None or record is None:
        return None  # other processes have not made samples yet
    measurer = Measurer(run.config, run.store, shard.device)
    measurer.leave_out(sounds=record.get("rate") is not None)
    measurer.measure_samples(list(series.values()), reference, run.prompts.prompts, shard, progress)
    return None if run.missing_samples() or not complete(run, measurer) else measurer


def complete(run: BenchmarkRun, measurer: Measurer) -> bool:
    """Is everything measured?"""
    series = run.series()
    reference = series[run.config.reference_method.name]
    return not any(measurer.missing(each, reference) for each in series.values())


def require_samples(run: BenchmarkRun) -> None:
    if left := run.missing_samples():
        raise RunFolderError(f"{left} samples are missing in {run.store.path}: run thg bench again to resume")
