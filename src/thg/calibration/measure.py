"""`calibrate`: runs a pipeline or a denoiser on samples, batch by batch, and makes a profile.

Two things are measured of the whole network: the outputs that reach the scheduler in a plain run, of which the Gram
matrix is kept, and how much of an error survives. For the latter a run is repeated in which each sample has an error in
its output at one step. Up to that step the outputs of the plain run are used again, so nothing runs there.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from thg.calibration.algorithm3 import Recorder, finite
from thg.calibration.subjects import Subject, progress_bar, subject_of
from thg.distribution import versions
from thg.errors import ProfileError, UnsupportedPipelineError
from thg.ode.curves import Prediction
from thg.ode.integrate import Interval
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.guide import Guide
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Planned, tapered
from thg.plans.run import RunInfo, Term
from thg.processes import Process, batches
from thg.profiles.planner import output_weight
from thg.profiles.profile import About, Constants, Moments, Profile, exact_sum
from thg.rows import RowFolder, Rows

ANCHORS = 8  # steps at which it is measured how much of an error survives, at most


def calibrate(
    pipe: Any,
    prompts: Any,
    *,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    sensitivity: int = 1,
    algorithm3: bool = False,
    layout: Batched | Sequential | None = None,
    folder: str | PathLike[str] | None = None,
    call: Mapping[str, Any] | None = None,
    progress: bool = True,
    schedule: Schedule | None = None,
    x: Tensor | None = None,
    solver: Solver | None = None,
    unconditional: Any = False,
    batched: bool = False,
    guidance_interval: Interval | None = None,
) -> Profile:
    """Measures where the outputs of a network can be predicted, in normal runs.

    Common arguments:
        pipe: a pipeline; or a denoiser, as `thg.sample` takes it, with `schedule` and `x`.
        prompts: one sample each; five are enough for a plan. Class labels for a class-conditional pipeline. For a
            denoiser the conditions: a tensor with a row for each sample, a list, or tuples and dictionaries of them;
            None if the denoiser takes True and False.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.
        batch_size: samples per run. It does not change the result.

    For a denoiser, all as in `thg.sample`:
        schedule: the grid and the network's conventions. x: the start states, one row per sample.
        solver, unconditional, batched, guidance_interval.

    Advanced arguments:
        seed: the noise of a pipeline's sample depends only on it and on the index of its prompt.
        sensitivity: further runs per sample that measure how much of an error survives; 0 skips it.
        algorithm3: also measures the paper's error constants, for `profile.planner(rho=)`, at two more plain runs per
            sample. layout: how the pipeline lays out its branches, as for `thg.enable`; nothing else needs it.
        folder: where finished batches are kept. A calibration that was killed resumes from there, and the processes of
            `accelerate launch` share the work in it.
        call: further arguments of the pipeline's call (height, negative_prompt, ...).

    Costs at most two plain runs per sample: ten with five prompts.
    """
    if batch_size < 1 or sensitivity < 0:
        raise ProfileError(f"batch_size must be at least 1 and sensitivity at least 0, not {batch_size}, {sensitivity}")
    own = (schedule, x, solver, guidance_interval, unconditional, batched)
    subject = subject_of(pipe, prompts, steps, guidance_scale, seed, call, layout, *own)
    if algorithm3 and (subject.guidance_scale <= 1 or guidance_interval is not None):
        raise ProfileError(
            f"guidance_scale must be above 1, not {subject.guidance_scale:g}, and guidance_interval be left out: "
            "Algorithm 3 measures the guidance at all steps"
        )
    process = Process.current()
    if process.count > 1 and folder is None:
        raise ProfileError("several processes need a folder to share: calibrate(..., folder='calibration')")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    sensitivity = sensitivity if subject.steps >= 4 else 0
    settings = {**subject.settings(), "sensitivity": sensitivity, "measured": "outputs"}
    rows = RowFolder(None if folder is None else Path(folder), settings, today)
    work = _Work(subject, batch_size, sensitivity, algorithm3, rows)
    ahead = sum(work.cost(kind, samples) for kind, samples in work.units(process)) // process.count
    shown = progress and process.rank == 0
    with progress_bar(ahead, "eval", "calibrating", shown) as advance, subject.quiet():
        for kind, samples in work.units(process):
            if not rows[kind].has(samples):  # done by another process in the meantime
                rows[kind].add(samples, work.measure[kind](samples))
                advance(work.cost(kind, samples))
    return work.profile(seed)


# -- runs that measure


class PlainRun(Leaps):
    """A run with all evaluations, whose outputs are kept. state: the last one."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(Plan(run.steps, tuple(range(run.steps)), skips="network"), run)
        self.run = run
        self.outputs: list[Tensor] = []
        self.state: Any = None

    def evaluates(self, step: int) -> bool:
        return True

    def observe(self, step: int, output: Term) -> Term:
        self.outputs.append(output[0])
        return output

    def forget(self) -> None:
        """Nothing is predicted."""

    def estimated_error(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        self.state = sample
        return None


class DisturbedRun(PlainRun):
    """A plain run again, in which each sample uses another output at one of its calls."""

    def __init__(self, plain: PlainRun, calls: Sequence[int]) -> None:
        super().__init__(plain.run)
        self._plain, self._calls = plain.outputs, calls
        parts = [output.chunk(len(calls)) for output in plain.outputs]
        self._used = [_disturbed(*(part[i] for part in parts[k - 1 : k + 2])) for i, k in enumerate(calls)]

    def evaluates(self, step: int) -> bool:
        return step == 0 or step > min(self._calls)  # the calls of the first step are answered by nothing else

    def observe(self, step: int, output: Term) -> Term:
        return (self._mixed(step, output[0]),)

    def predict(self, step: int) -> Term:
        return (self._mixed(step, self._plain[step]),)

    def _mixed(self, step: int, fresh: Tensor) -> Tensor:
        """The plain run's output for samples before their call, the other one at it, and the fresh one after it."""
        rows, known = list(fresh.chunk(len(self._calls))), self._plain[step].chunk(len(self._calls))
        for i, call in enumerate(self._calls):
            if step <= call:
                rows[i] = self._used[i] if step == call else known[i]
        return torch.cat(rows)

    def caused(self) -> Tensor:
        """The squared norm of each sample's disturbance."""
        known = [self._plain[call].chunk(len(self._calls))[i] for i, call in enumerate(self._calls)]
        return torch.stack([(a - b).float().square().sum() for a, b in zip(self._used, known, strict=True)])


def _disturbed(before: Tensor, now: Tensor, after: Tensor) -> Tensor:
    """An output with an error like that of a leap: in the direction of the second difference of the outputs.

    Its size is that of the first difference, so that rounding does not matter.
    """
    bend = after - 2 * now + before
    size: Tensor = (now - before).norm() / bend.norm().clamp_min(torch.finfo(bend.dtype).tiny)
    return now + bend * size


@dataclass(frozen=True)
class _Follows(Planned):
    """Makes the runs of a pipeline, one of each scheduler that it steps, and keeps them."""

    make: Callable[[int, RunInfo], PlainRun]
    made: list[PlainRun]

    def leaps(self, run: RunInfo) -> Leaps:
        self.made.append(self.make(len(self.made), run))
        return self.made[-1]


class _Guides:
    """Makes one guide and keeps it."""

    def __init__(self, make: Callable[[RunInfo], Recorder]) -> None:
        self._make = make
        self.made: list[Recorder] = []

    def guide(self, run: RunInfo) -> Guide:
        self.made.append(self._make(run))
        return self.made[-1]


# -- the work


@dataclass
class _Work:
    """A calibration: what is measured, on which samples, and how it becomes a profile."""

    subject: Subject
    batch_size: int
    sensitivity: int
    algorithm3: bool
    rows: RowFolder

    @property
    def measure(self) -> dict[str, Callable[[Sequence[int]], Rows]]:
        paper = {"algorithm3": self._constants} if self.algorithm3 else {}
        return {"samples": self._outputs, **paper}

    def units(self, process: Process) -> list[tuple[str, list[int]]]:
        """The batches that are not measured yet: the share of this process, then those of the others.

        Batches are assigned by their index, whether done or not, so that processes that start at different times agree.
        A process that has finished its share works on those of the others, from their ends, instead of waiting: each
        process ends with the whole profile, also if another one was killed.
        """
        every = [(kind, batch) for kind in self.measure for batch in batches(self.subject.samples, self.batch_size)]
        done = {kind: self.rows[kind].done() for kind in self.measure}
        shares = [every[rank :: process.count] for rank in range(process.count)]
        others = [share for rank, share in enumerate(shares) if rank != process.rank]
        ordered = [*shares[process.rank], *(unit for share in others for unit in reversed(share))]
        left = ((kind, [i for i in batch if i not in done[kind]]) for kind, batch in ordered)
        return [(kind, samples) for kind, samples in left if samples]

    def cost(self, kind: str, samples: Sequence[int]) -> int:
        """Network evaluations, about."""
        runs = 2 if kind == "algorithm3" else 1 + self.sensitivity
        return 2 * runs * self.subject.steps * len(samples)

    @property
    def anchors(self) -> tuple[int, ...]:
        """The steps at which an error is made: spread from 1 to N-2."""
        last = self.subject.steps - 2
        count = min(ANCHORS, last, self.sensitivity * self.subject.samples)
        return tuple(int(k) for k in np.unique(np.round(np.linspace(1, last, count)))) if count > 0 else ()

    def _outputs(self, samples: Sequence[int]) -> Rows:
        """Of each sample: the Gram matrix of its outputs, the norm of its last state, and what survived of errors."""
        plain = self._runs(samples, lambda _, run: PlainRun(run))
        grid, places = self.subject.grid(plain[0].run), _places(plain[0].run)
        values = torch.cat(
            [torch.stack([_rows(run.outputs[call], samples) for call in places], dim=1) for run in plain], dim=2
        )
        doubled = values.to("cpu", torch.float64)
        rows: Rows = {"gram": torch.bmm(doubled, doubled.transpose(1, 2)).numpy()}
        rows["state"] = _states(plain, samples).norm(dim=1, keepdim=True).double().cpu().numpy()
        rows["solver"] = np.tile([float(grid.order), float(_KINDS.index(grid.prediction))], (len(samples), 1))
        rows["noise"] = np.tile(grid.noise, (len(samples), 1))
        rows["survival"] = np.zeros((len(samples), len(self.anchors)))  # 0: not measured on this sample
        for turn in range(self.sensitivity if self.anchors else 0):
            chosen = [(i * self.sensitivity + turn) % len(self.anchors) for i in samples]
            held = [self.anchors[which] for which in chosen]
            calls = [places[k] for k in held]
            again = self._runs(samples, lambda i, run, calls=calls: DisturbedRun(plain[i], calls))  # type: ignore[misc]
            moved = (_states(again, samples) - _states(plain, samples)).norm(dim=1)
            errors = torch.stack([run.caused() for run in again]).sum(0).sqrt()  # type: ignore[attr-defined]
            for row, (which, k) in enumerate(zip(chosen, held, strict=True)):
                caused = abs(output_weight(grid.prediction, grid.noise[k], grid.noise[k + 1])) * float(errors[row])
                rows["survival"][row, which] = float(moved[row]) / caused if caused > 0 else 1.0
        return finite(rows)

    def _constants(self, samples: Sequence[int]) -> Rows:
        """Algorithm 3."""
        maker = _Guides(lambda run: Recorder(run, self.subject.grid(run), len(samples)))
        self.subject.run(samples, maker)
        self._require(maker.made)
        return maker.made[-1].measured()

    def _runs(self, samples: Sequence[int], make: Callable[[int, RunInfo], PlainRun]) -> list[PlainRun]:
        """One run of the subject, for each of its schedulers."""
        follows = _Follows(tapered(1.0), make, [])
        _, report = self.subject.run(samples, follows)
        if report.caches:
            raise ProfileError(
                f"{report.caches[0]} is inside the network, so its outputs are not the network's own; disable it, "
                "calibrate, and enable it again"
            )
        self._require(follows.made)
        if any(run.run.steps != follows.made[0].run.steps or run.state is None for run in follows.made):
            raise ProfileError("calibration measures a single loop over the time steps, which runs to its end")
        return follows.made

    def _require(self, runs: Sequence[object]) -> None:
        if not runs:
            name = self.subject.about()["pipeline"]
            raise ProfileError(f"{name} ran without calling its network; nothing was measured")

    def profile(self, seed: int) -> Profile:
        rows, constants, count = self.rows["samples"].read(), None, self.subject.samples
        if self.algorithm3:
            paper = self.rows["algorithm3"].read()
            parts = {name: Moments.of(paper[name]) for name in ("tortoise", "hare", "tortoise_rate", "hare_rate")}
            constants = Constants(paper["times"][0], paper["middle"][0], **parts)
            count = min(count, len(paper["times"]))
        if min(count, len(rows["gram"])) != self.subject.samples:
            raise ProfileError(f"only {count} of {self.subject.samples} samples are measured; run it again")
        order, kind = rows["solver"][0]
        about = About(
            **self.subject.about(),
            prediction=_KINDS[int(kind)],
            order=int(order),
            steps=self.subject.steps,
            guidance_scale=self.subject.guidance_scale,
            seed=seed,
            date=self.rows.date,
            versions=versions(),
        )
        measured = np.count_nonzero(rows["survival"], axis=0)
        survival = np.sqrt(exact_sum(rows["survival"] ** 2) / np.maximum(measured, 1))
        norm = float(np.sqrt(exact_sum(rows["state"] ** 2)[0] / count))
        gram = exact_sum(rows["gram"]) / count
        return Profile(
            about,
            count,
            rows["noise"][0],
            (gram + gram.T) / 2,
            self.anchors,
            survival if self.anchors else None,
            norm,
            constants,
        )


_KINDS: tuple[Prediction, ...] = get_args(Prediction)


def _places(run: RunInfo) -> list[int]:
    """The last call at each of the distinct times (Heun's method makes two)."""
    return sorted({position: call for call, position in enumerate(run.positions)}.values())


def _rows(value: Tensor, samples: Sequence[int]) -> Tensor:
    """One row of numbers per sample."""
    if len(value) % len(samples):
        raise UnsupportedPipelineError(
            f"the network gave {len(value)} rows for {len(samples)} prompts; thg cannot assign them to samples. "
            "Calibrate with batch_size=1"
        )
    return value.float().reshape(len(samples), -1)


def _states(runs: Sequence[PlainRun], samples: Sequence[int]) -> Tensor:
    return torch.cat([_rows(run.state, samples) for run in runs], dim=1)
