"""What is measured: a diffusers pipeline with prompts, or a user's denoiser with conditions and start states.

Both kinds have the same methods: `run` some samples, the `grid` of noise levels, `settings` that results depend on.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.errors import ProfileError, ScheduleError
from thg.models.pretrained import accepted, default_of, guidance_name
from thg.ode.integrate import Interval, sample
from thg.ode.network import Denoiser
from thg.ode.outputs import Array, Prediction
from thg.ode.schedule import Schedule
from thg.ode.schedulers import adds_noise, order_of, prediction_of, read_schedule
from thg.ode.solvers import Solver, ddim
from thg.pipelines import enabled, summary
from thg.pipelines.identity import fingerprint, identity
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.planners import Choice
from thg.plans.run_info import RunInfo
from thg.plans.summary import Summary
from thg.processes import generators
from thg.profiles.planner import noise_share


def target_of(
    pipe: Any,
    prompts: Any,
    steps: int | None,
    guidance_scale: float | None,
    seed: int,
    call: Mapping[str, Any] | None,
    layout: Batched | Sequential | None,
    schedule: Schedule | None,
    x: Tensor | None,
    solver: Solver | None,
    interval: Interval | None,
    unconditional: Any,
    batched: bool,
) -> Target:
    """From the arguments of `calibrate` and `tune`."""
    if schedule is None and x is None:
        return Pipeline(pipe, prompts, steps, guidance_scale, seed, call or {}, layout)
    if schedule is None:
        raise ProfileError("a denoiser needs the grid of its runs: add schedule=thg.Schedule.vp(50)")
    if steps not in (None, schedule.steps) or call or layout:
        raise ProfileError("steps=, call= and layout= are for pipelines; a denoiser's steps are those of its schedule")
    scale = _checked_scale(guidance_scale)
    return OwnDenoiser(pipe, prompts, x, schedule, solver or ddim(), scale, interval, unconditional, batched)


def _checked_scale(scale: Any, least: float = 1.0) -> float:
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not math.isfinite(scale) or scale < least:
        raise ProfileError(f"guidance_scale must be a number of at least {least:g}, not {scale!r}; 1 is no guidance")
    return float(scale)


class Pipeline:
    """A pipeline of diffusers and its prompts. layout: of its branches, for the paper's measurement."""

    def __init__(
        self,
        pipe: Any,
        prompts: Any,
        steps: int | None,
        guidance_scale: float | None,
        seed: int,
        call: Mapping[str, Any],
        layout: Any,
    ) -> None:
        if prompts is None or isinstance(prompts, str) or not len(prompts):
            raise ProfileError("prompts must be a list with at least one prompt, such as ['a red bicycle', ...]")
        names = accepted(pipe)
        prompt_name = next((name for name in ("prompt", "class_labels") if name in names), None)
        if prompt_name is None or "num_inference_steps" not in names:
            raise ProfileError(
                f"{type(pipe).__name__} takes no prompt, or no num_inference_steps; thg cannot measure it as a "
                "pipeline. A denoiser of your own needs schedule= and x=: (denoiser, conditions, x=noise, "
                "schedule=thg.Schedule.vp(50), guidance_scale=4)"
            )
        steps = default_of(pipe, "num_inference_steps") if steps is None else steps
        if not isinstance(steps, int) or steps < 2:
            raise ProfileError(f"steps must be a whole number of at least 2, not {steps!r}")
        self.arguments = {**call, "num_inference_steps": steps}
        scale_name = guidance_name(pipe)
        if guidance_scale is None:
            guidance_scale = default_of(pipe, scale_name) if scale_name in names else 1.0
        self.guidance_scale = max(1.0, _checked_scale(guidance_scale, 0.0))
        if scale_name in names:
            self.arguments[scale_name] = guidance_scale
        if "output_type" in names:
            self.arguments.setdefault("output_type", "latent")
        if unknown := sorted(set(self.arguments) - names):
            raise ProfileError(f"{type(pipe).__name__} takes no argument {unknown[0]!r}")
        self.pipe, self.prompts, self.steps, self.seed = pipe, list(prompts), steps, seed
        self._prompt_name, self._layout = prompt_name, layout
        # the last part of its path, without the user's folders
        self._model = Path(str(getattr(pipe, "name_or_path", "") or "")).name

    @property
    def samples(self) -> int:
        return len(self.prompts)

    @property
    def prediction(self) -> Prediction:
        return prediction_of(self.pipe.scheduler)

    @property
    def order(self) -> int:
        """p of the solver; of solvers above order 2 the first two orders count."""
        return min(order_of(self.pipe.scheduler), 2)

    def run(self, samples: Sequence[int], choice: Choice) -> tuple[Any, Summary]:
        """One run of these samples: the pipeline's first output, and its cost."""
        given = {self._prompt_name: [self.prompts[i] for i in samples], "generator": generators(self.seed, samples)}
        with enabled(self.pipe, choice, layout=self._layout), torch.no_grad():
            return self.pipe(**given, **self.arguments)[0], summary(self.pipe)

    def grid(self, run: RunInfo) -> NoiseGrid:
        times = len(set(run.positions))
        if times > self.steps:
            raise ProfileError(
                f"{type(self.pipe.scheduler).__name__} calls the network at {times} times in {self.steps} steps; "
                "calibrate with another scheduler, such as DDIM"
            )
        if times < self.steps:
            raise ProfileError(
                f"a run of {self.steps} steps has {times} time steps; set steps= to the steps that the pipeline runs, "
                "and do not set strength or denoising_end"
            )
        return NoiseGrid(*_levels_in(self.pipe.scheduler, run), self.prediction, self.order)

    def settings(self) -> dict[str, Any]:
        """All that the measured rows depend on."""
        return {
            **identity(self.pipe),
            "model": self._model,
            "arguments": self.arguments,
            "seed": self.seed,
            "prompts": _digest(self.prompts),
        }

    def about(self) -> dict[str, str]:
        """The names in a profile."""
        return {
            "pipeline": type(self.pipe).__name__,
            "network": fingerprint(self.pipe),
            "model": self._model,
            "scheduler": type(self.pipe.scheduler).__name__,
        }

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Disables its own progress bars, and remarks on runs in which everything is evaluated."""
        before, log = dict(getattr(self.pipe, "_progress_bar_config", {})), logging.getLogger("thg")
        self.pipe.set_progress_bar_config(**{**before, "disable": True})
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)
            self.pipe.set_progress_bar_config(**before)


@contextmanager
def progress_bar(
    total: int, unit: str, label: str, shown: bool | Callable[[int, int], object]
) -> Iterator[Callable[[int], object]]:
    """A progress bar with the time that remains, if tqdm is installed (as with diffusers); or calls of a function."""
    if callable(shown):
        counted = itertools.count(1)
        yield lambda done: shown(next(counted), total)
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda done: None
        return
    with tqdm(total=total, unit=unit, desc=label, disable=not shown) as bar:
        yield bar.update


# -- denoisers


@dataclass
class OwnDenoiser:
    """A denoiser as `thg.sample` takes it, with conditions and start states."""

    denoiser: Denoiser
    conditions: Any
    x: Any
    schedule: Schedule
    solver: Solver
    guidance_scale: float
    interval: Interval | None
    unconditional: Any
    batched: bool

    def __post_init__(self) -> None:
        if not callable(self.denoiser):
            raise ProfileError(
                f"a denoiser is a function, denoiser(x, t, condition), not {type(self.denoiser).__name__}; a pipeline "
                "takes neither schedule= nor x="
            )
        if not isinstance(self.x, Tensor) or not len(self.x):
            raise ProfileError("a denoiser needs start states, one row per sample: add x=torch.randn(...)")
        if self.conditions is not None and (count := _count(self.conditions)) != len(self.x):
            raise ProfileError(
                f"there are {count} conditions and {len(self.x)} start states; each sample needs one of both"
            )
        if self.steps < 2:
            raise ProfileError(f"steps must be a whole number of at least 2, not {self.steps}")

    @property
    def steps(self) -> int:
        return self.schedule.steps

    @property
    def samples(self) -> int:
        return len(self.x)

    @property
    def prediction(self) -> Prediction:
        return self.schedule.normal

    @property
    def order(self) -> int:
        return min(self.solver.order, 2)

    def run(self, samples: Sequence[int], choice: Choice) -> tuple[Any, Summary]:
        found = sample(
            self.denoiser,
            self.x[list(samples)],
            choice,
            self.schedule,
            self.solver,
            guidance_scale=self.guidance_scale,
            condition=True if self.conditions is None else _chosen(self.conditions, samples),
            unconditional=self.unconditional,
            batched=self.batched,
            guidance_interval=self.interval,
        )
        return found.x, found.summary

    def grid(self, run: RunInfo) -> NoiseGrid:
        return NoiseGrid(*_levels(self.schedule), self.prediction, self.order)

    def settings(self) -> dict[str, Any]:
        return {
            "denoiser": self.about()["pipeline"],
            "schedule": _digest([self.schedule.nodes, self.schedule.prediction, self.schedule.velocity]),
            "solver": repr(self.solver),
            "guidance_scale": self.guidance_scale,
            "guidance interval": self.interval,
            "conditions": _digest([self.conditions, self.unconditional]),
            "start states": _digest(self.x),
        }

    def about(self) -> dict[str, str]:
        name = getattr(self.denoiser, "__qualname__", type(self.denoiser).__qualname__)
        return {"pipeline": name, "network": "", "model": "", "scheduler": type(self.solver).__name__}

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()


Target = Pipeline | OwnDenoiser


def _count(conditions: Any) -> int:
    """Of tensors, lists, and tuples or dictionaries of them."""
    if isinstance(conditions, dict | tuple) and len(conditions):
        return _count(next(iter(conditions.values())) if isinstance(conditions, dict) else conditions[0])
    return len(conditions)


def _chosen(conditions: Any, samples: Sequence[int]) -> Any:
    if isinstance(conditions, Tensor):
        return conditions[list(samples)]
    if isinstance(conditions, dict):
        return {name: _chosen(value, samples) for name, value in conditions.items()}
    if isinstance(conditions, tuple):
        return tuple(_chosen(value, samples) for value in conditions)
    return [conditions[i] for i in samples]


def _digest(value: Any) -> str:
    """A fingerprint of tensors and other values that a measurement depends on."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            add([[name, part[name]] for name in sorted(part)])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            digest.update(f"{part!r}\0".encode())

    add(value)
    return digest.hexdigest()


