"""A benchmark run: its folder and store, and the samples of every method on every prompt, resumable.

    RUN/config.json    the configuration, and the path of its store

Batches are fixed ranges of prompts that are distributed over the processes, so a batch has the same content, and its
pictures the same bytes, for any number of processes. Within a batch the methods take turns, and another one begins each
time: a machine that becomes slower or faster during a run changes the seconds of all methods alike. The thread that
writes the files also computes the scores against plain CFG, on floats; its queue is bounded, so memory does not grow.

Each process does its part of the missing work. They share the store and never wait for each other: the one that
finishes last finds nothing missing and writes the report.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch

from thg.bench.config import BenchConfig, Method, parse_config
from thg.bench.measure import Clock, Measurer, Progress
from thg.bench.methods.policy import Pilot
from thg.bench.methods.third_party import CacheError
from thg.bench.metrics import Batch, compares_with_plain_cfg
from thg.bench.samples import PromptList, Samples, check_room, load_pipeline, load_prompts, make_scheduler, sample
from thg.bench.store import RunFolderError, Series, StoredMethod, read_json, write_json
from thg.errors import PlanError
from thg.processes import Shard, batches, sample_seed

PILOT = 16
"""Prompts on which thresholds are searched and the work of third-party caches is counted."""
BACKLOG = 4
"""Batches that may wait to be written."""


@dataclass(frozen=True)
class BenchmarkRun:
    """A benchmark, the folder of its report and the store of its samples."""

    config: BenchConfig
    folder: Path
    store: Path
    prompts: PromptList

    @classmethod
    def start(cls, config: BenchConfig, folder: Path, store: Path | None = None) -> BenchmarkRun:
        """Starts or resumes a run. store: by default `store` next to the folder, which other runs share."""
        return cls(config, folder, store or folder.absolute().parent / "store", load_prompts(config))

    @classmethod
    def stored(cls, folder: Path) -> BenchmarkRun:
        """The run of a folder."""
        stored = read_json(folder / "config.json")
        if stored is None or not isinstance(stored.get("config"), dict) or not isinstance(stored.get("store"), str):
            raise RunFolderError(f"{folder} is not the folder of a run: there is no readable config.json in it")
        config = parse_config(stored["config"], Path(stored["base"]))
        return cls(config, folder, Path(stored["store"]), load_prompts(config))

    def open(self) -> None:
        """Writes the configuration into the folder; one that holds another run is an error."""
        config, stored = self.config, read_json(self.folder / "config.json")
        if stored is not None and stored.get("identity") != config.identity():
            raise RunFolderError(
                f"{self.folder} holds another run ({stored.get('config', {}).get('title')!r}), whose pictures differ "
                "from this one's; choose another folder with --out"
            )
        where = {"base": str(config.base), "store": str(self.store.resolve())}
        write_json(self.folder / "config.json", {"identity": config.identity(), "config": config.source, **where})

    def stored_method(self, name: str) -> StoredMethod:
        return StoredMethod(self.store, self.config, self.config.method(name), self.prompts.digest)

    def stored_methods(self) -> list[StoredMethod]:
        """The reference first. Not known before a model of the hub was downloaded."""
        reference = self.config.reference_method
        methods = sorted(self.config.methods, key=lambda method: method is not reference)
        return [self.stored_method(method.name) for method in methods]

    def series(self) -> dict[str, Series]:
        """The series of every method that is prepared and not skipped, by name; the reference first."""
        found = ((stored.method.name, stored.series) for stored in self.stored_methods())
        return {name: series for name, series in found if series is not None}

    def missing_samples(self) -> int:
        """How many samples are missing, not counting skipped methods."""
        everything = set(range(self.config.count))
        return sum(len(everything - stored.done()) for stored in self.stored_methods() if not stored.left_out)

    def require_samples(self) -> None:
        if left := self.missing_samples():
            raise RunFolderError(f"{left} samples are missing in {self.store}: run thg bench again to resume")


def make_samples(run: BenchmarkRun, shard: Shard, progress: Progress) -> None:
    """Makes this process's part of the samples."""
    runner = Runner(run, shard, progress)
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
    measurer = Measurer(run.config, shard.device)
    measurer.leave_out(sounds=record.get("rate") is not None)
    measurer.measure_samples(list(series.values()), reference, run.prompts.prompts, shard, progress)
    complete = not run.missing_samples() and not any(measurer.missing(s, reference) for s in run.series().values())
    return measurer if complete else None


class Ready(NamedTuple):
    """A method ready to run, and the series of its samples."""

    method: Method
    series: Series


class Made(NamedTuple):
    """A batch of one method: samples, and evaluations of each."""

    ready: Ready
    samples: Samples
    evaluations: list[float]


