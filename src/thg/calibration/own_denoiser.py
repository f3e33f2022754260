"""Calibration of a user's denoiser, in runs of `thg.sample`."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from thg.calibration.grid import NoiseGrid
from thg.calibration.record import Held, Recorder
from thg.calibration.subject import checked_scale
from thg.errors import ProfileError
from thg.ode.guidance import steps_between
from thg.ode.integrate import sample
from thg.ode.network import Denoiser
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver
from thg.plans.guide import Evaluate, GuideMaker
from thg.plans.run import RunInfo, Term


@dataclass
class OwnDenoiser:
    """A denoiser as `thg.sample` takes it, with conditions and start states."""

    denoiser: Denoiser
    conditions: Any
    x: Tensor
    schedule: Schedule
    solver: Solver
    guidance_scale: float
    guided: tuple[int, int]
    unconditional: Any
    batched: bool

    @classmethod
    def of(
        cls,
        denoiser: Any,
        conditions: Any,
        x: Tensor | None,
        schedule: Schedule,
        solver: Solver,
        guidance_scale: float | None,
        interval: tuple[float, float] | None,
        unconditional: Any,
        batched: bool,
    ) -> OwnDenoiser:
        if not callable(denoiser):
            raise ProfileError(
                f"a denoiser is a function, denoiser(x, t, condition), not {type(denoiser).__name__}; a pipeline is "
                "calibrated without schedule="
            )
        if not isinstance(x, Tensor) or not len(x):
            raise ProfileError(
                "a denoiser needs start states, one row per sample: thg.calibrate(denoiser, conditions, "
                "x=torch.randn(...), schedule=...)"
            )
        if conditions is not None and (count := _count(conditions)) != len(x):
            raise ProfileError(f"there are {count} conditions and {len(x)} start states; each sample needs one of both")
        if schedule.steps < 2:
            raise ProfileError(f"steps must be a whole number of at least 2, not {schedule.steps}")
        guided = (0, schedule.steps) if interval is None else steps_between(schedule, interval)
        scale = checked_scale(guidance_scale)
        return cls(denoiser, conditions, x, schedule, solver, scale, guided, unconditional, batched)

    @property
    def steps(self) -> int:
        return self.schedule.steps

    @property
    def samples(self) -> int:
        return len(self.x)

    def run(self, samples: Sequence[int], maker: GuideMaker) -> None:
        sample(
            self.denoiser,
            self.x[list(samples)],
            maker if self.guided == (0, self.steps) else _Within(maker, self.guided),
            self.schedule,
            self.solver,
            guidance_scale=self.guidance_scale,
            condition=True if self.conditions is None else _chosen(self.conditions, samples),
            unconditional=self.unconditional,
            batched=self.batched,
        )

    def grid(self, run: RunInfo) -> NoiseGrid:
        return NoiseGrid.of_schedule(self.schedule, self.solver)

    def settings(self) -> dict[str, Any]:
        return {
            "denoiser": self.about()["pipeline"],
            "schedule": _digest([self.schedule.nodes, self.schedule.prediction, self.schedule.velocity]),
            "solver": repr(self.solver),
            "guidance_scale": self.guidance_scale,
            "guidance interval": list(self.guided),
            "conditions": _digest([self.conditions, self.unconditional]),
            "start states": _digest(self.x),
        }

    def about(self) -> dict[str, str]:
        name = getattr(self.denoiser, "__qualname__", type(self.denoiser).__qualname__)
        return {"pipeline": name, "network": "", "model": "", "scheduler": type(self.solver).__name__}

    def quiet(self) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass(frozen=True)
class _Within:
    """Makes guides that measure at every step, and guide between two steps only."""

    maker: GuideMaker
    guided: tuple[int, int]

    def guide(self, run: RunInfo) -> _GuideWithin:
        return _GuideWithin(cast(Recorder | Held, self.maker.guide(run)), self.guided)


class _GuideWithin:
    plan = None

    def __init__(self, guide: Recorder | Held, guided: tuple[int, int]) -> None:
        self._guide, self._guided = guide, range(*guided)

    def evaluates(self, step: int) -> bool:
        return True

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        self._guide.visit(step, sample, time, evaluate)

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        used = self._guide.observe(step, conditional, term)
        return used if step in self._guided else tuple(torch.zeros_like(part) for part in term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        raise AssertionError("a guide that measures evaluates each step")


# -- conditions: tensors, lists, and tuples or dictionaries of them


def _count(conditions: Any) -> int:
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
    """A fingerprint of tensors and other values that a calibration depends on."""
    digest = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            digest.update(f"{part.dtype}{tuple(part.shape)}".encode())
            digest.update(part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            for name in sorted(part):
                add([name, part[name]])
        elif isinstance(part, list | tuple):
            for item in part:
                add(item)
        else:
            digest.update(f"{part!r}\0".encode())

    add(value)
    return digest.hexdigest()
