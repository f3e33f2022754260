"""Plans from a calibration profile: from a file, or measured on the benchmark's first prompts before the comparison."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thg.bench.errors import ConfigError
from thg.bench.methods.policy import Counted, Pilot, Policy
from thg.calibration import calibrate
from thg.errors import PlanError
from thg.pipelines import enabled, summary
from thg.plans.plan import Plan
from thg.plans.run import Run
from thg.profiles.profile import Profile

SENSITIVITY = 8
"""Samples for the sensitivity curve, which the optimal planner needs and Algorithm 2 does not."""


@dataclass(frozen=True)
class Calibrated(Policy):
    """A planner of `thg.Profile`.

    planner: arguments of `Profile.planner` (rho for the paper's Algorithm 2, nfe for ours).
    profile: the file; without one, `calibrate` prompts are measured. plan: the resulting plan.
    """

    planner: dict[str, Any] = field(default_factory=dict)
    profile: Path | None = None
    calibrate: int = 32
    nfe: int | None = None
    paper: str = "Tortoise and Hare Guidance, 2025, Algorithms 1-3"
    plan: Plan | None = None

    @property
    def needs_preparation(self) -> bool:
        return True

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        if self.profile is not None:
            return self._from_file(steps, guidance_scale).nfe
        return None

    def plan_of(self, prepared: Mapping[str, Any]) -> Plan | None:
        return Plan.from_dict(prepared["plan"]) if "plan" in prepared else None

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        if "plan" in known:
            return replace(self, plan=Plan.from_dict(known["plan"])), dict(known)
        plan = self._from_file(pilot.steps, pilot.guidance_scale) if self.profile else self._measured(pilot)
        if self.nfe is not None and plan.nfe != self.nfe:
            raise PlanError(
                f"the calibrated plan makes {plan.nfe} evaluations, but the budget is nfe={self.nfe}; remove nfe, "
                "or change rho"
            )
        return replace(self, plan=plan), {"plan": json.loads(plan.to_json())}

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        with enabled(pipe, self.plan):
            yield lambda size: [float(summary(pipe).nfe)] * size

    def _from_file(self, steps: int, guidance_scale: float) -> Plan:
        assert self.profile is not None
        return Profile.load(self.profile).planner(**self.planner).plan(Run.of(steps, guidance_scale))

    def _measured(self, pilot: Pilot) -> Plan:
        if len(pilot.prompts) < self.calibrate:
            raise ConfigError(
                f"calibrate = {self.calibrate} asks for more prompts than the {len(pilot.prompts)} of this benchmark"
            )
        prompts = pilot.prompts[: self.calibrate]
        profile = calibrate(
            pilot.pipe,
            prompts,
            steps=pilot.steps,
            guidance_scale=pilot.guidance_scale,
            sensitivity=0 if "rho" in self.planner else min(SENSITIVITY, len(prompts)),
            folder=pilot.folder,
            call=pilot.call,
            progress=False,
        )
        plan: Plan = profile.planner(**self.planner).plan(Run.of(pilot.steps, pilot.guidance_scale))
        return plan
