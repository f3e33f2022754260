"""One seeded run of a pipeline, its cost, its progress, and its errors as one line."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch
from tqdm import tqdm

from thg.counting import Rows, counted_rows
from thg.errors import NonFiniteError, PlanError, THGError, UnsupportedPipelineError
from thg.media import Output
from thg.models.pretrained import accepted
from thg.pipelines import Summary, disable, enable, summary
from thg.plans.plan import Plan
from thg.plans.planners import Choice


@dataclass(frozen=True)
class Sampled:
    """The results of a run, one per prompt, and their cost. nfe, cfg_nfe: evaluations per sample."""

    output: Output
    seconds: float
    nfe: int
    cfg_nfe: int
    summary: Summary | None = None

    @classmethod
    def joined(cls, parts: list[Sampled]) -> Sampled:
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


def sample(pipe: Any, call: dict[str, Any], seeds: list[int], plan: Choice | bool) -> Sampled:
    """Runs the pipeline with one seed per prompt. plan=False is plain CFG; True the default plan."""
    if not all(abs(seed) < 2**63 for seed in seeds):
        raise THGError(f"a seed has at most 63 bits: write a smaller number than {max(seeds, key=abs)}")
    call = {**call, "generator": [torch.Generator("cpu").manual_seed(seed) for seed in seeds]}
    if "output_type" in accepted(pipe):
        call["output_type"] = "np"
    if plan is False:
        disable(pipe)
    else:
        enable(pipe, None if plan is True else plan)
    steps = int(call["num_inference_steps"])
    start = time.perf_counter()
    try:
        with _counted(pipe) as rows, explained_errors(pipe, steps, len(seeds)):
            result = pipe(**call)
        seconds = time.perf_counter() - start
        report = None if plan is False else summary(pipe)
    except PlanError as error:
        if isinstance(plan, Plan):
            raise _unfit(plan, steps, pipe) from error
        raise
    finally:
        disable(pipe)
    if report is not None and not report.finite:
        raise _broken(pipe)
    output = Output.of(result, pipe)
    if report is not None:
        return Sampled(output, seconds, report.nfe, report.cfg_nfe, report)
    countable = rows is not None and output.kind != "video"  # the rows of a video may be its frames
    nfe = rows.count // len(seeds) if rows is not None and countable else 2 * steps
    return Sampled(output, seconds, nfe, nfe)


@contextmanager
def _counted(pipe: Any) -> Iterator[Rows | None]:
    """Counts the rows passed to the network; None for a pipeline whose network is unknown."""
    with ExitStack() as stack:
        try:
            rows = stack.enter_context(counted_rows(pipe))
        except UnsupportedPipelineError:
            rows = None
        yield rows


# -- errors


def _unfit(plan: Plan, steps: int, pipe: Any) -> PlanError:
    """The error of a plan that does not fit the run, in terms of the options."""
    if plan.steps != steps:
        share = plan.nfe / plan.cfg_nfe
        remedy = f"this run has {steps}; write --steps {plan.steps}, or --plan {share:.2f}, which fits any run"
    else:
        remedy = f"{type(pipe.scheduler).__name__} calls the network more often; choose another --scheduler"
    return PlanError(f"the plan is for {plan.steps} steps, and {remedy}")


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


# -- progress


class Progress:
    """A progress bar over all pictures of a command, updated at each step of a batch; shown on terminals only."""

    def __init__(self, pictures: int) -> None:
        layout = "{desc}{percentage:3.0f}% |{bar}| {elapsed}, {remaining} left"
        self._bar = tqdm(total=float(pictures), bar_format=layout, disable=None, leave=False)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def sample(self, what: str, pipe: Any, call: dict[str, Any], seeds: list[int], plan: Choice | bool) -> Sampled:
        """`sample` for a batch, whose steps move the bar if the pipeline reports them."""
        done = self._bar.n + len(seeds)
        self._bar.set_description_str(f"{what} ")

        def on_step_end(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._bar.update(len(seeds) / max(pipe.num_timesteps, step + 1))
            return tensors

        if "callback_on_step_end" in accepted(pipe):
            call = {**call, "callback_on_step_end": on_step_end}
        sampled = sample(pipe, call, seeds, plan)
        self._bar.update(done - self._bar.n)
        return sampled

    def print(self, text: str) -> None:
        """Prints above the bar."""
        self._bar.clear()
        print(text, flush=True)
