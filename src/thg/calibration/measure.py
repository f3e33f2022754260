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

from thg.calibration.targets import NoiseGrid, Target, progress_bar, target_of
from thg.distribution import versions
from thg.errors import NonFiniteError, ProfileError, UnsupportedPipelineError
from thg.ode.integrate import Interval
from thg.ode.outputs import content, express
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.guide import Evaluate
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Planned, Planner, tapered, uniform
from thg.plans.run_info import RunInfo, Term
from thg.processes import Process
from thg.profiles.planner import output_weights, state_at
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
        steps, guidance_scale: as it will be used; the defaults of a pipeline unless set. A denoiser needs the scale.
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
    for_denoisers = (schedule, x, solver, guidance_interval, unconditional, batched)
    target = target_of(pipe, prompts, steps, guidance_scale, seed, call, layout, *for_denoisers)
    if algorithm3 and (target.guidance_scale <= 1 or guidance_interval is not None):
        raise ProfileError(
            f"guidance_scale must be above 1, not {target.guidance_scale:g}, and guidance_interval be left out: "
            "Algorithm 3 measures the guidance at all steps"
        )
    process = Process.current()
    if process.count > 1 and folder is None:
        raise ProfileError("several processes need a folder to share: calibrate(..., folder='calibration')")
    turns = sensitivity if target.steps >= 4 else 0
    settings = {**target.settings(), "sensitivity": turns, "measured": "outputs"}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = RowFolder(None if folder is None else Path(folder), settings, today)
    anchors = _anchors(target, turns)
    measure: dict[str, Callable[[Sequence[int]], Rows]] = {
        "samples": lambda batch: _outputs(target, batch, anchors, turns)
    }
    if algorithm3:
        measure["algorithm3"] = lambda batch: _constants(target, batch)
    left = rows.missing(list(measure), target.samples, batch_size)
    shown = progress and process.rank == 0
    with progress_bar(len(left) // process.count, "batch", "calibrating", shown) as advance, target.quiet():
        for kind, samples in left:
            if not rows[kind].has(samples):  # done by another process in the meantime
                rows[kind].add(samples, measure[kind](samples))
                advance(1)
    return _profile(target, rows, anchors, algorithm3, seed)


# -- runs that measure


class PlainRun(Leaps):
    """A run with all evaluations, whose outputs are kept. state: the last one."""

    def __init__(self, run: RunInfo) -> None:
        super().__init__(Plan(run.steps, tuple(range(run.steps)), skips="network"), run)
        self.run = run
        self.outputs: list[Tensor] = []
        self.state: Any = None

    def observe(self, step: int, output: Term) -> Term:
        self.outputs.append(output[0])
        return output

    def estimated_error(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        self.state = sample
        return None


class DisturbedRun(PlainRun):
    """A plain run again, in which each sample uses another output at one of its calls."""

    def __init__(self, plain: PlainRun, calls: Sequence[int]) -> None:
        super().__init__(plain.run)
        self._calls = calls
        self._known = [output.chunk(len(calls)) for output in plain.outputs]  # by call and sample
        self._wrong = [_disturbed(*(known[i] for known in self._known[k - 1 : k + 2])) for i, k in enumerate(calls)]

    def evaluates(self, step: int) -> bool:
        return step == 0 or step > min(self._calls)  # the calls of the first step are answered by nothing else

    def observe(self, step: int, output: Term) -> Term:
        return self._mixed(step, output[0].chunk(len(self._calls)))

    def predict(self, step: int) -> Term:
        return self._mixed(step, self._known[step])

    def _mixed(self, step: int, fresh: Sequence[Tensor]) -> Term:
        """The plain run's output for samples before their call, the wrong one at it, and the fresh one after it."""
        samples = zip(self._calls, self._known[step], self._wrong, fresh, strict=True)
        rows = [known if step < k else wrong if step == k else new for k, known, wrong, new in samples]
        return (torch.cat(rows),)

    def caused(self) -> Tensor:
        """The squared norm of each sample's disturbance."""
        errors = [wrong - self._known[k][i] for i, (k, wrong) in enumerate(zip(self._calls, self._wrong, strict=True))]
        return torch.stack([error.float().square().sum() for error in errors])


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
    target: Target, samples: Sequence[int], planner: Planner, make: Callable[[int, RunInfo], Any]
) -> list[Any]:
    """One run of these samples, and what has followed it. planner: of the kind of plans that `make` follows."""
    follows = _Follows(planner, make, [])
    _, report = target.run(samples, follows)
    if report.caches:
        raise ProfileError(
            f"{report.caches[0]} is inside the network, so its outputs are not the network's own; disable it, "
            "calibrate, and enable it again"
        )
    if not follows.made:
        raise ProfileError(f"{report.pipeline} ran without calling its network; nothing was measured")
    return follows.made


def _plain_runs(target: Target, samples: Sequence[int], make: Callable[[int, RunInfo], PlainRun]) -> list[PlainRun]:
    runs = _followed(target, samples, tapered(1.0), make)
    if any(run.run.steps != runs[0].run.steps or run.state is None for run in runs):
        raise ProfileError("calibration measures a single loop over the time steps, which runs to its end")
    return runs


# -- the rows of a batch, and the profile of all


def _anchors(target: Target, turns: int) -> tuple[int, ...]:
    """The steps at which an error is made: spread from 1 to N-2."""
    last = target.steps - 2
    count = min(ANCHORS, last, turns * target.samples)
    return tuple(int(k) for k in np.unique(np.round(np.linspace(1, last, count)))) if count > 0 else ()


def _outputs(target: Target, samples: Sequence[int], anchors: Sequence[int], turns: int) -> Rows:
    """Of each sample: the Gram matrix of its outputs, the norm of its last state, and what survived of errors."""
    plain = _plain_runs(target, samples, lambda _, run: PlainRun(run))
    grid, last_calls = target.grid(plain[0].run), _last_calls(plain[0].run)
    values = torch.cat(
        [torch.stack([_rows(run.outputs[call], samples) for call in last_calls], dim=1) for run in plain], dim=2
    ).to("cpu", torch.float64)
    states = _states(plain, samples)
    survival = np.zeros((len(samples), len(anchors)))  # 0: not measured on this sample
    weights = output_weights(grid.prediction, grid.noise[:-1], grid.noise[1:])
    for turn in range(turns if anchors else 0):
        chosen = [(i * turns + turn) % len(anchors) for i in samples]
        calls = [last_calls[anchors[which]] for which in chosen]
        again = _plain_runs(target, samples, lambda i, run, calls=calls: DisturbedRun(plain[i], calls))  # type: ignore[misc]
        moved = (_states(again, samples) - states).norm(dim=1)
        errors = torch.stack([run.caused() for run in again]).sum(0).sqrt()  # type: ignore[attr-defined]
        for row, which in enumerate(chosen):
            caused = weights[anchors[which]] * float(errors[row])
            survival[row, which] = float(moved[row]) / caused if caused > 0 else 1.0
    return finite(
        {
            "gram": torch.bmm(values, values.transpose(1, 2)).numpy(),
            "state": states.norm(dim=1, keepdim=True).double().cpu().numpy(),
            "noise": np.tile(grid.noise, (len(samples), 1)),
            "survival": survival,
        }
    )


def _constants(target: Target, samples: Sequence[int]) -> Rows:
    """Algorithm 3."""
    recorders = _followed(
        target, samples, uniform(every=1), lambda _, run: Recorder(run, target.grid(run), len(samples))
    )
    found: Rows = recorders[-1].measured()
    return found


def _profile(target: Target, rows: RowFolder, anchors: tuple[int, ...], algorithm3: bool, seed: int) -> Profile:
    constants, every = None, range(target.samples)
    found = rows["samples"].read(every)
    if algorithm3:
        paper = rows["algorithm3"].read(every)
        parts = {name: Moments.of(paper[name]) for name in MOMENTS}
        constants = Constants(paper["times"][0], paper["middle"][0], **parts)
    measured = np.count_nonzero(found["survival"], axis=0)
    survival = np.sqrt(exact_sum(found["survival"] ** 2) / np.maximum(measured, 1))
    gram = exact_sum(found["gram"]) / target.samples
    about = About(
        **target.about(),
        prediction=target.prediction,
        order=target.order,
        steps=target.steps,
        guidance_scale=target.guidance_scale,
        seed=seed,
        date=rows.date,
        versions=versions(),
    )
    return Profile(
        about,
        target.samples,
        found["noise"][0],
        (gram + gram.T) / 2,
        anchors,
        survival if anchors else None,
        float(np.sqrt(exact_sum(found["state"] ** 2)[0] / target.samples)),
        constants,
    )


def _last_calls(run: RunInfo) -> list[int]:
    """The last call at each of the distinct times (Heun's method makes two)."""
    return sorted({position: call for call, position in enumerate(run.positions)}.values())


def _rows(value: Tensor, samples: Sequence[int]) -> Tensor:
    """One row of numbers per sample."""
    if len(value) % len(samples):
        raise unassigned(len(value), len(samples))
    return value.float().reshape(len(samples), -1)


def _states(runs: Sequence[PlainRun], samples: Sequence[int]) -> Tensor:
    return torch.cat([_rows(run.state, samples) for run in runs], dim=1)


# -- the paper's Algorithm 3, by a guide that observes a plain CFG run without changing it
#
# `Recorder` evaluates the pair (e_c, d) at the midpoint of each step: Algorithm 3 in its simplified form. For a
# solver that extrapolates its last outputs as a constant or a line, the difference between one step and two half steps
# is a factor of the schedule times the error of that extrapolation at the midpoint; the factor is the same for the
# tortoise and the hare, and for a first-order solver this is exact.
#
# The midpoint state is computed from the network's inputs before and after the step. So it includes the pipeline's own
# solver and packing of latents, and nothing about the pipeline's loop has to be known.

Pair = tuple[Tensor, Tensor]


class Recorder:
    """Measures one run of a batch. `measured` holds one row per sample when the run has ended.

    Of several calls at one time (Heun, PLMS) the last counts.
    """

    plan = None

    def __init__(self, run: RunInfo, grid: NoiseGrid, batch: int) -> None:
        self._run, self._grid, self._batch = run, grid, batch
        self._index = -1  # on the grid of distinct times
        self._input: Any = None  # the network's input at the last time
        self._time: Any = None
        # at the last two times, one row per sample: e_c and d, and the same as `_normalised`
        self._pairs: dict[int, tuple[Pair, Pair]] = {}
        self._norms: dict[str, dict[int, Tensor]] = {name: {} for name in MOMENTS}
        self._times: dict[int, float] = {}

    def evaluates(self, step: int) -> bool:
        return True

    def predict(self, step: int, conditional: Term) -> Term | None:
        raise AssertionError("a recorder evaluates each step")

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        """Before a network call at a new time: measures at the midpoint between the last time and this one."""
        if step == 0 or self._run.positions[step] != self._run.positions[step - 1]:
            if self._index >= 0:
                p, q = self._grid.midpoint_weights(self._index)
                middle = between(self._input, sample, p, q)
                conditional, term = evaluate(middle, halfway(self._time, time))
                self._compare(self._normalised(middle, conditional, term, self._grid.middle[self._index]))
            self._index += 1
        self._input, self._time = sample, time

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        index = self._index
        pair = self._rows(conditional, self._input), self._rows(term, self._input)
        normal = self._normalised(self._input, conditional, term, self._grid.noise[index])
        self._pairs[index] = pair, normal
        self._pairs.pop(index - 2, None)
        self._times[index] = self._run.times[step] if self._run.times is not None else float(-step)
        if index > 0:
            distance = abs(self._times[index] - self._times[index - 1]) or 1.0
            for name, now, before in zip(("tortoise_rate", "hare_rate"), pair, self._pairs[index - 1][0], strict=True):
                self._norms[name][index] = (now - before).norm(dim=1) / distance
        return None

    def measured(self) -> Rows:
        """Per sample: the norms of each step but the last, and the time steps."""
        if len(self._times) != self._grid.steps:
            raise UnsupportedPipelineError(
                f"guidance was on at {len(self._times)} of {self._grid.steps} time steps, and Algorithm 3 needs all of "
                "them; set guidance_scale above 1, and no guidance interval or cut-off in the pipeline"
            )
        norms = {name: torch.stack(list(found.values()), dim=1) for name, found in self._norms.items()}
        rows: Rows = {name: values.double().cpu().numpy() for name, values in norms.items()}
        same = {"times": np.array(list(self._times.values())), "middle": self._grid.middle}
        return finite(rows | {name: np.tile(values, (self._batch, 1)) for name, values in same.items()})

    def _compare(self, pair: Pair) -> None:
        """|| e_c(x_m) - its extrapolation || and the same for d; the extrapolation is the solver's."""
        index, slope = self._index, 0.0  # of a first-order solver
        if self._grid.order > 1 and index > 0:
            before, start = self._grid.noise[index - 1 : index + 1]
            slope = float((self._grid.middle[index] - start) / (start - before))
        last, earlier = self._pairs[index][1], self._pairs[max(index - 1, 0)][1]
        for name, value, a, b in zip(("tortoise", "hare"), pair, last, earlier, strict=True):
            self._norms[name][index] = (value - a.lerp(b, -slope)).norm(dim=1)

    def _normalised(self, sample: Any, conditional: Term, term: Term, noise: float) -> Pair:
        """e_c and d as the quantity that the solver holds over a step: velocity for flow models, otherwise eps."""
        e_c, d = self._rows(conditional, sample), self._rows(term, sample)
        if self._grid.prediction in ("epsilon", "flow"):
            return e_c, d
        node = state_at(self._grid.prediction, noise)
        p, q = express(node, self._grid.prediction, content(node, "epsilon"))
        channels = conditional[0].shape[1] if conditional[0].ndim > 2 else None  # without further ones of the input
        state = tuple(sample) if isinstance(sample, list) else (sample[:, :channels] if channels else sample,)
        return q * e_c + p * sample_rows(state, sample, self._batch, both=True), q * d

    def _rows(self, term: Term, sample: Any) -> Tensor:
        return sample_rows(term, sample, self._batch)


# -- tensors of any pipeline, as one row per sample


def between(start: Any, end: Any, p: float, q: float) -> Any:
    """p * start + q * end; values that are constant along the run (masks, images to edit) are kept."""
    if isinstance(start, list):
        return [between(a, b, p, q) for a, b in zip(start, end, strict=True)]
    return torch.where(start == end, start, (p * start.float() + q * end.float()).to(start.dtype))


def halfway(start: Any, end: Any) -> Any:
    """The midpoint of two times, in the network's units and type; an integer where possible."""
    if not isinstance(start, Tensor):
        return (start + end) / 2
    total = start + end
    if total.is_floating_point():
        return total / 2
    return total // 2 if bool((total % 2 == 0).all()) else total / 2


def sample_rows(term: Term, sample: Any, batch: int, both: bool = False) -> Tensor:
    """The tensors of a network's output as one row of numbers per sample.

    both: these are inputs that may hold several branches of the same samples; the first is taken.
    """
    if isinstance(sample, list):  # one tensor per sample
        flat = [value.float().flatten() for value in (term[:batch] if both else term)]
        return torch.stack([torch.cat(flat[i::batch]) for i in range(batch)])
    parts = []
    for value in term:
        if value.shape[0] % batch or (not both and value.shape[0] != batch):
            raise unassigned(value.shape[0], batch)
        if value.ndim > 2 and sample.ndim == value.ndim and value.shape[1] == 2 * sample.shape[1]:
            value = value[:, : sample.shape[1]]  # the other half is a learned variance
        parts.append(value[:batch].float().flatten(1))
    return torch.cat(parts, dim=1)


def unassigned(rows: int, batch: int) -> UnsupportedPipelineError:
    return UnsupportedPipelineError(
        f"the network gave {rows} rows for {batch} prompts; thg cannot assign them to samples. Calibrate with "
        "batch_size=1"
    )


def finite(rows: Rows) -> Rows:
    """Rows without NaN."""
    for name, values in rows.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(f"the network's outputs hold NaN or infinity (seen in {name}); nothing was measured")
    return rows
