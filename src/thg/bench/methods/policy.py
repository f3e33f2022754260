"""The interface of what a benchmark compares: a policy can be put on a pipeline, and counts its evaluations.

policy.applied(pipe)    a block within which the pipeline runs under the policy; gives a function that says, after
                        a run, how many evaluations each sample of the batch took
policy.budget(...)      evaluations a sample as far as they are known before the run, after checking them
policy.prepare(pilot)   what has to be measured once before the comparison (a threshold, a profile)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thg.errors import PlanError
from thg.plans.plan import Plan

Counted = Callable[[int], list[float]]
"""After a run: the evaluations of each of so many samples."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """What a policy may measure on before the comparison: the benchmark's pipeline and prompts.

    run: samples the first prompts with the pipeline as it is now.
    folder: where a long measurement may keep what it has. call: more arguments of the pipeline's call.
    """

    pipe: Any
    prompts: list[str]
    steps: int
    guidance_scale: float
    run: Callable[[], object]
    folder: Path | None = None
    call: Mapping[str, Any] = field(default_factory=dict)


class Policy(ABC):
    """A way to guide. `paper` says where it is described."""

    paper: str = ""

    @property
    def needs_preparation(self) -> bool:
        """Must something be measured before the comparison?"""
        return False

    @abstractmethod
    def applied(self, pipe: Any) -> AbstractContextManager[Counted]:
        """The pipeline under this policy, for the length of a block."""

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        """Evaluations a sample, or None where only the run can tell. Raises PlanError if they make no sense."""
        return None

    def plan_of(self, prepared: Mapping[str, Any]) -> Plan | None:
        """The plan that it follows, where that is all that makes its samples. prepared: what `prepare` has measured."""
        return None

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        """The policy as it will run, and what was measured for it. `known`: what was measured before, if anything."""
        return self, {}


def check_budget(name: str, policy: Policy, steps: int, guidance_scale: float, nfe: int | None) -> None:
    """An error that names the method if its policy cannot meet the budget exactly."""
    try:
        found = policy.budget(steps, guidance_scale)
    except PlanError as error:
        raise PlanError(f"method {name!r}: {error}") from None
    if nfe is not None and found is not None and found != nfe:
        raise PlanError(
            f"method {name!r} makes {found} evaluations in {steps} steps, but its budget is nfe={nfe}; write "
            f"nfe={found} or change its plan"
        )
