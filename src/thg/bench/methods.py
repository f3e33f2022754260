"""What a benchmark compares: policies that can be put on a pipeline, and how many evaluations each of them made.

    policy.applied(pipe)    a block within which the pipeline runs under the policy; gives a function that says, after
                            a run, how many evaluations each sample of the batch took
    policy.budget(...)      evaluations a sample as far as they are known before the run, after checking them
    policy.prepare(pilot)   what has to be measured once before the comparison (a threshold, a profile)

Plain CFG runs on the pipeline as it is, so that no rival is compared with something that we have slowed down.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thg.adapter import enabled, summary
from thg.adapter.layouts import Delegates, layout_of
from thg.bench.policies import AdaptiveGuidance, CosineRecorder, find_threshold
from thg.errors import PlanError, UnsupportedPipelineError
from thg.plans.guide import GuideMaker, Run

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

    @abstractmethod
    def applied(self, pipe: Any) -> AbstractContextManager[Counted]:
        """The pipeline under this policy, for the length of a block."""

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        """Evaluations a sample, or None where only the run can tell. Raises PlanError if they make no sense."""
        return None

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        """The policy as it will run, and what was measured for it. `known`: what was measured before, if anything."""
        return self, {}


class PlainCFG(Policy):
    """Both branches at each step, on the pipeline as it is. With fewer steps it is the oldest way to be faster."""

    paper = "Ho and Salimans, Classifier-Free Diffusion Guidance, 2022: e = e_c + (w - 1) (e_c - e_u)"

    def budget(self, steps: int, guidance_scale: float) -> int:
        return 2 * steps

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        with counted_rows(pipe) as rows:
            yield lambda size: [rows.pop_all() / size] * size


@dataclass(frozen=True)
class Guided(Policy):
    """A policy that thg's own takeover runs: one of the rivals, the paper's plan, or a planner of ours."""

    maker: GuideMaker
    paper: str = "Tortoise and Hare Guidance, 2025, Algorithm 1"

    def budget(self, steps: int, guidance_scale: float) -> int | None:
        guide = self.maker.guide(Run.of(steps, guidance_scale))
        return steps + sum(guide.evaluates(step) for step in range(steps)) if guide.plan is None else guide.plan.nfe

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        with enabled(pipe, self.maker):
            yield lambda size: [float(summary(pipe).nfe)] * size


@dataclass(frozen=True)
class Adaptive(Policy):
    """Adaptive Guidance with a threshold, or with a budget for which the pilot finds one."""

    nfe: int | None
    threshold: float | None
    paper: str = AdaptiveGuidance.paper

    def budget(self, steps: int, guidance_scale: float) -> None:
        if self.threshold is not None:
            AdaptiveGuidance(self.threshold)

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        if self.threshold is not None:
            return self, {}
        if "threshold" in known:
            return Adaptive(self.nfe, known["threshold"]), dict(known)
        assert self.nfe is not None
        recorder = CosineRecorder()
        with enabled(pilot.pipe, recorder):
            pilot.run()
        threshold, nfe = find_threshold(recorder.curves, self.nfe)
        return Adaptive(self.nfe, threshold), {"threshold": threshold, "nfe_of_pilot": nfe, "pilot": len(pilot.prompts)}

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        assert self.threshold is not None
        policy = AdaptiveGuidance(self.threshold)
        with enabled(pipe, policy):
            yield lambda size: [float(summary(pipe).steps + count) for count in policy.evaluations()]


# -- counting


class Rows:
    """Rows that went through a network."""

    def __init__(self) -> None:
        self.count = 0

    def pop_all(self) -> int:
        count, self.count = self.count, 0
        return count


@contextmanager
def counted_rows(pipe: Any) -> Iterator[Rows]:
    """Counts the rows of each call of the pipeline's denoisers, on the pipeline as it is."""
    rows = Rows()

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        rows.count += len(sample) if sample is not None else 0

    handles = [network.register_forward_pre_hook(count, with_kwargs=True) for network in denoisers(pipe)]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def counted_work(pipe: Any) -> Iterator[Rows]:
    """Counts multiplications in the linear and convolution layers of the denoisers.

    For outside programs, which leave out parts of the network: what does not run is not counted.
    """
    work = Rows()

    def count(module: torch.nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        work.count += output.numel() * math.prod(weight.shape[1:])

    layers = (torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)
    handles = [
        layer.register_forward_hook(count)
        for network in denoisers(pipe)
        for layer in network.modules()
        if isinstance(layer, layers)
    ]
    try:
        yield work
    finally:
        for handle in handles:
            handle.remove()


def denoisers(pipe: Any) -> list[torch.nn.Module]:
    """The networks of a pipeline that the guidance doubles."""
    layout = layout_of(pipe)
    if isinstance(layout, Delegates):
        return [network for part in layout.parts for network in denoisers(getattr(pipe, part))]
    names = [*layout.denoisers, getattr(layout, "unconditional", None)]
    found = [getattr(pipe, name) for name in names if name and isinstance(getattr(pipe, name, None), torch.nn.Module)]
    if not found:
        raise UnsupportedPipelineError(f"this {type(pipe).__name__} has no denoiser to count")
    return found


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
