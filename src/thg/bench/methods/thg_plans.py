"""thg's own methods: the paper's plans, plans for a budget or a tolerance, and plans from a calibration profile."""

from __future__ import annotations

import json
from abc import abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from thg.bench.methods.policy import Counted, EnabledPolicy, Pilot, Policy, Prepared
from thg.bench.tables import ConfigError, FilePath
from thg.calibration import calibrate
from thg.errors import PlanError
from thg.plans.plan import Plan, preset
from thg.plans.planners import Planner, guide_maker, tapered, uniform
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, within
from thg.profiles.profile import Profile


@dataclass(frozen=True)
class UniformPolicy:
    nfe: int
    hare_order: Literal[1, 2] = 2
    corrector: float = 0.0
    paper: ClassVar[str] = "thg: uniform grid, linear prediction of the guidance term"

    def policy(self, steps: int) -> Planner:
        return uniform(nfe=self.nfe, hare_order=self.hare_order, corrector=self.corrector)


@dataclass(frozen=True)
class TaperedPolicy:
    nfe: int
    paper: ClassVar[str] = "thg: leaps of the whole network, shortest at both ends"

    def policy(self, steps: int) -> Planner:
        return tapered(self.nfe)


@dataclass(frozen=True)
class WithinPolicy:
    error: Annotated[float, Field(gt=0, lt=1)] = DEFAULT_ERROR
    paper: ClassVar[str] = "thg: the default, the evaluations that keep results within a tolerance of plain CFG's"

    def policy(self, steps: int) -> Planner:
        return within(self.error)


@dataclass(frozen=True, kw_only=True)
class Calibrated(Policy):
    """A plan of `thg.Profile`, from the file `profile` or else measured on `calibrate` prompts; nfe: its budget."""

    nfe: int | None
    profile: FilePath | None = None
    calibrate: Annotated[int, Field(ge=1)] = 32

    @abstractmethod
    def planner(self) -> dict[str, Any]:
        """The arguments of `Profile.planner`."""

    @property
    def needs_preparation(self) -> bool:
        return True

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        return None if self.profile is None else self._plan(Profile.load(self.profile), steps, guidance_scale).nfe

    def prepare(self, pilot: Pilot) -> dict[str, Any]:
        profile = Profile.load(self.profile) if self.profile else self._measured(pilot)
        plan = self._plan(profile, pilot.steps, pilot.guidance_scale)
        if self.nfe is not None and plan.nfe != self.nfe:
            raise PlanError(
                f"the calibrated plan makes {plan.nfe} evaluations, but the budget is nfe={self.nfe}; remove nfe, "
                "or change rho"
            )
        return {"plan": json.loads(plan.to_json())}

    def applied(self, pipe: Any, prepared: Prepared) -> AbstractContextManager[Counted]:
        return EnabledPolicy(guide_maker(self.plan_of(prepared))).applied(pipe, {})

    def _plan(self, profile: Profile, steps: int, guidance_scale: float) -> Plan:
        plan: Plan = profile.planner(**self.planner()).plan(RunInfo.of(steps, guidance_scale))
        return plan

    def _measured(self, pilot: Pilot) -> Profile:
        if len(pilot.prompts) < self.calibrate:
            raise ConfigError(
                f"calibrate = {self.calibrate} asks for more prompts than the {len(pilot.prompts)} of this benchmark"
            )
        paper = "rho" in self.planner() or self.planner().get("method") == "algorithm2"
        return calibrate(
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


@dataclass(frozen=True, kw_only=True)
class Profiled(Calibrated):
    """A plan from a profile: from a file, or measured on `calibrate` prompts."""

    method: Literal["optimal", "algorithm2"] = "optimal"
    hare_order: Literal[1, 2] | None = None
    corrector: float | None = None
    paper: ClassVar[str] = "thg: grid from a calibration profile, linear prediction of the network's output"

    def planner(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("nfe", "method", "hare_order", "corrector")}


@dataclass(frozen=True, kw_only=True)
class PaperPlan(Calibrated):
    """The paper's method: a preset, a printed grid, or Algorithm 2 on a measured profile."""

    preset: str | None = None
    coarse: tuple[int, ...] | None = None
    rho: float | None = None
    cutoff: int | None = None
    boost: float = 1.0
    nfe: int | None = None
    paper: ClassVar[str] = "Tortoise and Hare Guidance, 2025, Algorithms 1-3"

    def __post_init__(self) -> None:
        if sum(way is not None for way in (self.preset, self.coarse, self.rho)) != 1:
            raise ConfigError('thg takes one of preset = "sd15", coarse = [0, 1, 2, 4], or rho = 1.1')

    def planner(self) -> dict[str, Any]:
        return {"rho": self.rho, "boost": self.boost, "cutoff": self.cutoff}

    def policy(self, steps: int) -> Policy | Plan:
        if self.preset is not None:
            return preset(self.preset)
        return self if self.coarse is None else Plan(steps, self.coarse, self.cutoff, self.boost, hare_order=1)
