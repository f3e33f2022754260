"""Generation: every method on every prompt, in batches, sharded by prompt, resumable.

Batches are fixed runs of prompts, and the processes take them in turn; so a batch has the same content, and its
pictures the same bytes, whatever the number of processes. Scores against plain CFG are taken on the floats, before they
become bytes, by the thread that writes the files; it is never far behind, so memory does not grow.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from thg.bench.config import BenchConfig, Method
from thg.bench.errors import ConfigError
from thg.bench.methods.outside import OutsideError
from thg.bench.methods.policy import Pilot
from thg.bench.metrics import Batch, MeanMetric, Sources, load_metrics
from thg.bench.pipeline import Samples, load_pipeline, load_prompts, sample
from thg.bench.store import RunFolder
from thg.errors import PlanError
from thg.seeds import sample_seed

PILOT = 16
"""Prompts on which thresholds are searched and outside programs counted."""
BACKLOG = 4
"""Batches that may wait to be written."""
PAIRED = ("psnr", "ssim", "lpips")
"""Metrics that compare with plain CFG on the same seed."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Shard:
    """The part of one process: each `count`-th batch, from the `index`-th on."""

    index: int = 0
    count: int = 1
    device: str = "cpu"


def find_shard(written: str | None, device: str | None) -> Shard:
    """From `--shard 1/4`, or from the launcher: `accelerate launch` and `torchrun` tell each process its number.

    The numbers are all that is needed: processes never talk to each other, so none waits for a group or times out.
    """
    if written is not None:
        first, _, last = written.partition("/")
        if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
            raise ConfigError(f"--shard is written as 0/4 to 3/4, not {written!r}")
        return Shard(int(first), int(last), device or _best_device())
    launched = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not all(number.isdigit() for number in launched):
        return Shard(device=device or _best_device())
    index, count, local = map(int, launched)
    best = _best_device()
    return Shard(index, count, device or (f"cuda:{local}" if best == "cuda" else best))


