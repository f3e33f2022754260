"""`tune`: how many evaluations a network needs to stay within a tolerance, from the estimates of accelerated runs.

`within` is independent of the network. A few runs with it show by their own error estimates whether this network needs
more or fewer evaluations, and whether even leaps suit it better; no run of plain CFG is needed. The result is a
planner, and no other state is kept: the same planner always makes the same plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from thg.calibration.pipeline import Pipeline
from thg.errors import ProfileError
from thg.pipelines import enabled, summary
from thg.plans.fidelity import DEFAULT_ERROR, PRIOR, Within, within

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
    """A planner that keeps this pipeline within a tolerance: `thg.within` with the effort and shape that this network
    needs.

    Common arguments:
        prompts: one sample each; ten or more say something about the worst 5 %.
        error: the tolerance, as for `thg.within`.
        steps, guidance_scale: as the pipeline will be used; its own defaults unless set.

    Advanced arguments:
        batch_size: prompts per run. seed: of the noise. call: further arguments of the pipeline's call.

    Costs three accelerated runs per prompt. The result prints like the code to write: `within(0.01, effort=1.2)`.
    """
    subject = Pipeline.of(pipe, prompts, steps, guidance_scale, seed, call or {})
    with subject.quiet():
        planner = within(error)
        planner = _adjusted(planner, _estimated(subject, planner, batch_size))
        return _adjusted(planner, _estimated(subject, planner, batch_size))  # refines the first adjustment


def _adjusted(planner: Within, estimated: float) -> Within:
    """The planner with the effort that moves this estimate to the tolerance."""
    effort = planner.effort * (max(estimated, 1e-9) / planner.error) ** (1 / PRIOR.order)
    return replace(planner, effort=round(min(max(effort, LEAST), MOST), 2))


def _estimated(subject: Pipeline, planner: Within, batch_size: int) -> float:
    """The error that 95 % of the samples stay within, by their own estimates."""
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
    return float(np.quantile(errors, QUANTILE))
