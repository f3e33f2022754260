"""The interface of the compared methods.

policy.prepare(pilot)              what has to be measured once before the comparison (a threshold, a plan, a cost)
policy.applied(pipe, prepared)     a context in which the pipeline runs under the policy; yields a function that
                                   returns, after a run, the evaluations of each sample of the batch
policy.budget(...)                 evaluations per sample if known before the run, after validation
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from thg.pipelines import enabled, summary
from thg.plans.guide import GuideMaker
from thg.plans.plan import Plan
from thg.plans.planners import Fixed, Planned
from thg.plans.run_info import RunInfo
from thg.sampling import counted_rows

Counted = Callable[[int], list[float]]
"""counted(size): after a run, the evaluations of each of `size` samples."""

Prepared = Mapping[str, Any]
"""The result of a preparation, as it is stored; empty if there was nothing to prepare."""


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


class Policy:
    """A method of the benchmark. The fields of a dataclass are its options. `paper`: its reference.

    exact: an option `nfe` is the number of evaluations of every sample, not of their mean. packages: whose versions
    change the samples, besides those of torch, diffusers and transformers.
    """

    paper: ClassVar[str] = ""
    exact: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_preparation(self) -> bool:
        return False

    def prepare(self, pilot: Pilot) -> dict[str, Any]:
        """Measures what `applied` needs, if anything."""
        return {}

    def applied(self, pipe: Any, prepared: Prepared) -> AbstractContextManager[Counted]:
        """Applies this policy to the pipeline within a block."""
        raise NotImplementedError

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        """Evaluations per sample, or None if known only after the run. Raises PlanError if they are invalid."""
        return None

    def plan_of(self, prepared: Prepared) -> Plan | None:
        """The plan that it follows, if the plan alone determines its samples."""
        return Plan.from_dict(prepared["plan"]) if "plan" in prepared else None


@dataclass(frozen=True)
class PlainCFG(Policy):
    """Both branches at each step, on the unmodified pipeline; with `nfe`, in fewer steps."""

    nfe: Annotated[int, Field(ge=2)] | None = None
    paper: ClassVar[str] = "Ho and Salimans, Classifier-Free Diffusion Guidance, 2022: e = e_c + (w - 1) (e_c - e_u)"

    def budget(self, steps: int, guidance_scale: float) -> int:
        return 2 * steps

    @contextmanager
    def applied(self, pipe: Any, prepared: Prepared) -> Iterator[Counted]:
        with counted_rows(pipe) as rows:
            yield lambda size: [rows.pop_all() / size] * size


@dataclass(frozen=True)
class EnabledPolicy(Policy):
    """Anything that `thg.enable` takes, applied through it."""

    maker: GuideMaker

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        run = RunInfo.of(steps, guidance_scale)
        if isinstance(self.maker, Planned):
            return self.maker.planner.plan(run).nfe
        guide = self.maker.guide(run)
        return steps + sum(guide.evaluates(step) for step in range(steps)) if guide.plan is None else guide.plan.nfe

    def plan_of(self, prepared: Prepared) -> Plan | None:
        planner = self.maker.planner if isinstance(self.maker, Planned) else None
        return planner.value if isinstance(planner, Fixed) else None

    @contextmanager
    def applied(self, pipe: Any, prepared: Prepared) -> Iterator[Counted]:
        with enabled(pipe, self.maker):
            yield lambda size: [float(summary(pipe).nfe)] * size
