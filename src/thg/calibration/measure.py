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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.calibration.algorithm3 import Recorder, finite, unassigned
from thg.calibration.subjects import Subject, progress_bar, subject_of
from thg.distribution import versions
from thg.errors import ProfileError
from thg.ode.integrate import Interval
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Planned, Planner, tapered, uniform
from thg.plans.run import RunInfo, Term
from thg.processes import Process
from thg.profiles.planner import output_weight
from thg.profiles.profile import MOMENTS, About, Constants, Moments, Profile, exact_sum
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
    turns = sensitivity if subject.steps >= 4 else 0
    settings = {**subject.settings(), "sensitivity": turns, "measured": "outputs"}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = RowFolder(None if folder is None else Path(folder), settings, today)
    anchors = _anchors(subject, turns)
    measure: dict[str, Callable[[Sequence[int]], Rows]] = {
        "samples": lambda batch: _outputs(subject, batch, anchors, turns)
    }
    if algorithm3:
        measure["algorithm3"] = lambda batch: _constants(subject, batch)
    left = rows.missing(list(measure), subject.samples, batch_size)
    shown = progress and process.rank == 0
    with progress_bar(len(left) // process.count, "batch", "calibrating", shown) as advance, subject.quiet():
        for kind, samples in left:
            if not rows[kind].has(samples):  # done by another process in the meantime
                rows[kind].add(samples, measure[kind](samples))
                advance(1)
    return _profile(subject, rows, anchors, algorithm3, seed)


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
    """Makes what follows the runs of a pipeline, one for each scheduler that it steps, and keeps them."""

    make: Callable[[int, RunInfo], Any]
    made: list[Any]

    def leaps(self, run: RunInfo, *, by_inputs_alone: bool = False) -> Any:
        self.made.append(self.make(len(self.made), run))
        return self.made[-1]

    def guide(self, run: RunInfo) -> Any:
        return self.leaps(run)


def _followed(
    subject: Subject, samples: Sequence[int], planner: Planner, make: Callable[[int, RunInfo], Any]
) -> list[Any]:
    """One run of these samples, and what has followed it. planner: of the kind of plans that `make` follows."""
    follows = _Follows(planner, make, [])
    _, report = subject.run(samples, follows)
    if report.caches:
        raise ProfileError(
            f"{report.caches[0]} is inside the network, so its outputs are not the network's own; disable it, "
            "calibrate, and enable it again"
        )
    if not follows.made:
        raise ProfileError(f"{report.pipeline} ran without calling its network; nothing was measured")
    return follows.made


def _plain_runs(subject: Subject, samples: Sequence[int], make: Callable[[int, RunInfo], PlainRun]) -> list[PlainRun]:
    runs = _followed(subject, samples, tapered(1.0), make)
    if any(run.run.steps != runs[0].run.steps or run.state is None for run in runs):
        raise ProfileError("calibration measures a single loop over the time steps, which runs to its end")
    return runs


# -- the rows of a batch, and the profile of all


def _anchors(subject: Subject, turns: int) -> tuple[int, ...]:
    """The steps at which an error is made: spread from 1 to N-2."""
    last = subject.steps - 2
    count = min(ANCHORS, last, turns * subject.samples)
    return tuple(int(k) for k in np.unique(np.round(np.linspace(1, last, count)))) if count > 0 else ()


def _outputs(subject: Subject, samples: Sequence[int], anchors: Sequence[int], turns: int) -> Rows:
    """Of each sample: the Gram matrix of its outputs, the norm of its last state, and what survived of errors."""
    plain = _plain_runs(subject, samples, lambda _, run: PlainRun(run))
    grid, places = subject.grid(plain[0].run), _places(plain[0].run)
    values = torch.cat(
        [torch.stack([_rows(run.outputs[call], samples) for call in places], dim=1) for run in plain], dim=2
    ).to("cpu", torch.float64)
    states = _states(plain, samples)
    survival = np.zeros((len(samples), len(anchors)))  # 0: not measured on this sample
    for turn in range(turns if anchors else 0):
        chosen = [(i * turns + turn) % len(anchors) for i in samples]
        calls = [places[anchors[which]] for which in chosen]
        again = _plain_runs(subject, samples, lambda i, run, calls=calls: DisturbedRun(plain[i], calls))  # type: ignore[misc]
        moved = (_states(again, samples) - states).norm(dim=1)
        errors = torch.stack([run.caused() for run in again]).sum(0).sqrt()  # type: ignore[attr-defined]
        for row, which in enumerate(chosen):
            start, end = grid.noise[anchors[which] : anchors[which] + 2]
            caused = abs(output_weight(grid.prediction, start, end)) * float(errors[row])
            survival[row, which] = float(moved[row]) / caused if caused > 0 else 1.0
    return finite(
        {
            "gram": torch.bmm(values, values.transpose(1, 2)).numpy(),
            "state": states.norm(dim=1, keepdim=True).double().cpu().numpy(),
            "noise": np.tile(grid.noise, (len(samples), 1)),
            "survival": survival,
        }
    )


def _constants(subject: Subject, samples: Sequence[int]) -> Rows:
    """Algorithm 3."""
    recorders = _followed(
        subject, samples, uniform(every=1), lambda _, run: Recorder(run, subject.grid(run), len(samples))
    )
    found: Rows = recorders[-1].measured()
    return found


def _profile(subject: Subject, rows: RowFolder, anchors: tuple[int, ...], algorithm3: bool, seed: int) -> Profile:
    constants, every = None, range(subject.samples)
    found = rows["samples"].read(every)
    if algorithm3:
        paper = rows["algorithm3"].read(every)
        parts = {name: Moments.of(paper[name]) for name in MOMENTS}
        constants = Constants(paper["times"][0], paper["middle"][0], **parts)
    measured = np.count_nonzero(found["survival"], axis=0)
    survival = np.sqrt(exact_sum(found["survival"] ** 2) / np.maximum(measured, 1))
    gram = exact_sum(found["gram"]) / subject.samples
    about = About(
        **subject.about(),
        prediction=subject.prediction,
        order=subject.order,
        steps=subject.steps,
        guidance_scale=subject.guidance_scale,
        seed=seed,
        date=rows.date,
        versions=versions(),
    )
    return Profile(
        about,
        subject.samples,
        found["noise"][0],
        (gram + gram.T) / 2,
        anchors,
        survival if anchors else None,
        float(np.sqrt(exact_sum(found["state"] ** 2)[0] / subject.samples)),
        constants,
    )


def _places(run: RunInfo) -> list[int]:
    """The last call at each of the distinct times (Heun's method makes two)."""
    return sorted({position: call for call, position in enumerate(run.positions)}.values())


def _rows(value: Tensor, samples: Sequence[int]) -> Tensor:
    """One row of numbers per sample."""
    if len(value) % len(samples):
        raise unassigned(len(value), len(samples))
    return value.float().reshape(len(samples), -1)


def _states(runs: Sequence[PlainRun], samples: Sequence[int]) -> Tensor:
    return torch.cat([_rows(run.state, samples) for run in runs], dim=1)
