"""Plain CFG, and everything that runs through `thg.enable`.

Plain CFG runs on the unmodified pipeline, so that it is not slowed down by thg.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from thg.counting import counted_rows
from thg.bench.methods.policy import Counted, Policy
from thg.pipelines import enabled, summary
from thg.plans.guide import GuideMaker
from thg.plans.plan import Plan
from thg.plans.planners import Fixed, Planned
from thg.plans.run import Run


class PlainCFG(Policy):
    """Both branches at each step, on the unmodified pipeline; optionally with fewer steps."""

    paper = "Ho and Salimans, Classifier-Free Diffusion Guidance, 2022: e = e_c + (w - 1) (e_c - e_u)"

    def budget(self, steps: int, guidance_scale: float) -> int:
        return 2 * steps

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        with counted_rows(pipe) as rows:
            yield lambda size: [rows.pop_all() / size] * size


@dataclass(frozen=True)
class Guided(Policy):
    """A policy that runs through `thg.enable`: a baseline, the paper's plan, or one of thg's planners."""

    maker: GuideMaker
    paper: str = "Tortoise and Hare Guidance, 2025, Algorithm 1"

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        run = Run.of(steps, guidance_scale)
        if isinstance(self.maker, Planned):
            return self.maker.planner.plan(run).nfe
        guide = self.maker.guide(run)
        return steps + sum(guide.evaluates(step) for step in range(steps)) if guide.plan is None else guide.plan.nfe

    def plan_of(self, prepared: Mapping[str, Any]) -> Plan | None:
        planner = self.maker.planner if isinstance(self.maker, Planned) else None
        return planner.value if isinstance(planner, Fixed) else None

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        with enabled(pipe, self.maker):
            yield lambda size: [float(summary(pipe).nfe)] * size
