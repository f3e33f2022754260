"""`tune`: how many evaluations a network needs to stay within a tolerance, from the estimates of accelerated runs.

`within` is independent of the network. A few runs with it show by their own error estimates whether this network needs
more or fewer evaluations; no run of plain CFG is needed. The result is a planner, and no other state is kept: the same
planner always makes the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from thg.adapter import enabled, summary
from thg.calibration.pipeline import Pipeline
from thg.errors import ProfileError
from thg.plans.fidelity import DEFAULT_ERROR, ORDER, Within, within

ROUNDS = 2  # the second refines the number of evaluations that the first has found
QUANTILE = 0.95
LEAST, MOST = 0.5, 3.0  # effort


def tune(
    pipe: Any,
    prompts: Sequence[Any],
    error: float = DEFAULT_ERROR,
    *,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch_size: int = 4,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
) -> Within:
    """A planner that keeps this pipeline within a tolerance: `thg.within` with the effort that this network needs.

    Common arguments:
        prompts: one sample each; ten or more say something about the worst 5 %.
        error: the tolerance, as for `thg.within`.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.

    Advanced arguments:
        batch_size: prompts per run. seed: of the noise. call: further arguments of the pipeline's call.

    Costs two accelerated runs per prompt. The result prints as the code to write: `within(0.01, effort=1.2)`.
    """
    planner = within(error)
    subject = Pipeline.of(pipe, prompts, steps, guidance_scale, seed, call or {})
    with subject.quiet():
        for _ in range(ROUNDS):
            seen = float(np.quantile(_estimates(subject, planner, batch_size), QUANTILE))
            effort = planner.effort * (max(seen, 1e-9) / error) ** (1 / ORDER)
            planner = within(error, effort=round(min(max(effort, LEAST), MOST), 2))
    return planner


def _estimates(subject: Pipeline, planner: Within, batch_size: int) -> list[float]:
    """The estimated error of each sample."""
    errors: list[float] = []
    with enabled(subject.pipe, planner), torch.no_grad():
        for first in range(0, subject.samples, batch_size):
            subject.pipe(**subject.batch(range(first, min(first + batch_size, subject.samples))), **subject.arguments)
            report = summary(subject.pipe)
            if report.estimated_error is None:
                raise ProfileError(
                    f"a run of this {report.pipeline} gives no error estimate ({report.note or 'it has no leap'}); "
                    "tune it with more steps, or choose a tolerance yourself: thg.within(0.003)"
                )
            errors += report.estimated_error
    return errors
