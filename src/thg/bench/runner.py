"""Generation: every method on every prompt, in batches, sharded by prompt, resumable.

Batches are fixed ranges of prompts that are distributed over the processes, so a batch has the same content, and its
pictures the same bytes, for any number of processes. The thread that writes the files also computes the scores against
plain CFG, on floats; its queue is bounded, so memory does not grow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from thg.bench.address import Place
from thg.bench.config import BenchConfig, Method
from thg.bench.inputs import PromptList
from thg.bench.keeping import check_room, encoded
from thg.bench.measuring import Clock, Measurer, Progress, as_batch
from thg.bench.methods.outside import OutsideError
from thg.bench.methods.policy import Pilot
from thg.bench.metrics.registry import pair_metric_names
from thg.bench.pipeline import Samples, check_decoder, load_pipeline, make_scheduler, sample
from thg.bench.shard import Shard, batches
from thg.bench.store import Series, Store
from thg.errors import PlanError
from thg.seeds import sample_seed

PILOT = 16
"""Prompts on which thresholds are searched and the work of third-party caches is counted."""
BACKLOG = 4
"""Batches that may wait to be written."""


@dataclass(frozen=True)
class Ready:
    """A method ready to run, and the series of its samples."""

    method: Method
    series: Series


class Runner:
    """Makes the samples of one shard."""

    def __init__(
        self, config: BenchConfig, store: Store, prompts: PromptList, shard: Shard, progress: Progress
    ) -> None:
        self.config = config
        self.store = store
        self.prompts = prompts.prompts
        self.shard = shard
        self.progress = progress
        self.places = [Place(store, config, method, prompts.digest) for method in config.methods]
        self.latents = config.storage.keep == "latents"
        # samples that are not kept must be measured now; others only by metrics that compare floats
        names = pair_metric_names(config.metrics) if config.storage.keep == "files" else config.metrics
        self.measurer = Measurer(config, store, shard.device, names)
        self.pipe: Any = None
        self.schedulers: dict[str, Any] = {}  # by method

    def missing_batches(self) -> list[range]:
        """The batches of this process in which some method lacks a sample."""
        mine = self.shard.of(batches(self.config.count, self.config.batch_size))
        done = [place.series.done() if place.series else set() for place in self.places if not place.left_out]
        return [batch for batch in mine if any(not {*batch} <= indices for indices in done)]

    def load(self) -> None:
        """Loads the pipeline; errors are raised here, before anything is written."""
        self.pipe = load_pipeline(self.config.model, self.shard.device)
        own = self.pipe.scheduler
        for method in self.config.methods:
            model = self.config.model_of(method)
            self.schedulers[method.name] = own if method.scheduler is None else make_scheduler(model, own.config)
        if self.latents:
            check_decoder(self.pipe, self.config.model)

    def run(self) -> None:
        """Makes the missing samples."""
        mine = self.missing_batches()
        if not mine:
            return
        if self.pipe is None:
            self.load()
        methods = self._prepare()
        first = self._sample(methods[0].method, range(1), steps=2)  # warm up
        self.measurer.leave_out(sounds=first.sample_rate is not None)
        missing = {ready.series.key: {*range(self.config.count)} - ready.series.done() for ready in methods}
        count = sum(len(left) for left in missing.values())
        storage, metrics = self.config.storage, self.config.metrics
        self.progress(check_room(self.store.path, first, count, storage, metrics))
        clock = Clock(self.progress, sum(len(_lacking(batch, methods, missing)) for batch in mine), "sampled")
        # one thread for the scores: a second OpenMP thread team would slow down every later network call on a CPU
        with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as writer:
            waiting: deque[Future[None]] = deque()
            for batch in mine:
                for job in self._batch(batch, methods, missing):
                    waiting.append(writer.submit(job))
                    if len(waiting) > BACKLOG:
                        waiting.popleft().result()
                    clock.tick()
            for future in waiting:
                future.result()

    def _prepare(self) -> list[Ready]:
        """The methods ready to run, the reference first; third-party caches that do not work here are skipped."""
        reference = self.config.reference_method
        ready = []
        for place in sorted(self.places, key=lambda place: place.method is not reference):
            method, known = place.method, place.prepared
            if "left_out" in known:
                continue
            self.pipe.scheduler = self.schedulers[method.name]
            try:
                policy, measured = method.policy.prepare(self._pilot(place), known)
            except OutsideError as error:
                place.write_prepared({"left_out": str(error)})
                continue
            except PlanError as error:
                raise PlanError(f"method {method.name!r}: {error}") from None
            if measured != known:
                place.write_prepared(measured)
            series = place.series
            assert series is not None  # it is prepared
            ready.append(Ready(replace(method, policy=policy), series))
        return ready

    def _pilot(self, place: Place) -> Pilot:
        first, method = range(min(PILOT, len(self.prompts))), place.method
        return Pilot(
            self.pipe,
            self.prompts,
            method.steps,
            method.guidance_scale,
            run=lambda: self._sample(method, first),
            folder=place.parts,
            call=self.config.model.call,
        )

    def _batch(self, batch: range, methods: list[Ready], missing: dict[str, set[int]]) -> Iterator[Callable[[], None]]:
        """Samples one batch of prompts with each method that lacks some of them; yields the write jobs."""
        lacking = _lacking(batch, methods, missing)
        if not lacking:
            return
        pairs = any("pairs" in metric.needs for metric in self.measurer.metrics)
        reference: Samples | None = None
        for ready in methods:
            is_reference = ready is methods[0]
            if ready not in lacking and not (is_reference and pairs):
                continue
            self.pipe.scheduler = self.schedulers[ready.method.name]
            with ready.method.policy.applied(self.pipe) as evaluations:
                started = time.perf_counter()
                samples = self._sample(ready.method, batch)
                seconds = time.perf_counter() - started
                counted = evaluations(len(batch))
            _check(ready.method, counted)
            if is_reference:
                reference = samples
            if ready in lacking:
                plain = None if is_reference else reference
                yield self._writing(ready, methods[0].series, batch, samples, plain, counted, seconds)

    def _sample(self, method: Method, batch: range, steps: int | None = None) -> Samples:
        config = self.config
        return sample(
            self.pipe,
            config.model,
            self.prompts,
            batch,
            config.seed,
            steps or method.steps,
            method.guidance_scale,
            self.latents,
        )

    def _writing(
        self,
        ready: Ready,
        reference: Series,
        batch: range,
        samples: Samples,
        plain: Samples | None,
        counted: list[float],
        seconds: float,
    ) -> Callable[[], None]:
        def write() -> None:
            measures = self.measurer.measures(ready.series.key == reference.key, reference)
            prompts = [self.prompts[index] for index in batch]
            self.measurer.measure(measures, ready.series, batch, as_batch(samples, plain, prompts))
            for place, index in enumerate(batch):
                record = {
                    "index": index,
                    "prompt": prompts[place],
                    "seed": sample_seed(self.config.seed, index),
                    "nfe": counted[place],
                    "rate": samples.sample_rate,
                }
                shown = index in self.config.sheet.prompts
                ready.series.write(index, *encoded(samples, place, self.config.storage, shown), record)
            ready.series.write_timing(batch.start, len(batch), seconds)

        return write


def _lacking(batch: range, methods: list[Ready], missing: dict[str, set[int]]) -> list[Ready]:
    """The methods that lack some sample of a batch."""
    return [ready for ready in methods if missing[ready.series.key] & {*batch}]


def _check(method: Method, counted: list[float]) -> None:
    if method.nfe is not None and any(nfe != method.nfe for nfe in counted):
        raise PlanError(
            f"method {method.name!r} made {counted[0]:g} evaluations per sample, but its budget is nfe={method.nfe}: "
            f"the scheduler may call the network more often than the {method.steps} steps; write nfe={counted[0]:g}"
        )