# -- the noise levels of a run


@dataclass(frozen=True, eq=False)
class NoiseGrid:
    """noise: sigma / (alpha + sigma) at the N distinct times of a run and at its end. middle: halfway in time.

    prediction, order: of the network, and of its solver.
    """

    noise: Array
    middle: Array
    prediction: Prediction
    order: int

    @property
    def steps(self) -> int:
        return len(self.noise) - 1

    def midpoint_weights(self, step: int) -> tuple[float, float]:
        """(p, q): the state at the midpoint of a step is p * (state at its start) + q * (state at its end).

        A first-order step holds the output, so the states along it lie on a line: in sigma for the flow state
        (1-s) x0 + s eps, and the network of any other model sees that state divided by hypot(s, 1-s).
        """
        start, middle, end = self.noise[step], self.middle[step], self.noise[step + 1]
        share = (middle - start) / (end - start)
        if self.prediction == "flow":
            return float(1 - share), float(share)
        size = np.hypot([start, middle, end], [1 - start, 1 - middle, 1 - end])
        return float((1 - share) * size[0] / size[1]), float(share * size[2] / size[1])


def _levels(schedule: Schedule) -> tuple[Array, Array]:
    """noise and middle."""
    middle = [schedule.node(i + 0.5).log_snr for i in range(schedule.steps - 1)]
    return noise_share(schedule.log_snr), noise_share(middle)


def _levels_in(scheduler: Any, run: RunInfo) -> tuple[Array, Array]:
    """Of a scheduler of diffusers; if its grid cannot be read exactly, by the noise levels of its calls."""
    try:
        schedule = read_schedule(scheduler)
        if schedule.steps == len(set(run.positions)):
            return _levels(schedule)
    except ScheduleError:
        if adds_noise(scheduler):
            raise
    if run.log_snr is None:
        raise ScheduleError(
            "the noise levels of this pipeline's scheduler are unknown, so it cannot be calibrated; write "
            "pipe.scheduler = diffusers.DDIMScheduler.from_config(pipe.scheduler.config)"
        )
    levels = dict(zip(run.positions, noise_share(run.log_snr), strict=True))
    noise = np.array([*(levels[position] for position in sorted(levels)), 0.0])
    return noise, (noise[:-2] + noise[1:-1]) / 2
