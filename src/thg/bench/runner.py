"""Sampling: the samples of every method on every prompt, resumable.

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
from functools import partial
from typing import Any
from uuid import uuid4

import torch

from thg.bench.config import Method
from thg.bench.measurer import Clock, Measurer, Say
from thg.bench.methods.policy import Pilot
from thg.bench.methods.third_party import CacheError
from thg.bench.metrics import Batch, compares_with_plain_cfg
from thg.bench.samples import Samples, load_pipeline, make_scheduler, run_pipeline
from thg.bench.store import BenchmarkRun, Series, check_room
from thg.errors import PlanError
from thg.processes import Shard, batches, sample_seed

PILOT = 16
"""Prompts on which thresholds are searched and the work of third-party caches is counted."""
BACKLOG = 4
"""Batches that may wait to be written."""


def make_samples(run: BenchmarkRun, shard: Shard, progress: Say) -> None:
    """Makes this process's part of the samples."""
    runner = Runner(run, shard, progress) if missing_batches(run, shard) else None
    run.open()
    if runner is not None:
        runner.run()


def missing_batches(run: BenchmarkRun, shard: Shard) -> list[range]:
    """The batches of this process in which some method lacks a sample."""
    mine = shard.of(batches(run.config.count, run.config.batch_size))
    missing = [series.missing() for series in run.series().values() if not series.left_out]
    return [batch for batch in mine if any(indices & {*batch} for indices in missing)]


class Runner:
    """Makes the samples of one shard. pipe: instead of the configuration's.

    What cannot be loaded is an error when a runner is made, before anything is written.
    """

    def __init__(self, run: BenchmarkRun, shard: Shard, progress: Say, pipe: Any = None) -> None:
        self.bench, self.config, self.prompts = run, run.config, run.prompts.prompts
        self.shard, self.progress = shard, progress
        self.pipe = load_pipeline(self.config.model, shard.device) if pipe is None else pipe
        usual, model_of = self.pipe.scheduler, self.config.model_of
        self.schedulers = {
            method.name: usual if method.scheduler is None else make_scheduler(model_of(method), usual.config)
            for method in self.config.methods
        }
        self._turn = uuid4().hex[:12]

    def run(self) -> None:
        """Makes the missing samples."""
        methods = self._prepare()
        mine = missing_batches(self.bench, self.shard)
        first = self._sample(methods[0].method, range(1), steps=2)  # warm up
        # other metrics are measured on the files
        pairs = [name for name in self.config.metrics if compares_with_plain_cfg(name, self.config.base)]
        measurer = Measurer(self.bench, self.shard.device, first.sample_rate is not None, pairs)
        missing = {series.key: series.missing() for series in methods}
        self.progress(check_room(self.bench.store, first, sum(len(left) for left in missing.values())))
        work = [(batch, [series for series in methods if missing[series.key] & {*batch}]) for batch in mine]
        clock = Clock(self.progress, sum(len(lacking) for _, lacking in work), "sampled")
        # one thread for the scores: a second OpenMP thread team would slow down every later network call on a CPU
        with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as writer:
            waiting: deque[Future[None]] = deque()
            for number, (batch, lacking) in enumerate(work):
                begins = number % len(methods)
                turns = [*methods[begins:], *methods[:begins]]
                for job in self._batch(batch, turns, lacking, measurer):
                    waiting.append(writer.submit(job))
                    if len(waiting) > BACKLOG:
                        waiting.popleft().result()
                    clock.tick()
            for future in waiting:
                future.result()

    def _prepare(self) -> list[Series]:
        """The methods ready to run, the reference first; third-party caches that do not work here are skipped."""
        for series in self.bench.series().values():
            method = series.method
            if series.ready or series.left_out:
                continue
            self.pipe.scheduler = self.schedulers[method.name]
            pilot = Pilot(
                self.pipe,
                self.prompts,
                method.steps,
                method.guidance_scale,
                run=partial(self._sample, method, range(min(PILOT, len(self.prompts)))),
                folder=series.parts,
                call=self.config.model.call,
            )
            try:
                series.write_prepared(method.implementation.prepare(pilot))
            except CacheError as error:
                series.write_prepared({"left_out": str(error)})
            except PlanError as error:
                raise PlanError(f"method {method.name!r}: {error}") from None
        return self.bench.ready()

    def _batch(
        self, batch: range, turns: list[Series], lacking: list[Series], measurer: Measurer
    ) -> Iterator[Callable[[], None]]:
        """Samples one batch of prompts with each method that lacks some of them; yields the write jobs.

        Samples that are made before plain CFG's wait for them, to be compared.
        """
        pairs = any("pairs" in metric.needs for metric in measurer.loaded.metrics)
        plain: torch.Tensor | None = None
        waiting: list[Callable[..., None]] = []
        for series in turns:
            is_reference = series.key == measurer.reference.key
            if series not in lacking and not (is_reference and pairs and lacking):
                continue
            samples, evaluations = self._made(series, batch)
            if is_reference:
                plain = samples.values
            if series in lacking:
                waiting.append(partial(self._write, series, samples, evaluations, batch, measurer))
            if plain is not None or not pairs:
                yield from (partial(write, plain) for write in waiting)
                waiting = []

    def _made(self, series: Series, batch: range) -> tuple[Samples, list[float]]:
        """A batch of one method: samples, and evaluations of each."""
        method = series.method
        self.pipe.scheduler = self.schedulers[method.name]
        with method.implementation.applied(self.pipe, series.prepared) as evaluations:
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
        series.write_timing(batch.start, self._turn, len(batch), seconds)
        return samples, counted

    def _sample(self, method: Method, batch: range, steps: int | None = None) -> Samples:
        model, seed = self.config.model, self.config.seed
        return run_pipeline(self.pipe, model, self.prompts, batch, seed, steps or method.steps, method.guidance_scale)

    def _write(
        self,
        series: Series,
        samples: Samples,
        evaluations: list[float],
        batch: range,
        measurer: Measurer,
        plain: torch.Tensor | None,
    ) -> None:
        """Measures the samples of a batch and writes them."""
        prompts = tuple(self.prompts[index] for index in batch)
        if metrics := measurer.metrics_of(series):
            measurer.measure(metrics, series, batch, Batch(samples.values, prompts, plain))
        for row, index in enumerate(batch):
            record = {
                "index": index,
                "prompt": prompts[row],
                "seed": sample_seed(self.config.seed, index),
                "nfe": evaluations[row],
                "rate": samples.sample_rate,
            }
            series.write(index, *samples.file(row), record)
