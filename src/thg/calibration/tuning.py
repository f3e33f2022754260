"""`tune`: how many evaluations a network needs to stay within a tolerance, by comparing runs with plain ones.

`within` is a prior: it does not know how much a network amplifies or forgets the errors of leaps. A few plain runs and
a few accelerated ones with the same seeds show it. The number of evaluations is chosen so that 95 % of other samples
are expected to keep the tolerance: by the largest error of the compared samples, or by the tolerance bound of a
log-normal distribution, whichever is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from thg.calibration.pipeline import Pipeline
from thg.errors import ProfileError
from thg.files import write_atomically
from thg.ode.integrate import sample
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.pipelines import enabled, summary
from thg.pipelines.remembered import identity, place_of
from thg.plans.fidelity import DEFAULT_ERROR, within
from thg.plans.planners import Planner, tapered
from thg.plans.prior import PRIOR
from thg.plans.report import Summary
from thg.plans.tuned import Tuned

ROUNDS = 5  # accelerated runs per sample, at most
CLOSE = 0.7  # an error of this share of the tolerance is close enough
LEAST, MOST = 0.3, 6.0  # effort


class Runs(Protocol):
    """Runs of one network from fixed noise."""

    @property
    def samples(self) -> int: ...

    def final(self, planner: Planner, rows: Sequence[int]) -> tuple[Tensor, Summary]:
        """The final states of these samples, and the cost of the run."""


def tune(
    pipe: Any,
    prompts: Any,
    error: float = DEFAULT_ERROR,
    *,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
    schedule: Schedule | None = None,
    x: Tensor | None = None,
    solver: Solver | None = None,
    unconditional: Any = False,
    folder: str | Path | None = None,
    remember: bool = True,
    progress: bool = True,
) -> Tuned:
    """A planner that keeps this network within a tolerance, by comparing runs: `thg.enable(pipe, thg.tune(...))`.

    Common arguments:
        pipe: a pipeline; or a denoiser, as `thg.sample` takes it, with `schedule` and `x`.
        prompts: one sample each; 16 say something about the worst 5 %. For a denoiser the conditions, a row each.
        error: the tolerance, as for `thg.within`.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.

    For a denoiser, all as in `thg.sample`: schedule, x (the start states, a row for each sample), solver,
        unconditional.

    Advanced arguments:
        batch_size: samples per run. seed: of the noise. call: further arguments of the pipeline's call.
        folder: where finished runs are kept; a `tune` that was interrupted resumes from there.
        remember: `thg.enable(pipe)` finds the result again for this network, scheduler and precision, also in other
            processes (in the cache folder; the environment variable THG_TUNED=0 switches that off).

    Costs one plain run and two to five accelerated ones per sample. The result says what it has reached:
    `print(tuned)`, also if the tolerance cannot be kept.
    """
    within(error)  # validates the tolerance
    if batch_size < 1:
        raise ProfileError(f"batch_size must be at least 1, not {batch_size}")
    runs: Runs
    if schedule is None:
        subject = Pipeline.of(pipe, prompts, steps, guidance_scale, seed, call or {}, guided=False)
        runs, about = _PipelineRuns(subject), identity(pipe)
        steps, scale = subject.steps, subject.guidance_scale
    else:
        if x is None or not len(x) or guidance_scale is None:
            raise ProfileError("a denoiser needs x= and guidance_scale=, as in thg.sample")
        runs, about = _DenoiserRuns(pipe, prompts, x, schedule, solver, guidance_scale, unconditional), {}
        steps, scale, remember = schedule.steps, guidance_scale, False
    compared = _Compared(runs, batch_size, None if folder is None else Path(folder), progress)
    tuned = _search(compared, Tuned(error, 1.0, 1.0, math.inf, runs.samples, steps, scale, **about))
    if remember:
        tuned.save(place_of(pipe))
    return tuned


def _search(compared: _Compared, start: Tuned) -> Tuned:
    """The least effort found that keeps the tolerance; if none does, the one that comes closest."""
    tried: list[tuple[int, Tuned]] = []
    tuned = start
    for _ in range(ROUNDS):
        errors, estimates, evaluations = compared.errors(tuned)
        reached = bound(errors)
        leapt = estimates > 0
        factor = float(np.median(errors[leapt] / estimates[leapt])) if leapt.any() else 1.0
        tuned = replace(tuned, reached=reached, factor=tuned.factor * max(factor, 1e-3))
        tried.append((evaluations, tuned))
        if CLOSE * start.error <= reached <= start.error or tuned.effort in (LEAST, MOST):
            break
        change = (max(reached, 1e-6) / (math.sqrt(CLOSE) * start.error)) ** (1 / PRIOR.order)
        effort = round(min(max(tuned.effort * change, LEAST), MOST), 2)
        if any(found.effort == effort for _, found in tried):
            break
        tuned = replace(tuned, effort=effort)
    kept = [(evaluations, found) for evaluations, found in tried if found.kept]
    if kept:
        return min(kept, key=lambda item: item[0])[1]
    return min(tried, key=lambda item: item[1].reached)[1]


def bound(errors: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The error that 95 % of other samples stay within, with a confidence of 75 %, if the errors are log-normal.

    The one-sided tolerance factor k is Natrella's approximation. Never below the largest error seen.
    """
    largest, count = float(errors.max()), len(errors)
    if count < 4:
        return largest
    covered, confident = 1.645, 0.674  # quantiles of the normal distribution: 95 %, 75 %
    a = 1 - confident**2 / (2 * (count - 1))
    b = covered**2 - confident**2 / count
    k = (covered + math.sqrt(covered**2 - a * b)) / a
    logarithms = np.log(np.maximum(errors, 1e-12))
    return max(largest, float(np.exp(logarithms.mean() + k * logarithms.std(ddof=1))))


