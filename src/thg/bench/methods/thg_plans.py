"""thg's own methods: the paper's plans, plans for a budget or a tolerance, and plans from a calibration profile."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from thg.bench.methods.policy import Guided, Pilot, Policy
from thg.bench.tables import ConfigError, FilePath, nearest
from thg.calibration import calibrate
from thg.errors import PlanError
from thg.plans.plan import PRESETS, Plan, preset
from thg.plans.planners import Fixed, Planned, tapered, uniform
from thg.plans.run import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, within
from thg.profiles.profile import Profile

PAPER = "Tortoise and Hare Guidance, 2025, Algorithms 1-3"


@dataclass(frozen=True)
class Uniform:
    nfe: int
    hare_order: Literal[1, 2] = 2
    corrector: float = 0.0
    paper: ClassVar[str] = "thg: uniform grid, linear prediction of the guidance term"

    def policy(self, steps: int) -> Policy:
        return Guided(Planned(uniform(nfe=self.nfe, hare_order=self.hare_order, corrector=self.corrector)))


@dataclass(frozen=True)
class Tapered:
    nfe: int
    paper: ClassVar[str] = "thg: leaps of the whole network, shortest at both ends"

    def policy(self, steps: int) -> Policy:
        return Guided(Planned(tapered(self.nfe)))


@dataclass(frozen=True)
class Within:
    error: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_ERROR
    paper: ClassVar[str] = "thg: the default, the evaluations that keep results within a tolerance of plain CFG's"

    def policy(self, steps: int) -> Policy:
        return Guided(Planned(within(self.error)))


@dataclass(frozen=True)
class Calibrated(Policy):
    """A plan of `thg.Profile`, which is followed once it is prepared.

    planner: arguments of `Profile.planner` (rho for the paper's Algorithm 2, nfe for ours).
    profile: the file; without one, `calibrate` prompts are measured.
    """

    planner: dict[str, Any] = field(default_factory=dict)
    profile: Path | None = None
    calibrate: int = 32
    nfe: int | None = None

    @property
    def needs_preparation(self) -> bool:
        return True

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        return None if self.profile is None else self._from_file(steps, guidance_scale).nfe

    def plan_of(self, steps: int, prepared: Mapping[str, Any]) -> Plan | None:
        return Plan.from_dict(prepared["plan"]) if "plan" in prepared else None

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        plan = self.plan_of(pilot.steps, known)
        if plan is None:
            plan = self._from_file(pilot.steps, pilot.guidance_scale) if self.profile else self._measured(pilot)
        if self.nfe is not None and plan.nfe != self.nfe:
            raise PlanError(
                f"the calibrated plan makes {plan.nfe} evaluations, but the budget is nfe={self.nfe}; remove nfe, "
                "or change rho"
            )
        return Guided(Planned(Fixed(plan))), {"plan": json.loads(plan.to_json())}

    def _from_file(self, steps: int, guidance_scale: float) -> Plan:
        assert self.profile is not None
        return Profile.load(self.profile).planner(**self.planner).plan(RunInfo.of(steps, guidance_scale))

    def _measured(self, pilot: Pilot) -> Plan:
        if len(pilot.prompts) < self.calibrate:
            raise ConfigError(
                f"calibrate = {self.calibrate} asks for more prompts than the {len(pilot.prompts)} of this benchmark"
            )
        paper = "rho" in self.planner or self.planner.get("method") == "algorithm2"
        profile = calibrate(
            pilot.pipe,
            pilot.prompts[: self.calibrate],
            steps=pilot.steps,
            guidance_scale=pilot.guidance_scale,
            sensitivity=0 if paper else 1,
            algorithm3=paper,
            folder=pilot.folder,
            call=pilot.call,
            progress=False,
        )
        plan: Plan = profile.planner(**self.planner).plan(RunInfo.of(pilot.steps, pilot.guidance_scale))
        return plan


@dataclass(frozen=True)
class Profiled:
    """A plan from a profile: from a file, or measured on `calibrate` prompts."""

    nfe: int
    profile: FilePath | None = None
    calibrate: Annotated[int, Field(ge=1)] = 32
    method: Literal["optimal", "algorithm2"] = "optimal"
    hare_order: Literal[1, 2] | None = None
    corrector: float | None = None
    paper: ClassVar[str] = "thg: grid from a calibration profile, linear prediction of the network's output"

    def policy(self, steps: int) -> Policy:
        planner = {name: getattr(self, name) for name in ("nfe", "method", "hare_order", "corrector")}
        return Calibrated(planner, self.profile, self.calibrate, self.nfe)


@dataclass(frozen=True)
class PaperPlan:
    """The paper's method: a preset, a printed grid, or Algorithm 2 on a measured profile."""

    preset: str | None = None
    coarse: tuple[int, ...] | None = None
    rho: float | None = None
    cutoff: int | None = None
    boost: float = 1.0
    profile: FilePath | None = None
    calibrate: Annotated[int, Field(ge=1)] = 32
    nfe: int | None = None
    paper: ClassVar[str] = PAPER

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.preset, self.coarse, self.rho)) != 1:
            raise ConfigError('thg takes one of preset = "sd15", coarse = [0, 1, 2, 4], or rho = 1.1')
        if self.preset is not None and self.preset not in PRESETS:
            raise ConfigError(f"there is no preset {self.preset!r}{nearest(self.preset, PRESETS)}")

    def policy(self, steps: int) -> Policy:
        if self.rho is not None:
            planner = {"rho": self.rho, "boost": self.boost, "cutoff": self.cutoff}
            return Calibrated(planner, self.profile, self.calibrate, self.nfe)
        if self.preset is not None:
            return Guided(Planned(Fixed(preset(self.preset))))
        assert self.coarse is not None
        return Guided(Planned(Fixed(Plan(steps, self.coarse, self.cutoff, self.boost, hare_order=1))))
