"""A run of a pipeline with its progress, and its errors as one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm

from thg.errors import NonFiniteError, PlanError, THGError
from thg.models.pretrained import accepted
from thg.plans.plan import Plan
from thg.plans.planners import Choice
from thg.sampling import SeededRun, seeded_run


def explained_run(pipe: Any, call: dict[str, Any], seeds: list[int], plan: Choice | bool) -> SeededRun:
    """A seeded run, with errors in terms of the options."""
    steps = int(call["num_inference_steps"])
    try:
        with explained_errors(pipe, steps, len(seeds)):
            done = seeded_run(pipe, call, seeds, plan)
    except PlanError as error:
        if isinstance(plan, Plan):
            raise _unfit(plan, steps, pipe) from error
        raise
    if done.summary is not None and not done.summary.finite:
        raise _broken(pipe)
    return done


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

    def close(self) -> None:
        self._bar.close()

    def sample(self, what: str, pipe: Any, call: dict[str, Any], seeds: list[int], plan: Choice | bool) -> SeededRun:
        """A run of a batch, whose steps move the bar if the pipeline reports them."""
        done = self._bar.n + len(seeds)
        self._bar.set_description_str(f"{what} ")

        def on_step_end(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
            self._bar.update(len(seeds) / max(pipe.num_timesteps, step + 1))
            return tensors

        if "callback_on_step_end" in accepted(pipe):
            call = {**call, "callback_on_step_end": on_step_end}
        sampled = explained_run(pipe, call, seeds, plan)
        self._bar.update(done - self._bar.n)
        return sampled

    def print(self, text: str) -> None:
        """Prints above the bar."""
        self._bar.clear()
        print(text, flush=True)
