"""One seeded run of a pipeline: its results and its cost, and the use of its network, counted in rows or in work."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from thg.errors import PlanError, THGError, UnsupportedPipelineError
from thg.media import Output
from thg.models.pretrained import accepted
from thg.pipelines import Summary, enabled, summary
from thg.pipelines.describe import describe, known_run
from thg.pipelines.layouts import DENOISERS, Batched, Delegates, Sequential, layout_of
from thg.plans.planners import Choice
from thg.plans.run_info import RunInfo


@dataclass(frozen=True)
class SeededRun:
    """The results of a run, one per prompt, and their cost. nfe, cfg_nfe: evaluations per sample; summary: of thg's."""

    output: Output
    seconds: float
    nfe: int
    cfg_nfe: int
    summary: Summary | None = None

    def cost(self, number: int) -> dict[str, Any]:
        """What one of the results has cost, for its metadata."""
        report = self.summary
        estimates = None if report is None else report.estimated_error
        return {
            "nfe": self.nfe,
            "cfg_nfe": self.cfg_nfe,
            "estimated_error": None if estimates is None else estimates[number],
            "plan": None if report is None or report.plan is None else report.plan.to_dict(),
        }

    @classmethod
    def joined(cls, parts: list[SeededRun]) -> SeededRun:
        """The batches of one method as one run; its estimate is that of all samples, if each batch has one."""
        last = parts[-1]
        seconds = sum(part.seconds for part in parts)
        output = replace(last.output, items=tuple(item for part in parts for item in part.output.items))
        report = last.summary
        if report is not None:
            estimates = [part.summary.estimated_error if part.summary is not None else None for part in parts]
            together = tuple(error for estimate in estimates for error in estimate or ())
            report = replace(report, seconds=seconds, estimated_error=None if None in estimates else together)
        return replace(last, output=output, seconds=seconds, summary=report)


def seeded_run(pipe: Any, call: dict[str, Any], seeds: Sequence[int], plan: Choice | bool) -> SeededRun:
    """Runs the pipeline with one seed per prompt. plan=False is plain CFG; True the default plan."""
    if not all(abs(seed) < 2**63 for seed in seeds):
        raise THGError(f"a seed has at most 63 bits: write a smaller number than {max(seeds, key=abs)}")
    call = {**call, "generator": [torch.Generator("cpu").manual_seed(seed) for seed in seeds]}
    if "output_type" in accepted(pipe):
        call["output_type"] = "np"
    started = time.perf_counter()
    if plan is not False:
        with enabled(pipe, None if plan is True else plan):
            result, report = pipe(**call), summary(pipe)
        seconds = time.perf_counter() - started
        return SeededRun(Output.of(result, pipe), seconds, report.nfe, report.cfg_nfe, report)
    with ExitStack() as counting:
        rows = None
        with suppress(UnsupportedPipelineError):  # the network is unknown
            rows = counting.enter_context(counted_rows(pipe))
        result = pipe(**call)
    seconds, output = time.perf_counter() - started, Output.of(result, pipe)
    countable = rows is not None and output.kind != "video"  # the rows of a video may be its frames
    nfe = rows.count // len(seeds) if rows is not None and countable else 2 * len(pipe.scheduler.timesteps)
    return SeededRun(output, seconds, nfe, nfe)


def steps_at_cost(steps: int, nfe: int, plain_nfe: int) -> int:
    """Steps of plain CFG with as many evaluations as thg's, and never fewer. plain_nfe: with all `steps`."""
    return math.ceil(steps * nfe / plain_nfe)


def run_from_picture(pipe: Any, scheduler: Any, steps: int, strength: float) -> RunInfo:
    """The run of a pipeline that starts from a picture: the last steps of the schedule; it says itself how many.

    scheduler: one that is not used afterwards.
    """
    if not hasattr(pipe, "get_timesteps"):
        raise UnsupportedPipelineError(f"{type(pipe).__name__} does not say before a run how many steps it will have")
    known_run(scheduler, steps)  # sets its times
    other = copy.copy(pipe)  # a run in another thread does not notice
    other.scheduler = scheduler
    times, _ = other.get_timesteps(steps, strength, "cpu")
    if not len(times):
        raise PlanError(f"A strength of {strength:g} leaves none of {steps} steps: take more of either.")
    return describe(scheduler, times)


# -- how often the network is used


class Counter:
    """Of rows passed to a network, or of work in its layers."""

    def __init__(self) -> None:
        self.count = 0

    def pop_all(self) -> int:
        count, self.count = self.count, 0
        return count


@contextmanager
def counted_rows(pipe: Any) -> Iterator[Counter]:
    """Counts the rows of each call of the pipeline's denoisers."""
    rows = Counter()

    def count(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = args[0] if args else kwargs.get("hidden_states", kwargs.get("sample"))
        rows.count += len(sample) if sample is not None else 0

    with ExitStack() as hooks:
        for network in denoisers(pipe):
            hooks.enter_context(network.register_forward_pre_hook(count, with_kwargs=True))
        yield rows


@contextmanager
def counted_work(pipe: Any) -> Iterator[Counter]:
    """Counts multiplications in the linear and convolution layers of the denoisers.

    For third-party caches, which skip parts of the network: layers that do not run are not counted.
    """
    work = Counter()

    def count(module: torch.nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        work.count += output.numel() * math.prod(weight.shape[1:])

    kinds = torch.nn.Linear | torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d
    with ExitStack() as hooks:
        for layer in (layer for network in denoisers(pipe) for layer in network.modules()):
            if isinstance(layer, kinds):
                hooks.enter_context(layer.register_forward_hook(count))
        yield work


def denoisers(pipe: Any) -> list[torch.nn.Module]:
    """The networks of a pipeline that guidance evaluates twice."""
    layout = layout_of(pipe)
    if isinstance(layout, Delegates):
        return [network for part in layout.parts for network in denoisers(getattr(pipe, part))]
    names = layout.networks if isinstance(layout, Batched | Sequential) else DENOISERS
    networks = [part for name in names if isinstance(part := getattr(pipe, name, None), torch.nn.Module)]
    if not networks:
        raise UnsupportedPipelineError(f"this {type(pipe).__name__} has no denoiser to count")
    return networks
