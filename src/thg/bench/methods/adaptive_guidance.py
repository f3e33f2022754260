"""Adaptive Guidance, a baseline: guidance until the two branches are nearly parallel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor

from thg.bench.methods.policy import Counted, Pilot, PlainGuide, Policy
from thg.bench.tables import ConfigError
from thg.errors import PlanError, UnsupportedPipelineError
from thg.pipelines import enabled, summary
from thg.plans.guide import Guide
from thg.plans.planners import evaluations_for
from thg.plans.run import RunInfo, Term

TOLERANCE = 0.05
"""Relative deviation of the mean from a budget that is allowed: the last guided step jumps with the threshold."""


class AdaptiveGuidance:
    """Guidance until the two branches are nearly parallel: when cos(e_c, e_u) of a sample reaches the threshold, the
    rest of its run is conditional.

    Each sample has its own last guided step, independent of its batch; the network evaluates the unconditional branch
    of a batch until its last sample has stopped. `evaluations` counts those of each sample, as in the paper. A budget
    is met in the mean over samples, by a search for the threshold (`find_threshold`).
    """

    def __init__(self, threshold: float) -> None:
        if not -1 <= threshold <= 1:
            raise PlanError(f"the threshold is a cosine, from -1 to 1, not {threshold:g}")
        self.threshold = threshold
        self._last = AdaptiveGuidanceRun(threshold)

    def guide(self, run: RunInfo) -> Guide:
        self._last = AdaptiveGuidanceRun(self.threshold)
        return self._last

    def evaluations(self) -> list[int]:
        """How often the unconditional branch of each sample counted in the last run."""
        return [] if self._last.counts is None else self._last.counts.tolist()


class AdaptiveGuidanceRun(PlainGuide):
    """One run of `AdaptiveGuidance`."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._active: Tensor | None = None  # one flag per sample
        self.counts: Tensor | None = None

    def evaluates(self, step: int) -> bool:
        return self._active is None or bool(self._active.any())

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        cosines = branch_cosines(conditional, term)
        active = torch.ones_like(cosines, dtype=torch.bool) if self._active is None else self._active
        self.counts = active.long() if self.counts is None else self.counts + active.long()
        self._active = active & (cosines < self._threshold)
        return None if bool(active.all()) else tuple(p * active.view(-1, *[1] * (p.ndim - 1)) for p in term)


class CosineRecorder(PlainGuide):
    """Plain CFG that records cos(e_c, e_u) of each sample at each step, for `find_threshold`."""

    def __init__(self) -> None:
        self.curves: list[list[float]] = []  # one list per step

    def guide(self, run: RunInfo) -> Guide:
        self.curves = []
        return self

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        self.curves.append(branch_cosines(conditional, term).tolist())
        return None


def branch_cosines(conditional: Term, term: Term) -> Tensor:
    """cos(e_c, e_u) of each sample, over all tensors of the output together."""
    if len(conditional) != len(term):
        raise UnsupportedPipelineError("Adaptive Guidance is defined for two branches; this pipeline has more")
    e_c = torch.cat([part.float().flatten(1) for part in conditional], dim=1)
    e_u = e_c - torch.cat([part.float().flatten(1) for part in term], dim=1)
    return torch.nn.functional.cosine_similarity(e_c, e_u, dim=1)


def find_threshold(curves: list[list[float]], nfe: int) -> tuple[float, float]:
    """The threshold whose mean number of evaluations on recorded runs is nearest to a budget, and that mean.

    curves: of `CosineRecorder`, one list of cosines (one per sample) for each step. Until a sample's guidance ends, its
    run under Adaptive Guidance is its run under plain CFG, so the counts are exact for these samples.
    """
    steps = len(curves)
    wanted = evaluations_for(nfe, steps)
    by_sample = [[row[k] for row in curves] for k in range(len(curves[0]))]

    def mean_evaluations(threshold: float) -> float:
        ends = (next((i + 1 for i, c in enumerate(cosines) if c >= threshold), steps) for cosines in by_sample)
        return math.fsum(ends) / len(by_sample)

    levels = sorted({-1.0, 1.0, *(min(c, 1.0) for row in curves for c in row)})
    borders = [(low + high) / 2 for low, high in pairwise(levels)]
    low, high = 0, len(borders) - 1
    while low < high:  # the mean grows with the threshold
        middle = (low + high) // 2
        low, high = (middle + 1, high) if mean_evaluations(borders[middle]) < wanted else (low, middle)
    best = min(borders[max(0, low - 1) : low + 1], key=lambda border: abs(mean_evaluations(border) - wanted))
    reached = mean_evaluations(best)
    if abs(reached - wanted) > TOLERANCE * nfe:
        raise PlanError(
            f"Adaptive Guidance cannot meet nfe={nfe} here: the nearest threshold, {best:.6f}, gives "
            f"{steps + reached:.2f} evaluations on average; choose another nfe, or set a threshold"
        )
    return best, steps + reached


@dataclass(frozen=True)
class AdaptiveGuidancePolicy(Policy):
    """Adaptive Guidance with a threshold, or with a budget for which the pilot finds one."""

    nfe: int | None = None
    threshold: float | None = None
    paper: ClassVar[str] = "Castillo et al., Adaptive Guidance, 2023: e_c alone once cos(e_c, e_u) >= threshold"
    exact: ClassVar[bool] = False

    @property
    def needs_preparation(self) -> bool:
        return self.threshold is None

    def budget(self, steps: int, guidance_scale: float) -> None:
        if (self.nfe is None) == (self.threshold is None):
            raise ConfigError("adaptive-guidance takes exactly one of nfe = 70 and threshold = 0.99")
        if self.threshold is not None:
            AdaptiveGuidance(self.threshold)

    def prepare(self, pilot: Pilot, known: Mapping[str, Any]) -> tuple[Policy, dict[str, Any]]:
        if self.threshold is not None:
            return self, {}
        if "threshold" in known:
            return AdaptiveGuidancePolicy(self.nfe, known["threshold"]), dict(known)
        assert self.nfe is not None
        recorder = CosineRecorder()
        with enabled(pilot.pipe, recorder):
            pilot.run()
        threshold, nfe = find_threshold(recorder.curves, self.nfe)
        measured = {"threshold": threshold, "nfe_of_pilot": nfe, "pilot": len(recorder.curves[0])}
        return AdaptiveGuidancePolicy(self.nfe, threshold), measured

    @contextmanager
    def applied(self, pipe: Any) -> Iterator[Counted]:
        assert self.threshold is not None
        policy = AdaptiveGuidance(self.threshold)
        with enabled(pipe, policy):
            yield lambda size: [float(summary(pipe).steps + count) for count in policy.evaluations()]
