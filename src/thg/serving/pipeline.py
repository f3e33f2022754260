"""A request that an engine gives to a diffusers pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import thg
from thg.plans.planners import Planned
from thg.serving.request import Report

Result = TypeVar("Result")


def accelerated(pipe: Any, planned: Planned, call: Callable[[], Result]) -> tuple[Result, Report]:
    """The result of `call`, which calls the pipeline, and what it has cost. The pipeline is left as it was."""
    thg.enable(pipe, planned.planner)
    try:
        result = call()
        done = thg.summary(pipe)
    finally:
        thg.disable(pipe)
    ran = tuple(int(count > 0) for count in done.evaluations)
    worst = max(done.estimated_error) if done.estimated_error else None
    return result, Report(done.steps, done.nfe, done.cfg_nfe, ran, worst, done.note)
