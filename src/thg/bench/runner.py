"""Generation: every method on every prompt, in batches, sharded by prompt, resumable.

Batches are fixed ranges of prompts that are distributed over the processes, so a batch has the same content, and its
pictures the same bytes, for any number of processes. Within a batch the methods take turns, and another one begins each
time: a machine that becomes slower or faster during a run changes the seconds of all methods alike. The thread that
writes the files also computes the scores against plain CFG, on floats; its queue is bounded, so memory does not grow.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import torch

from thg.bench.config import BenchConfig, Method
from thg.bench.inputs import PromptList
from thg.bench.keys import StoredMethod
from thg.bench.measure import Clock, Measurer, Progress
from thg.bench.methods.policy import Pilot
from thg.bench.methods.third_party import CacheError
from thg.bench.metrics import Batch, compares_with_plain_cfg
from thg.bench.samples import Samples, check_room, load_pipeline, make_scheduler, sample
from thg.bench.store import Series, Store
from thg.errors import PlanError
from thg.processes import Shard, batches
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


@dataclass(frozen=True, eq=False)
class Made:
    """A batch of one method: samples, evaluations of each, and seconds."""

    ready: Ready
    samples: Samples
    evaluations: list[float]
    seconds: float


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
        self._digest = prompts.digest
        # other metrics are measured on the files
        pairs = [name for name in config.metrics if compares_with_plain_cfg(name, config.base)]
        self.measurer = Measurer(config, store, shard.device, pairs)
        self.pipe: Any = None
        self.schedulers: dict[str, Any] = {}  # by method
        self._turn = uuid4().hex[:12]

    def stored_methods(self) -> list[StoredMethod]:
        """Where samples are kept; not known before a model of the hub was downloaded."""
        return [StoredMethod(self.store, self.config, method, self._digest) for method in self.config.methods]

    def missing_batches(self) -> list[range]:
        """The batches of this process in which some method lacks a sample."""
        mine = self.shard.of(batches(self.config.count, self.config.batch_size))
        done = [stored.done() for stored in self.stored_methods() if not stored.left_out]
        return [batch for batch in mine if any(not {*batch} <= indices for indices in done)]

    def load(self) -> None:
        """Loads the pipeline; errors are raised here, before anything is written."""
        self.pipe = load_pipeline(self.config.model, self.shard.device)
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
        self.progress(check_room(self.store.path, first, sum(len(left) for left in missing.values())))
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
        reference = self.config.reference_method
        ready = []
        for stored in sorted(self.stored_methods(), key=lambda stored: stored.method is not reference):
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
        pairs = any("pairs" in metric.needs for metric in self.measurer.metrics)
        plain: Samples | None = None
        waiting: list[Made] = []
        first = number % len(methods)
        for ready in [*methods[first:], *methods[:first]]:
            if ready not in lacking and not (ready is reference and pairs):
                continue
            made = self._made(ready, batch)
            ready.series.write_timing(batch.start, self._turn, len(batch), made.seconds)
            if ready is reference:
                plain = made.samples
            waiting += [made] if ready in lacking else []
            if plain is not None or not pairs:
                yield from (self._writing(one, reference, batch, plain) for one in waiting)
                waiting = []

    def _made(self, ready: Ready, batch: range) -> Made:
        self.pipe.scheduler = self.schedulers[ready.method.name]
        with ready.method.policy.applied(self.pipe) as evaluations:
            started = time.perf_counter()
            samples = self._sample(ready.method, batch)
            seconds = time.perf_counter() - started
            counted = evaluations(len(batch))
        _check(ready.method, counted)
        return Made(ready, samples, counted, seconds)

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


def _check(method: Method, counted: list[float]) -> None:
    if method.nfe is not None and any(nfe != method.nfe for nfe in counted):
        raise PlanError(
            f"method {method.name!r} made {counted[0]:g} evaluations per sample, but its budget is nfe={method.nfe}: "
            f"the scheduler may call the network more often than the {method.steps} steps; write nfe={counted[0]:g}"
        )