def _best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class Runner:
    """Makes the samples of one shard."""

    def __init__(self, config: BenchConfig, folder: RunFolder, shard: Shard, progress: Progress) -> None:
        self.config = config
        self.folder = folder
        self.shard = shard
        self.progress = progress
        self.prompts = load_prompts(config)
        self.pipe = load_pipeline(config.model, shard.device)
        folder.open(config)
        wanted = [name for name in config.metrics if name in PAIRED]
        loaded = load_metrics(wanted, Sources.of(config.networks), shard.device)
        self.paired = [metric for metric in loaded.metrics if isinstance(metric, MeanMetric)]

    def run(self) -> None:
        """Makes what is missing."""
        batches = self._batches()
        mine = [batch for batch in batches[self.shard.index :: self.shard.count] if self._is_missing(batch)]
        if not mine:
            return
        methods = self._prepare()
        self._sample(methods[0], range(1), steps=2)  # warm up
        begun = time.perf_counter()
        # one thread for the scores: a second team of OpenMP threads would slow down every later network call on a CPU
        with ThreadPoolExecutor(max_workers=1, initializer=torch.set_num_threads, initargs=(1,)) as writer:
            waiting: deque[Future[None]] = deque()
            for number, batch in enumerate(mine):
                self._report(number, len(mine), begun)
                for job in self._batch(batch, methods):
                    waiting.append(writer.submit(job))
                    if len(waiting) > BACKLOG:
                        waiting.popleft().result()
            for future in waiting:
                future.result()
        self._report(len(mine), len(mine), begun)

    def _batches(self) -> list[range]:
        size, count = self.config.batch_size, self.config.count
        return [range(first, min(first + size, count)) for first in range(0, count, size)]

    def _is_missing(self, batch: range, method: Method | None = None) -> bool:
        methods = self.config.methods if method is None else (method,)
        return any(not self.folder.is_done(m.slug, index) for m in methods for index in batch)

    def _prepare(self) -> list[Method]:
        """The methods as they will run, the reference first; outside programs that do not work here are left out."""
        reference = self.config.reference_method
        ordered = sorted(self.config.methods, key=lambda method: method is not reference)
        ready = []
        for method in ordered:
            known = self.folder.prepared(method.slug)
            try:
                policy, measured = method.policy.prepare(self._pilot(method), known)
            except OutsideError as error:
                self.folder.write_prepared(method.slug, {"left_out": str(error)})
                continue
            except PlanError as error:
                raise PlanError(f"method {method.name!r}: {error}") from None
            if measured != known:
                self.folder.write_prepared(method.slug, measured)
            ready.append(replace(method, policy=policy))
        return ready

    def _pilot(self, method: Method) -> Pilot:
        first = range(min(PILOT, len(self.prompts)))
        return Pilot(
            self.pipe,
            self.prompts,
            method.steps,
            method.guidance_scale,
            run=lambda: self._sample(method, first),
            folder=self.folder.path / "prepared" / method.slug,
            call=self.config.model.call,
        )

    def _batch(self, batch: range, methods: list[Method]) -> Iterator[Callable[[], None]]:
        """Samples one batch of prompts with each method that lacks some of them; gives what is left to be written."""
        missing = [method for method in methods if self._is_missing(batch, method)]
        if not missing:
            return
        reference: Samples | None = None
        for method in methods:
            is_reference = method is methods[0]
            if method not in missing and not (is_reference and self.paired):
                continue
            with method.policy.applied(self.pipe) as evaluations:
                started = time.perf_counter()
                samples = self._sample(method, batch)
                seconds = time.perf_counter() - started
                counted = evaluations(len(batch))
            self._check(method, counted)
            if is_reference:
                reference = samples
            if method in missing:
                yield self._writing(method, batch, samples, None if is_reference else reference, counted, seconds)

    def _sample(self, method: Method, batch: range, steps: int | None = None) -> Samples:
        return sample(
            self.pipe,
            self.config.model,
            self.prompts,
            batch,
            self.config.seed,
            steps or method.steps,
            method.guidance_scale,
        )

    def _check(self, method: Method, counted: list[float]) -> None:
        if method.nfe is not None and any(nfe != method.nfe for nfe in counted):
            raise PlanError(
                f"method {method.name!r} made {counted[0]:g} evaluations a sample, but its budget is nfe={method.nfe}: "
                f"the scheduler may call the network more often than the {method.steps} steps; write nfe={counted[0]:g}"
            )

    def _writing(
        self,
        method: Method,
        batch: range,
        samples: Samples,
        reference: Samples | None,
        counted: list[float],
        seconds: float,
    ) -> Callable[[], None]:
        def write() -> None:
            scores = self._scores(samples, reference)
            for place, index in enumerate(batch):
                if self.folder.is_done(method.slug, index):
                    continue
                record = {
                    "prompt": self.prompts[index],
                    "index": index,
                    "seed": sample_seed(self.config.seed, index),
                    "nfe": counted[place],
                    **{name: values[place] for name, values in scores.items()},
                }
                value = samples.values[place]
                if samples.sample_rate is None:
                    self.folder.write_picture(method.slug, index, value, record)
                else:
                    self.folder.write_sound(method.slug, index, value, samples.sample_rate, record)
            self.folder.write_timing(method.slug, batch.start, len(batch), seconds)

        return write

    def _scores(self, samples: Samples, reference: Samples | None) -> dict[str, list[float | str]]:
        """What each sample has in common with plain CFG; four decimals, below which batches of other size differ."""
        if reference is None or samples.sample_rate is not None:
            return {}
        batch = Batch(samples.values, references=reference.values)
        with torch.inference_mode():
            return {metric.name: [_score(v) for v in metric.score(batch).tolist()] for metric in self.paired}

    def _report(self, number: int, of: int, begun: float) -> None:
        left = ""
        if number:
            left = f", about {(time.perf_counter() - begun) / number * (of - number):.0f} s left"
        self.progress(f"{number} of {of} batches{left if number < of else ''}")


def _score(value: float) -> float | str:
    """As JSON can hold it: it has no infinity, and equal pictures have an infinite PSNR."""
    return round(value, 4) if math.isfinite(value) else str(value)


def generate(config: BenchConfig, path: Path, shard: Shard, progress: Progress) -> None:
    """Makes the samples of a shard in the folder `path`."""
    Runner(config, RunFolder(path), shard, progress).run()
