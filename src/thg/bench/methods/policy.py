"""The interface of the compared methods: a policy is applied to a pipeline, and counts its evaluations.

policy.applied(pipe)    a context in which the pipeline runs under the policy; yields a function that returns, after
                        a run, the evaluations of each sample of the batch
policy.budget(...)      evaluations per sample if known before the run, after validation
policy.prepare(pilot)   measurements needed once before the comparison (a threshold, a profile)
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
"""counted(size): after a run, the evaluations of each of `size` samples."""


@dataclass(frozen=True, eq=False)
class Pilot:
    """What a policy may use for its preparation: the benchmark's pipeline and prompts.

    run: samples the first prompts with the pipeline in its current state.
    folder: for intermediate results of a long measurement. call: further arguments of the pipeline's call.
    """

    pipe: Any
    prompts: list[str]
    steps: int
    guidance_scale: float
    run: Callable[[], object]
    folder: Path | None = None
    call: Mapping[str, Any] = field(default_factory=dict)


class Policy(ABC):
    """A guidance method. `paper`: its reference."""

    paper: str = ""

    @property
    def needs_preparation(self) -> bool:
        """Whether `prepare` has to measure something."""
        return False

    @abstractmethod
    def applied(self, pipe: Any) -> AbstractContextManager[Counted]:
        """Applies this policy to the pipeline within a block."""

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        """Evaluations per sample, or None if known only after the run. Raises PlanError if they are invalid."""
        return None

    def plan_of(self, prepared: Mapping[str, Any]) -> Plan | None:
        """The plan that it follows, if the plan alone determines its samples. prepared: the result of `prepare`."""
        return None

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        """The policy ready to run, and its measurements. `known`: measurements of an earlier preparation, if any."""
        return self, {}


def check_budget(name: str, policy: Policy, steps: int, guidance_scale: float, nfe: int | None) -> None:
    """Raises an error that names the method if its policy cannot meet the budget exactly."""
    try:
        evaluations = policy.budget(steps, guidance_scale)
    except PlanError as error:
        raise PlanError(f"method {name!r}: {error}") from None
    if nfe is not None and evaluations is not None and evaluations != nfe:
        raise PlanError(
            f"method {name!r} makes {evaluations} evaluations in {steps} steps, but its budget is nfe={nfe}; write "
            f"nfe={evaluations} or change its plan"
        )
