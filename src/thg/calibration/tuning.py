"""`tune`: how many evaluations a network needs to stay within a tolerance, by comparing runs with plain ones.

`within` is a prior: it does not know how much a network amplifies or forgets the errors of leaps. A few plain runs and
a few accelerated ones with the same seeds show it. The number of evaluations is chosen so that 95 % of other samples
are expected to keep the tolerance: by twice the tolerance bound of a log-normal distribution (or twice the largest
error of the compared samples, if that is more), because true errors have heavier tails: benchmarks/promise.py.

At that number, grids of a few other shapes are compared too. One whose bound is clearly lower is taken, with as many
evaluations as it needs; smaller differences may be those of the compared samples alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.calibration.targets import Pipeline, Target, progress_bar, target_of
from thg.errors import ProfileError
from thg.ode.integrate import Interval
from thg.ode.outputs import Array
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.pipelines.identity import identity, place_of
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.planners import Planner, tapered
from thg.plans.summary import Summary
from thg.plans.tolerance import DEFAULT_ERROR, PRIOR, Shape, Tuned, within
from thg.processes import batches
from thg.rows import RowFolder, Rows

MARGIN = 2.0  # on the bound
ROUNDS = 5  # accelerated runs per sample with the default's grids, at most
SHAPES: tuple[Shape, ...] = ((0.0, 0.0), (3.0, 1.0), (0.5, 5.0))  # even; more at the start; more at the end
ENOUGH = 8  # samples to choose a shape by
CLEARLY = 0.7  # the share of the default's bound from which on another shape is taken
SHAPED_ROUNDS = 3  # with that shape, at most; the first is that of the comparison
CLOSE = 0.7  # an error of this share of the tolerance is close enough
LEAST, MOST = 0.3, 6.0  # effort


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
    layout: Batched | Sequential | None = None,
    schedule: Schedule | None = None,
    x: Tensor | None = None,
    solver: Solver | None = None,
    unconditional: Any = False,
    batched: bool = False,
    guidance_interval: Interval | None = None,
    folder: str | Path | None = None,
    remember: bool = True,
    progress: bool | Callable[[int, int], object] = True,
) -> Tuned:
    """A planner that keeps this network within a tolerance, by comparing runs: `thg.enable(pipe, thg.tune(...))`.

    Common arguments:
        pipe: a pipeline; or a denoiser, as `thg.sample` takes it, with `schedule` and `x`.
        prompts: one sample each; 16 say something about the worst 5 %. For a denoiser the conditions, a row each.
        error: the tolerance, as for `thg.within`.
        steps, guidance_scale: as it will be used; the defaults of a pipeline unless set. A denoiser needs the scale.

    For a denoiser, all as in `thg.sample`: schedule, x (the start states, a row for each sample), solver,
        unconditional, batched, guidance_interval.

    Advanced arguments:
        batch_size: samples per run. seed: of the noise. call: further arguments of the pipeline's call.
        layout: as for `thg.enable`.
        folder: where finished runs are kept; a `tune` that was interrupted resumes from there, and one for another
            tolerance uses its plain runs.
        remember: `thg.enable(pipe)` finds the result again for this network, scheduler and precision, also in other
            processes (in the cache folder; the environment variable THG_TUNED=0 switches that off).
        progress: shows a bar; or a function that is called with the number of finished batches, and of all at most.

    Costs one plain run and one to five accelerated ones per sample; from 8 samples on, three to five more to compare
    shapes of the grid. The result says what it has reached: `print(tuned)`, also if the tolerance cannot be kept.
    """
    within(error)  # validates the tolerance
    if batch_size < 1:
        raise ProfileError(f"batch_size must be at least 1, not {batch_size}")
    for_denoisers = (schedule, x, solver, guidance_interval, unconditional, batched)
    target = target_of(pipe, prompts, steps, guidance_scale, seed, call, layout, *for_denoisers)
    rows = RowFolder(None if folder is None else Path(folder), target.settings() | {"measured": "final states"})
    start = Tuned(error, 1.0, 1.0, math.inf, target.samples, target.steps, target.guidance_scale)
    if isinstance(target, Pipeline):
        start = replace(start, **identity(pipe))  # type: ignore[arg-type]  # names and strings of three fields
    shaped = len(SHAPES) + SHAPED_ROUNDS - 1 if target.samples >= ENOUGH else 0
    runs = 1 + ROUNDS + shaped
    most = len(batches(target.samples, batch_size)) * runs
    with target.quiet(), progress_bar(most, "run", "tuning, at most", progress) as advance:
        tuned = _search(_Compared(target, batch_size, rows, advance), start)
    if remember and isinstance(target, Pipeline):
        try:
            tuned.save(place_of(pipe))
        except OSError as error:  # hours of work
            logging.getLogger("thg").warning("not remembered (%s): tuned.save(path) keeps the result elsewhere", error)
    return tuned


def _search(compared: _Compared, start: Tuned) -> Tuned:
    """The fewest evaluations found that keep the tolerance; if none do, those that come closest."""
    tried = _efforts(compared, start, ROUNDS)
    leaping = [found for found in tried if found.nfe < found.plain_nfe]
    if leaping and start.samples >= ENOUGH:
        usual = _best(leaping)
        others = [compared.measured(replace(usual, shape=shape)) for shape in SHAPES]
        shaped = min(others, key=lambda found: found.reached)
        if shaped.reached <= CLEARLY * usual.reached:
            tried += _efforts(compared, shaped, SHAPED_ROUNDS)
    return _best(tried)


def _efforts(compared: _Compared, start: Tuned, rounds: int) -> list[Tuned]:
    """What the efforts of a search reach, from that of `start` on."""
    tried: dict[float, Tuned] = {}
    effort = start.effort
    for _ in range(rounds):
        tried[effort] = compared.measured(replace(start, effort=effort))
        if CLOSE * start.error <= tried[effort].reached <= start.error:
            break
        effort = _next(tried, math.sqrt(CLOSE) * start.error)
        if effort in tried:
            break
    return list(tried.values())


def _best(found: Sequence[Tuned]) -> Tuned:
    kept = [tuned for tuned in found if tuned.kept]
    if kept:
        return min(kept, key=lambda tuned: (tuned.nfe, tuned.effort))
    return min(found, key=lambda tuned: tuned.reached)


def _next(tried: Mapping[float, Tuned], wanted: float) -> float:
    """The effort at which the error is expected to be the wanted one: a power law through the two nearest efforts."""
    kept = [effort for effort, found in tried.items() if found.kept]
    missed = [effort for effort, found in tried.items() if not found.kept and effort < min(kept, default=math.inf)]
    if kept and missed:
        low, high = max(missed), min(kept)
        above, below = (math.log(max(tried[effort].reached, 1e-6)) for effort in (low, high))
        share = (above - math.log(wanted)) / (above - below) if above > below else 0.5
        effort = float(low * (high / low) ** min(max(share, 0.2), 0.8))
    else:
        last = min(kept) if kept else max(tried)
        change = (max(tried[last].reached, 1e-6) / wanted) ** (1 / PRIOR.order)
        effort = last * min(max(float(change), 0.5), 2.0)
    return float(round(min(max(effort, LEAST), MOST), 2))


def bound(errors: Array) -> float:
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
    """Compares accelerated runs with plain ones; finished runs are kept."""

    target: Target
    batch_size: int
    rows: RowFolder
    advance: Callable[[int], object]

    def measured(self, tuned: Tuned) -> Tuned:
        """This effort with what it reaches, what it costs, and the network's factor on estimates."""
        plain = self._rows("plain", tapered(1.0))["x"]
        shape = "" if tuned.shape is None else " shape {:g} {:g}".format(*tuned.shape)
        rows = self._rows(f"within {tuned.error:g} effort {tuned.effort:g}{shape}", replace(tuned, factor=1.0))
        errors = np.linalg.norm(rows["x"] - plain, axis=1) / np.linalg.norm(plain, axis=1)
        estimates, (nfe, plain_nfe) = rows["estimate"], rows["nfe"].max(axis=0)
        leapt = (estimates > 0) & (errors > 0)
        factor = float(np.median(errors[leapt] / estimates[leapt])) if leapt.any() else 1.0
        reached = MARGIN * bound(errors)
        return replace(tuned, reached=reached, factor=max(factor, 1e-3), nfe=int(nfe), plain_nfe=int(plain_nfe))

    def _rows(self, kind: str, planner: Planner) -> Rows:
        """The final states of all samples, their estimated errors, and their evaluations."""
        rows, every = self.rows[kind], range(self.target.samples)
        while missing := self.rows.missing([kind], len(every), self.batch_size):
            for _, samples in missing:  # another process may measure some in the meantime, or end and remove all
                if not rows.has(samples):
                    rows.add(samples, _run(self.target, samples, planner))
                    self.advance(1)
        return rows.read(every)


def _run(target: Target, samples: list[int], planner: Planner) -> Rows:
    output, report = target.run(samples, planner)
    if not report.finite or "cannot be predicted" in report.note or (report.plan is None and report.note):
        raise ProfileError(f"there is nothing to tune on this {report.pipeline}: {report.note}")
    estimates = report.estimated_error or ()
    return {
        "x": _states(output, len(samples), report),
        "estimate": np.array(estimates if len(estimates) == len(samples) else [0.0] * len(samples)),
        "nfe": np.tile([report.nfe, report.cfg_nfe], (len(samples), 1)),
    }


def _states(output: Any, count: int, report: Summary) -> Array:
    try:
        x = torch.as_tensor(output).detach().double().cpu()
    except (TypeError, ValueError, RuntimeError):
        raise ProfileError(
            f"tune compares numbers, and {report.pipeline} returns {type(output).__name__}; write "
            "call={'output_type': 'np'}"
        ) from None
    return np.asarray(x.reshape(count, -1).numpy())
