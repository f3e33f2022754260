"""`calibrate`: runs a pipeline or a denoiser on samples, batch by batch, and makes a profile of its guidance."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from thg.calibration.grid import NoiseGrid
from thg.calibration.own_denoiser import OwnDenoiser
from thg.calibration.pipeline import Pipeline
from thg.calibration.record import Held, Recorder
from thg.calibration.shards import Rows, Shards
from thg.calibration.subject import Subject
from thg.distribution import versions
from thg.errors import ProfileError
from thg.ode.outputs import Prediction
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, ddim
from thg.plans.guide import Guide
from thg.plans.run import RunInfo
from thg.processes import Process
from thg.profiles.moments import Moments, exact_sum
from thg.profiles.profile import About, Profile

ANCHORS = 10
SENSITIVITY_SAMPLES = 4

Array = NDArray[np.float64]


def calibrate(
    pipe: Any,
    prompts: Any,
    *,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    sensitivity: int = SENSITIVITY_SAMPLES,
    folder: str | PathLike[str] | None = None,
    call: Mapping[str, Any] | None = None,
    progress: bool = True,
    schedule: Schedule | None = None,
    x: Tensor | None = None,
    solver: Solver | None = None,
    unconditional: Any = False,
    batched: bool = False,
    guidance_interval: tuple[float, float] | None = None,
) -> Profile:
    """Measures where the guidance term of a model can be predicted (Algorithm 3), in normal runs.

    Common arguments:
        pipe: a pipeline; or a denoiser, as `thg.sample` takes it, with `schedule` and `x`.
        prompts: one sample each; a few dozen are enough for a plan. Class labels for a class-conditional pipeline. For
            a denoiser the conditions: a tensor with a row for each sample, a list, or tuples and dictionaries of them;
            None if the denoiser takes True and False.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.
        batch_size: samples per run. It does not change the result.

    For a denoiser, all as in `thg.sample`:
        schedule: the grid and the network's conventions. x: the start states, one row per sample.
        solver, unconditional, batched, guidance_interval.

    Advanced arguments:
        seed: the noise of a pipeline's sample depends only on it and on the index of its prompt.
        sensitivity: samples for the sensitivity curve, with which the optimal planner weights errors; 0 skips it. Each
            costs eleven runs of plain CFG.
        folder: where finished batches are kept. A calibration that was killed resumes from there, and the processes of
            `accelerate launch` share the work in it.
        call: further arguments of the pipeline's call (height, negative_prompt, ...).

    Costs 4 evaluations per step and sample, of which 2 are those of a plain run.
    """
    if batch_size < 1 or sensitivity < 0:
        raise ProfileError(f"batch_size must be at least 1 and sensitivity at least 0, not {batch_size}, {sensitivity}")
    subject: Subject
    if schedule is None and x is None:
        subject = Pipeline.of(pipe, prompts, steps, guidance_scale, seed, call or {})
    elif schedule is None:
        raise ProfileError("a denoiser needs the grid of its runs: thg.calibrate(..., schedule=thg.Schedule.vp(50))")
    else:
        if steps not in (None, schedule.steps) or call:
            raise ProfileError("steps= and call= are for pipelines; a denoiser's steps are those of its schedule")
        subject = OwnDenoiser.of(
            pipe, prompts, x, schedule, solver or ddim(), guidance_scale, guidance_interval, unconditional, batched
        )
    work = _Work(subject, batch_size, seed, min(sensitivity, subject.samples) if subject.steps >= 4 else 0)
    process = Process.current()
    if process.count > 1 and folder is None:
        raise ProfileError("several processes need a folder to share: calibrate(..., folder='calibration')")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    shards = Shards(Path(folder) if folder is not None else None, work.settings(), today)
    with _progress(work, shards, process, progress) as advance, subject.quiet():
        for kind, samples in work.units(shards, process):
            if shards.has(kind, samples):  # done by another process in the meantime
                continue
            measure = work.measure_samples if kind == "samples" else work.measure_sensitivity
            shards.add(kind, samples, measure(samples))
            advance(work.cost(kind, samples))
    return work.profile(shards)


# -- the work


@dataclass
class _Work:
    """A calibration: what is measured, on which samples, and how it becomes a profile."""

    subject: Subject
    batch_size: int
    seed: int
    sensitivity: int
    grid: NoiseGrid | None = field(default=None, init=False)

    @property
    def steps(self) -> int:
        return self.subject.steps

    def settings(self) -> dict[str, Any]:
        """Everything that the measured rows depend on."""
        measured = "with the norm of the state"  # 0.1.0 did not keep it
        return {**self.subject.settings(), "seed": self.seed, "sensitivity": self.sensitivity, "samples": measured}

    def units(self, shards: Shards, process: Process) -> list[tuple[str, list[int]]]:
        """The batches that are not measured yet: the share of this process, then those of the others.

        Batches are assigned by their index, whether done or not, so that processes that start at different times agree.
        A process that has finished its share works on those of the others, from their ends, instead of waiting: each
        process ends with the whole profile, also if another one was killed.
        """
        batches = [
            (kind, range(first, min(first + self.batch_size, count)))
            for kind, count in (("samples", self.subject.samples), ("sensitivity", self.sensitivity))
            for first in range(0, count, self.batch_size)
        ]
        done = {kind: shards.done(kind) for kind in ("samples", "sensitivity")}
        shares = [batches[rank :: process.count] for rank in range(process.count)]
        others = [share for rank, share in enumerate(shares) if rank != process.rank]
        ordered = [*shares[process.rank], *(unit for share in others for unit in reversed(share))]
        left = ((kind, [i for i in batch if i not in done[kind]]) for kind, batch in ordered)
        return [(kind, samples) for kind, samples in left if samples]

    def cost(self, kind: str, samples: Sequence[int]) -> int:
        """Network evaluations."""
        per_sample = 4 * self.steps - 2 if kind == "samples" else 2 * self.steps * (len(self.anchors) + 1)
        return per_sample * len(samples)

    @property
    def anchors(self) -> tuple[int, ...]:
        """The steps at which the sensitivity is measured: spread over the guided ones, from 1 to N-2."""
        start, end = self.subject.guided
        first, last = max(start, 1), min(end - 1, self.steps - 2)
        places = np.linspace(first, last, min(ANCHORS, last - first + 1)) if self.sensitivity else np.zeros(0)
        return tuple(int(k) for k in np.unique(np.round(places)))

    def measure_samples(self, samples: Sequence[int]) -> Rows:
        recorder = self._run(samples, lambda run: Recorder(run, self._grid_of(run), len(samples)))
        rows: Rows = recorder.measured()
        grid = self.grid
        assert grid is not None
        same = {"times": recorder.times, "noise": grid.noise, "middle": grid.middle}
        rows |= {name: np.tile(values, (len(samples), 1)) for name, values in same.items()}
        rows["solver"] = np.tile([float(grid.order), float(_KINDS.index(grid.prediction))], (len(samples), 1))
        return rows

    def measure_sensitivity(self, samples: Sequence[int]) -> Rows:
        """S_k: the fraction of an error made at step k, by holding d there, that remains at the last network call."""
        last = self.steps - 1
        watched = (*(k + 1 for k in self.anchors), last)
        plain = self._held_at(None, samples, watched)
        survived = []
        for k in self.anchors:
            held = self._held_at(k, samples, (k + 1, last))
            at_step = (held[k + 1] - plain[k + 1]).norm(dim=1)
            at_end = (held[last] - plain[last]).norm(dim=1)
            survived.append(torch.where(at_step > 0, at_end / at_step, torch.ones_like(at_step)))
        return {"survival": torch.stack(survived, dim=1).double().cpu().numpy()}

    def _held_at(self, k: int | None, samples: Sequence[int], watched: tuple[int, ...]) -> dict[int, torch.Tensor]:
        states: dict[int, torch.Tensor] = self._run(samples, lambda run: Held(run, k, watched, len(samples))).states
        return states

    def _run(self, samples: Sequence[int], guide: Callable[[RunInfo], Guide]) -> Any:
        """One run with plain CFG and a guide that measures."""
        maker = _Maker(guide)
        self.subject.run(samples, maker)
        if maker.last is None:
            name = self.subject.about()["pipeline"]
            raise ProfileError(f"{name} ran without calling its network; nothing was measured")
        return maker.last

    def _grid_of(self, run: RunInfo) -> NoiseGrid:
        self.grid = self.subject.grid(run)
        return self.grid

    def profile(self, shards: Shards) -> Profile:
        rows = shards.rows("samples")
        if len(rows["gram"]) != self.subject.samples:
            raise ProfileError(f"only {len(rows['gram'])} of {self.subject.samples} samples are measured; run it again")
        order, kind = rows["solver"][0]
        about = About(
            **self.subject.about(),
            prediction=_KINDS[int(kind)],
            order=int(order),
            steps=self.steps,
            guidance_scale=self.subject.guidance_scale,
            seed=self.seed,
            date=shards.date,
            versions=versions(),
        )
        survival = shards.rows("sensitivity")
        return Profile(
            about,
            rows["times"][0],
            rows["noise"][0],
            rows["middle"][0],
            Moments.of(rows["tortoise"]),
            Moments.of(rows["hare"]),
            Moments.of(rows["tortoise_rate"]),
            Moments.of(rows["hare_rate"]),
            gram=exact_sum(rows["gram"]),
            anchors=self.anchors,
            sensitivity=Moments.of(survival["survival"]) if survival else None,
            state=Moments.of(rows["state"]),
        )


_KINDS: tuple[Prediction, ...] = get_args(Prediction)


class _Maker:
    """Makes one guide and keeps it."""

    def __init__(self, make: Callable[[RunInfo], Guide]) -> None:
        self._make = make
        self.last: Guide | None = None

    def guide(self, run: RunInfo) -> Guide:
        self.last = self._make(run)
        return self.last


@contextmanager
def _progress(work: _Work, shards: Shards, process: Process, shown: bool) -> Iterator[Callable[[int], None]]:
    try:
        from tqdm.auto import tqdm
    except ImportError:  # it comes with diffusers
        yield lambda done: None
        return
    ahead = sum(work.cost(kind, samples) for kind, samples in work.units(shards, process)) // process.count
    with tqdm(total=ahead, unit="eval", desc="calibrating", disable=not (shown and process.rank == 0)) as bar:
        yield bar.update
