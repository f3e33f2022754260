"""One seeded run of a pipeline, and its cost."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from thg.counting import Rows, counted_rows
from thg.errors import NonFiniteError, PlanError, THGError, UnsupportedPipelineError
from thg.models.pretrained import sampling_rate
from thg.pipelines import Summary, disable, enable, summary
from thg.plans.plan import Plan
from thg.plans.planners import Choice


@dataclass(frozen=True)
class Sampled:
    """The results of a run. kind: "image", "audio" or "video"; items: one per prompt."""

    kind: str
    items: list[Any]
    seconds: float
    nfe: int
    cfg_nfe: int
    summary: Summary | None


def sample(pipe: Any, call: dict[str, Any], seeds: list[int], plan: Choice | bool) -> Sampled:
    """Runs the pipeline with one seed per prompt. plan=False is plain CFG; True the default plan."""
    if not all(abs(seed) < 2**63 for seed in seeds):
        raise THGError(f"a seed has at most 63 bits: write a smaller number than {max(seeds, key=abs)}")
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    plain = plan is False
    if plain:
        disable(pipe)
    else:
        enable(pipe, None if plan is True else plan)
    start = time.perf_counter()
    try:
        with _counted(pipe) as rows, explained_errors(pipe, call["num_inference_steps"], len(seeds)):
            output = pipe(**call, generator=generators)
        seconds = time.perf_counter() - start
        report = None if plain else summary(pipe)
    except PlanError as error:
        if isinstance(plan, Plan):
            raise _unfit(plan, int(call["num_inference_steps"]), pipe) from error
        raise
    finally:
        disable(pipe)
    if report is not None and not report.finite:
        raise _broken(pipe)
    kind, items = _items(output)
    if report is not None:
        return Sampled(kind, items, seconds, report.nfe, report.cfg_nfe, report)
    countable = rows is not None and kind != "video"  # the rows of a video may be its frames
    nfe = rows.count // len(seeds) if rows is not None and countable else 2 * int(call["num_inference_steps"])
    return Sampled(kind, items, seconds, nfe, nfe, None)


def expected_kind(pipe: Any) -> str:
    """What a pipeline makes, before its first run: sounds if it has a sampling rate; videos count as images."""
    try:
        sampling_rate(pipe)
    except UnsupportedPipelineError:
        return "image"
    return "audio"


def _unfit(plan: Plan, steps: int, pipe: Any) -> PlanError:
    """The error of a plan that does not fit the run, in terms of the options."""
    if plan.steps != steps:
        share = plan.nfe / plan.cfg_nfe
        remedy = f"this run has {steps}; write --steps {plan.steps}, or --plan {share:.2f}, which fits any run"
    else:
        remedy = f"{type(pipe.scheduler).__name__} calls the network more often; choose another --scheduler"
    return PlanError(f"the plan is for {plan.steps} steps, and {remedy}")


@contextmanager
def _counted(pipe: Any) -> Iterator[Rows | None]:
    """Counts the rows passed to the network; None for a pipeline whose network is unknown."""
    with ExitStack() as stack:
        try:
            rows = stack.enter_context(counted_rows(pipe))
        except UnsupportedPipelineError:
            rows = None
        yield rows


@contextmanager
def explained_errors(pipe: Any, steps: int, batch: int) -> Iterator[None]:
    """The pipeline's errors on bad arguments (ValueError) and lack of memory become one-line errors."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "invalid value encountered in cast", RuntimeWarning)  # NaN as a pixel
            yield
    except THGError:
        raise
    except RuntimeWarning:
        raise _broken(pipe) from None
    except ValueError as error:
        raise THGError(f"{type(pipe).__name__} refuses this call: {error}") from error
    except (IndexError, AssertionError) as error:  # of a scheduler's table of times
        scheduler, reason = type(pipe.scheduler).__name__, f" ({error})" if str(error) else ""
        raise THGError(f"{scheduler} cannot run {steps} steps{reason}; write fewer --steps") from error
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise THGError(f"out of memory; {_smaller(batch)} ({str(error).splitlines()[0][:200]})") from error


def _is_out_of_memory(error: BaseException) -> bool:
    messages = ("out of memory", "allocate memory", "enough memory")  # of CUDA and MPS, and of two CPU allocators
    return isinstance(error, MemoryError) or any(message in str(error).lower() for message in messages)


def _smaller(batch: int) -> str:
    if batch > 1:
        return f"write --batch-size {batch // 2}"
    return "write a smaller --width and --height, --dtype float16, or --offload model on a GPU"


def _broken(pipe: Any) -> NonFiniteError:
    return NonFiniteError(f"{type(pipe).__name__} produced NaN or infinity; in half precision, try --dtype float32")


def _items(output: Any) -> tuple[str, list[Any]]:
    for kind, name in (("image", "images"), ("audio", "audios"), ("video", "frames")):
        value = getattr(output, name, None)
        if value is not None:
            return kind, list(value)
    raise THGError(f"this command cannot save the results in a {type(output).__name__}")
