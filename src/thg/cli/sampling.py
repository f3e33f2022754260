"""One seeded run of a pipeline, and what it has cost."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

from thg.adapter import Summary, disable, enable, summary
from thg.errors import NonFiniteError, THGError
from thg.plans.planners import Choice


@dataclass(frozen=True)
class Sampled:
    """What a run has made. kind: "image", "audio" or "video"; items: one per prompt."""

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
        enable(pipe, None if plan is True else plan)  # type: ignore[arg-type]
    start = time.perf_counter()
    try:
        output = _called(pipe, {**call, "generator": generators})
        seconds = time.perf_counter() - start
        report = None if plain else summary(pipe)
    finally:
        disable(pipe)
    if report is not None and not report.finite:
        raise _broken(pipe)
    kind, items = _items(output)
    steps = int(call["num_inference_steps"])
    nfe = 2 * steps if report is None else report.nfe
    return Sampled(kind, items, seconds, nfe, 2 * steps if report is None else report.cfg_nfe, report)


def _called(pipe: Any, call: dict[str, Any]) -> Any:
    """The pipeline's call; what it refuses (it says so by a ValueError) is an error of one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "invalid value encountered in cast", RuntimeWarning)  # NaN as a pixel
            return pipe(**call)
    except THGError:
        raise
    except RuntimeWarning:
        raise _broken(pipe) from None
    except ValueError as error:
        raise THGError(f"{type(pipe).__name__} refuses this call: {error}") from error


def _broken(pipe: Any) -> NonFiniteError:
    return NonFiniteError(f"{type(pipe).__name__} has made NaN or infinity; in half precision, try --dtype float32")


def _items(output: Any) -> tuple[str, list[Any]]:
    for kind, name in (("image", "images"), ("audio", "audios"), ("video", "frames")):
        value = getattr(output, name, None)
        if value is not None:
            return kind, list(value)
    raise THGError(f"this command cannot show what {type(output).__name__} holds")
