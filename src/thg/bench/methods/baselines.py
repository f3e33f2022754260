"""Baselines that change the unconditional branch alone: it is reused for some steps, or guidance is limited to a part.

Each is set to a number of network evaluations per sample (`nfe`): the conditional branch runs at each step, so
nfe - steps is the number of unconditional evaluations. It is exact, but for Adaptive Guidance, which meets it in the
mean. A budget that cannot be met is an error. Most are planners: plans of the guidance term that hold it over a leap.
These are our own implementations; where a paper and its released code differ, the docstring of the class says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from thg.bench.methods.policy import Counted, Pilot, Policy, Prepared
from thg.bench.tables import ConfigError
from thg.errors import PlanError, UnsupportedPipelineError
from thg.pipelines import enabled, summary
from thg.plans.guide import Guide, HareGuide
from thg.plans.plan import Plan
from thg.plans.planners import evaluations_for
from thg.plans.run_info import RunInfo, Term


@dataclass(frozen=True)
class CFGCache:
    """CFG-Cache, the guidance part of FasterCache: the difference of the two branches is kept and reused.

    After `warmup` steps with both branches (as many as the budget allows), the unconditional branch runs at each
    `interval`-th step and is otherwise the conditional one plus the last difference.
    """

    paper: ClassVar[str] = "Lv et al., FasterCache, 2024, Eq. 9-10 without the frequency weights"

    nfe: int
    interval: Annotated[int, Field(ge=2)] = 5

    def plan(self, run: RunInfo) -> Plan:
        count = evaluations_for(self.nfe, run.steps)
        for warmup in range(run.steps + 1):
            coarse = (*range(warmup), *(i for i in range(warmup, run.steps) if i % self.interval == 0))
            if len(coarse) == count:
                return Plan(run.steps, coarse, hare_order=1)
        least = math.ceil(run.steps / self.interval)
        raise PlanError(
            f"CFG-Cache with interval={self.interval} evaluates the unconditional branch {least} times in {run.steps} "
            f"steps at least, so nfe={self.nfe} is too small; write nfe={run.steps + least} or a longer interval"
        )


@dataclass(frozen=True)
class CFGCacheFFT(CFGCache):
    """CFG-Cache with the frequency enhancement: the low frequencies of the kept difference are raised in the earlier
    part of the run, the high ones in the later part.

    The paper's weights (Eq. 11) are 1 + alpha within a range of time steps. The released code, which this class follows
    (as diffusers does), multiplies the kept difference itself, so that the weight grows over the steps of a leap; and
    its two ranges overlap (CogVideoX: low up to step 40 of 50, high from step 30 on).
    """

    paper: ClassVar[str] = "Lv et al., FasterCache, 2024, Eq. 9-11"

    low_weight: float = 1.1
    high_weight: float = 1.1
    low_until: float = 0.8  # share of the run
    high_from: float = 0.6

    def guide(self, run: RunInfo) -> Guide:
        return FrequencyGuide(self.plan(run), run, self)


class FrequencyGuide(HareGuide):
    """Follows a plan, and weights the frequencies of its predictions."""

    def __init__(self, plan: Plan, run: RunInfo, weights: CFGCacheFFT) -> None:
        super().__init__(plan, run)
        self._weights = weights
        self._low = self._high = 1.0

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        self._low = self._high = 1.0
        return super().observe(step, conditional, term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        term = super().predict(step, conditional)
        if term is None:
            return None
        position = (step + 1) / self.plan.steps
        self._low *= self._weights.low_weight if position <= self._weights.low_until else 1.0
        self._high *= self._weights.high_weight if position >= self._weights.high_from else 1.0
        return tuple(weigh_frequencies(part, self._low, self._high) for part in term)


def weigh_frequencies(term: Tensor, low: float, high: float) -> Tensor:
    """Multiplies the low and the high spatial frequencies of each picture or video frame.

    Works on layouts that end in height and width: pictures (batch, channels, h, w) and videos (batch, channels, frames,
    h, w) or (batch, frames, channels, h, w). Low is a disc of radius min(h, w) // 5 around frequency 0.
    """
    if term.ndim not in (4, 5):
        raise UnsupportedPipelineError(
            f"the frequency enhancement of CFG-Cache needs an output that ends in height and width, not one of shape "
            f"{tuple(term.shape)}; use the policy cfg-cache"
        )
    height, width = term.shape[-2:]
    y = torch.fft.fftfreq(height, 1 / height, device=term.device)
    x = torch.fft.fftfreq(width, 1 / width, device=term.device)
    is_low = y[:, None] ** 2 + x[None, :] ** 2 <= (min(height, width) // 5) ** 2
    weighed: Tensor = torch.fft.ifft2(torch.fft.fft2(term) * torch.where(is_low, low, high)).real
    return weighed


@dataclass(frozen=True)
class CFGGate:
    """Both branches up to a step (the gate), which the budget sets; from there on the last difference is held."""

    paper: ClassVar[str] = "CFG gate (FastVideo, sglang): the last difference of the branches is held after a gate step"

    nfe: int

    def plan(self, run: RunInfo) -> Plan:
        return Plan(run.steps, tuple(range(evaluations_for(self.nfe, run.steps))), hare_order=1)


@dataclass(frozen=True)
class SelectiveGuidance:
    """Guidance in the first part of the run only; the rest is conditional. The budget sets where it ends."""

    paper: ClassVar[str] = "Golnari et al., Selective Guidance, 2023: e = e_c + (w - 1) d for the first steps, then e_c"

    nfe: int

    def plan(self, run: RunInfo) -> Plan:
        return GuidanceInterval(self.nfe, start=0.0).plan(run)


@dataclass(frozen=True)
class StepAG(SelectiveGuidance):
    """The same as Selective Guidance, under the name by which it was published again."""

    paper: ClassVar[str] = "Step AG, 2025 (arXiv 2506.08351): guidance in the first steps only, as Selective Guidance"


@dataclass(frozen=True)
class GuidanceInterval:
    """Guidance within an interval of the noise levels; before and after it the run is conditional.

    `start` is the share of the run before the interval, and the budget sets its length. The default
    corresponds to the authors' upper level for Stable Diffusion XL (sigma 5.42) on its schedule.
    """

    paper: ClassVar[str] = (
        "Kynkaanniemi et al., Applying Guidance in a Limited Interval, 2024: w(sigma) = w inside, 1 outside"
    )

    nfe: int
    start: Annotated[float, Field(ge=0, lt=1)] = 0.17

    def plan(self, run: RunInfo) -> Plan:
        count = evaluations_for(self.nfe, run.steps)
        first = int(self.start * run.steps)
        end = first + count
        if end > run.steps:
            raise PlanError(
                f"a guidance interval of {count} steps (nfe={self.nfe}) that starts at step {first} of {run.steps} "
                f"does not fit; write start={max(0, run.steps - count) / run.steps:.2f} or less"
            )
        return Plan(run.steps, tuple(range(first, end)), start=first, cutoff=end, hare_order=1)


# -- Adaptive Guidance

BUDGET_TOLERANCE = 0.05
"""Relative deviation of the mean from a budget that is allowed: the last guided step jumps with the threshold."""


@dataclass(frozen=True)
class AdaptiveGuidance(Policy):
    """Guidance until the two branches are nearly parallel: when cos(e_c, e_u) of a sample reaches the threshold, the
    rest of its run is conditional.

    Each sample has its own last guided step, independent of its batch; the network evaluates the unconditional branch
    of a batch until its last sample has stopped. The evaluations of each sample are counted, as in the paper. A budget
    is met in the mean over samples, by a search for the threshold on the pilot (`find_threshold`).
    """

    nfe: int | None = None
    threshold: float | None = None
    paper: ClassVar[str] = "Castillo et al., Adaptive Guidance, 2023: e_c alone once cos(e_c, e_u) >= threshold"
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if (self.nfe is None) == (self.threshold is None):
            raise ConfigError("adaptive-guidance takes exactly one of nfe = 70 and threshold = 0.99")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise PlanError(f"the threshold is a cosine, from -1 to 1, not {self.threshold:g}")

    @property
    def needs_preparation(self) -> bool:
        return self.threshold is None

    def prepare(self, pilot: Pilot) -> dict[str, Any]:
        assert self.nfe is not None  # a threshold needs no preparation
        plain = AdaptiveGuide()
        with enabled(pilot.pipe, plain):
            pilot.run()
        threshold, nfe = find_threshold(plain.cosines, self.nfe)
        return {"threshold": threshold, "nfe_of_pilot": nfe, "pilot": len(plain.cosines[0])}

    @contextmanager
    def applied(self, pipe: Any, prepared: Prepared) -> Iterator[Counted]:
        guide = AdaptiveGuide(prepared["threshold"] if self.threshold is None else self.threshold)
        with enabled(pipe, guide):
            yield lambda size: [float(summary(pipe).steps + count) for count in guide.counts]


class AdaptiveGuide:
    """A run of `AdaptiveGuidance`; above any cosine, the threshold leaves plain CFG.

    cosines: cos(e_c, e_u) of each sample, one list for each step at which both branches ran.
    """

    plan: Plan | None = None

    def __init__(self, threshold: float = math.inf) -> None:
        self._threshold = threshold
        self._active: Tensor | None = None  # one flag per sample
        self.cosines: list[list[float]] = []

    @property
    def counts(self) -> list[int]:
        """How often the unconditional branch of each sample counted."""
        return [guided_steps(sample, self._threshold) for sample in zip(*self.cosines, strict=True)]

    def guide(self, run: RunInfo) -> Guide:
        self._active, self.cosines = None, []
        return self

    def evaluates(self, step: int) -> bool:
        return self._active is None or bool(self._active.any())

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        cosines = _cosines(conditional, term)
        self.cosines.append(cosines.tolist())
        active = torch.ones_like(cosines, dtype=torch.bool) if self._active is None else self._active
        self._active = active & (cosines < self._threshold)
        return None if bool(active.all()) else tuple(p * active.view(-1, *[1] * (p.ndim - 1)) for p in term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        return None


def _cosines(conditional: Term, term: Term) -> Tensor:
    """cos(e_c, e_u) of each sample, over all tensors of the output together."""
    if len(conditional) != len(term):
        raise UnsupportedPipelineError("Adaptive Guidance is defined for two branches; this pipeline has more")
    e_c = torch.cat([part.float().flatten(1) for part in conditional], dim=1)
    e_u = e_c - torch.cat([part.float().flatten(1) for part in term], dim=1)
    return torch.nn.functional.cosine_similarity(e_c, e_u, dim=1).double()


def guided_steps(cosines: Sequence[float], threshold: float) -> int:
    """How many steps of a sample have guidance: up to the first whose cosine reaches the threshold."""
    return next((i + 1 for i, cosine in enumerate(cosines) if cosine >= threshold), len(cosines))


def find_threshold(cosines: list[list[float]], nfe: int) -> tuple[float, float]:
    """The threshold whose mean number of evaluations on recorded runs is nearest to a budget, and that mean.

    cosines: of plain runs, one list (one number per sample) for each step. Until a sample's guidance ends, its
    run under Adaptive Guidance is its run under plain CFG, so the counts are exact for these samples.
    """
    steps, samples = len(cosines), list(zip(*cosines, strict=True))
    wanted = evaluations_for(nfe, steps)

    def mean_evaluations(threshold: float) -> float:
        return math.fsum(guided_steps(sample, threshold) for sample in samples) / len(samples)

    levels = sorted({-1.0, 1.0, *(min(c, 1.0) for row in cosines for c in row)})
    borders = [(low + high) / 2 for low, high in pairwise(levels)]
    first = bisect_left(borders, float(wanted), key=mean_evaluations)  # the mean grows with the threshold
    best = min(borders[max(0, first - 1) : first + 1], key=lambda border: abs(mean_evaluations(border) - wanted))
    reached = mean_evaluations(best)
    if abs(reached - wanted) > BUDGET_TOLERANCE * nfe:
        raise PlanError(
            f"Adaptive Guidance cannot meet nfe={nfe} here: the nearest threshold, {best:.6f}, gives "
            f"{steps + reached:.2f} evaluations on average; choose another nfe, or set a threshold"
        )
    return best, steps + reached