@dataclass
class _Compared:
    """Compares accelerated runs with plain ones; finished runs are kept in a folder."""

    runs: Runs
    batch_size: int
    folder: Path | None
    progress: bool

    def errors(self, planner: Tuned) -> tuple[Any, Any, int]:
        """The true relative errors, the estimated ones, and the evaluations per sample."""
        rows = [
            range(first, min(first + self.batch_size, self.runs.samples))
            for first in range(0, self.runs.samples, self.batch_size)
        ]
        found = [self._compare(planner, batch) for batch in _shown(rows, self.progress, f"effort {planner.effort:g}")]
        return (
            np.concatenate([part["errors"].double().numpy() for part in found]),
            np.concatenate([part["estimates"].double().numpy() for part in found]),
            int(max(float(part["evaluations"]) for part in found)),
        )

    def _compare(self, planner: Tuned, rows: range) -> dict[str, Tensor]:
        name = f"effort {planner.effort:g} factor {planner.factor:.4g}"
        return self._kept(f"{name} {rows.start}-{rows.stop}", lambda: self._measured(planner, rows))

    def _measured(self, planner: Tuned, rows: range) -> dict[str, Tensor]:
        plain = self._kept(f"plain {rows.start}-{rows.stop}", lambda: {"x": self.runs.final(tapered(1.0), rows)[0]})[
            "x"
        ]
        x, report = self.runs.final(planner, rows)
        if report.note and report.nfe == report.cfg_nfe and "evaluated" in report.note:
            raise ProfileError(f"there is nothing to tune on this {report.pipeline}: {report.note}")
        errors = (x - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
        estimates = torch.zeros_like(errors)
        if report.estimated_error is not None and len(report.estimated_error) == len(errors):
            estimates = torch.tensor(report.estimated_error)
        return {"errors": errors, "estimates": estimates, "evaluations": torch.tensor(float(report.nfe))}

    def _kept(self, name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        if self.folder is None:
            return make()
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            write_atomically(path, save({key: value.contiguous() for key, value in make().items()}))
        kept: dict[str, Tensor] = load_file(path)
        return kept


@dataclass
class _PipelineRuns:
    subject: Pipeline

    @property
    def samples(self) -> int:
        return self.subject.samples

    def final(self, planner: Planner, rows: Sequence[int]) -> tuple[Tensor, Summary]:
        subject = self.subject
        with subject.quiet(), enabled(subject.pipe, planner), torch.no_grad():
            output = subject.pipe(**subject.batch(rows), **subject.arguments)[0]
            return torch.as_tensor(output).detach().float().cpu(), summary(subject.pipe)


@dataclass
class _DenoiserRuns:
    denoiser: Any
    conditions: Any
    x: Tensor
    schedule: Schedule
    solver: Solver | None
    guidance_scale: float
    unconditional: Any

    @property
    def samples(self) -> int:
        return len(self.x)

    def final(self, planner: Planner, rows: Sequence[int]) -> tuple[Tensor, Summary]:
        chosen = list(rows)
        conditions = self.conditions if self.conditions is None else self.conditions[chosen]
        branches = {} if conditions is None else {"condition": conditions, "unconditional": self.unconditional}
        found = sample(
            self.denoiser,
            self.x[chosen],
            planner,
            self.schedule,
            self.solver,
            guidance_scale=self.guidance_scale,
            **branches,
        )
        return found.x.detach().float().cpu(), found.summary


def _shown(rows: list[range], progress: bool, name: str) -> Any:
    """The batches with a progress bar, if tqdm is installed."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        return rows
    return tqdm(rows, desc=f"tune, {name}", unit="batch", disable=not progress)