class Runner:
    """Makes the samples of one shard."""

    def __init__(self, run: BenchmarkRun, shard: Shard, progress: Progress) -> None:
        self.bench, self.config, self.prompts = run, run.config, run.prompts.prompts
        self.shard = shard
        self.progress = progress
        # other metrics are measured on the files
        pairs = [name for name in run.config.metrics if compares_with_plain_cfg(name, run.config.base)]
        self.measurer = Measurer(run.config, shard.device, pairs)
        self.pipe: Any = None
        self.schedulers: dict[str, Any] = {}  # by method
        self._turn = uuid4().hex[:12]

    def missing_batches(self) -> list[range]:
        """The batches of this process in which some method lacks a sample."""
        mine = self.shard.of(batches(self.config.count, self.config.batch_size))
        done = [stored.done() for stored in self.bench.stored_methods() if not stored.left_out]
        return [batch for batch in mine if any(not {*batch} <= indices for indices in done)]

    def load(self, pipe: Any = None) -> None:
        """Loads the pipeline, unless it is given; errors are raised here, before anything is written."""
        self.pipe = load_pipeline(self.config.model, self.shard.device) if pipe is None else pipe
        own = self.pipe.scheduler
        for method in self.config.methods:
            model = self.config.model_of(method)
            self.schedulers[method.name] = own if method.scheduler is None else make_scheduler(model, own.config)

    def run(self) -> None:
        """Makes the missing samples."""
        if not self.missing_batches():
            return
        if self.pipe is None:
            self.load()
        mine, methods = self.missing_batches(), self._prepare()
        first = self._sample(methods[0].method, range(1), steps=2)  # warm up
        self.measurer.leave_out(sounds=first.sample_rate is not None)
        missing = {ready.series.key: {*range(self.config.count)} - ready.series.done() for ready in methods}
        self.progress(check_room(self.bench.store, first, sum(len(left) for left in missing.values())))
        clock = Clock(self.progress, sum(len(_lacking(batch, methods, missing)) for batch in mine), "sampled")
        # one thread for the scores: a second OpenMP thread team would slow down every later network call on a CPU
        with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as writer:
            waiting: deque[Future[None]] = deque()
            for number, batch in enumerate(mine):
                for job in self._batch(batch, number, methods, missing):
                    waiting.append(writer.submit(job))
                    if len(waiting) > BACKLOG:
                        waiting.popleft().result()
                    clock.tick()
            for future in waiting:
                future.result()

    def _prepare(self) -> list[Ready]:
        """The methods ready to run, the reference first; third-party caches that do not work here are skipped."""
        ready = []
        for stored in self.bench.stored_methods():
            method, known = stored.method, stored.prepared
            if "left_out" in known:
                continue
            self.pipe.scheduler = self.schedulers[method.name]
            try:
                policy, measured = method.policy.prepare(self._pilot(stored), known)
            except CacheError as error:
                stored.write_prepared({"left_out": str(error)})
                continue
            except PlanError as error:
                raise PlanError(f"method {method.name!r}: {error}") from None
            if measured != known:
                stored.write_prepared(measured)
            series = stored.series
            assert series is not None  # it is prepared
            ready.append(Ready(replace(method, policy=policy), series))
        return ready

    def _pilot(self, stored: StoredMethod) -> Pilot:
        first, method = range(min(PILOT, len(self.prompts))), stored.method
        return Pilot(
            self.pipe,
            self.prompts,
            method.steps,
            method.guidance_scale,
            run=lambda: self._sample(method, first),
            folder=stored.parts,
            call=self.config.model.call,
        )

    def _batch(
        self, batch: range, number: int, methods: list[Ready], missing: dict[str, set[int]]
    ) -> Iterator[Callable[[], None]]:
        """Samples one batch of prompts with each method that lacks some of them; yields the write jobs.

        number: which method begins. Samples that are made before plain CFG's wait for them, to be compared.
        """
        lacking, reference = _lacking(batch, methods, missing), methods[0]
        if not lacking:
            return
        pairs = any("pairs" in metric.needs for metric in self.measurer.loaded.metrics)
        plain: Samples | None = None
        waiting: list[Made] = []
        first = number % len(methods)
        for ready in [*methods[first:], *methods[:first]]:
            if ready not in lacking and not (ready is reference and pairs):
                continue
            made = self._made(ready, batch)
            if ready is reference:
                plain = made.samples
            waiting += [made] if ready in lacking else []
            if plain is not None or not pairs:
                yield from (self._writing(one, reference, batch, plain) for one in waiting)
                waiting = []

    def _made(self, ready: Ready, batch: range) -> Made:
        method = ready.method
        self.pipe.scheduler = self.schedulers[method.name]
        with method.policy.applied(self.pipe) as evaluations:
            started = time.perf_counter()
            samples = self._sample(method, batch)
            seconds = time.perf_counter() - started
            counted = evaluations(len(batch))
        if method.nfe is not None and any(nfe != method.nfe for nfe in counted):
            raise PlanError(
                f"method {method.name!r} made {counted[0]:g} evaluations per sample, but its budget is "
                f"nfe={method.nfe}: the scheduler may call the network more often than the {method.steps} steps; write "
                f"nfe={counted[0]:g}"
            )
        ready.series.write_timing(batch.start, self._turn, len(batch), seconds)
        return Made(ready, samples, counted)

    def _sample(self, method: Method, batch: range, steps: int | None = None) -> Samples:
        model, seed = self.config.model, self.config.seed
        return sample(self.pipe, model, self.prompts, batch, seed, steps or method.steps, method.guidance_scale)

    def _writing(self, made: Made, reference: Ready, batch: range, plain: Samples | None) -> Callable[[], None]:
        def write() -> None:
            series, samples = made.ready.series, made.samples
            prompts = tuple(self.prompts[index] for index in batch)
            is_reference = series.key == reference.series.key
            if measures := self.measurer.measures(is_reference, reference.series):
                against = None if is_reference or plain is None else plain.values
                self.measurer.measure(measures, series, batch, Batch(samples.values, prompts, against))
            for row, index in enumerate(batch):
                record = {
                    "index": index,
                    "prompt": prompts[row],
                    "seed": sample_seed(self.config.seed, index),
                    "nfe": made.evaluations[row],
                    "rate": samples.sample_rate,
                }
                series.write(index, *samples.file(row), record)

        return write


def _lacking(batch: range, methods: list[Ready], missing: dict[str, set[int]]) -> list[Ready]:
    """The methods that lack some sample of a batch."""
    return [ready for ready in methods if missing[ready.series.key] & {*batch}]
