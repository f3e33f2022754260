"""The rivals, as guidance policies: they run through the same takeover of the pipeline as thg's own plans.

Each is set to an exact number of network evaluations a sample (`nfe`) where the method has a dial for it; a budget that
it cannot meet is an error. What they share: the conditional branch runs at each step, so nfe - steps is the number of
unconditional evaluations.

Nothing is imported from the rivals' own code. Where paper and released code differ, the text of the class says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from thg.errors import PlanError, UnsupportedPipelineError
from thg.plans.guide import Guide, HareGuide, Run, Term
from thg.plans.plan import Plan
from thg.plans.planners import evaluations_for


@dataclass(frozen=True)
class CFGCache:
    """CFG-Cache, the guidance part of FasterCache: the difference of the two branches is kept and used again.

    After `warmup` steps with both branches (as many as the budget pays for), the unconditional branch runs at each
    `interval`-th step and is otherwise taken from the conditional one plus the last difference.
    """

    paper: ClassVar[str] = "Lv et al., FasterCache, 2024, Eq. 9-10 without the frequency weights"

    nfe: int
    interval: int = 5

    def plan(self, run: Run) -> Plan:
        count = evaluations_for(self.nfe, run.steps)
        return Plan(run.steps, _warmup_then_every(run.steps, count, self.interval), hare_order=1)

    def guide(self, run: Run) -> Guide:
        return HareGuide(self.plan(run), run)


@dataclass(frozen=True)
class CFGCacheFFT:
    """CFG-Cache with the frequency enhancement: the low frequencies of the kept difference are raised in the earlier
    part of the run, the high ones in the later part.

    The paper's weights (Eq. 11) are 1 + alpha where the time step is on the right side of a border. The released code,
    which this follows (so does diffusers), multiplies the kept difference itself, so that the weight grows over the
    steps of a leap; and its two ranges overlap (CogVideoX: low up to step 40 of 50, high from step 30 on).
    """

    paper: ClassVar[str] = "Lv et al., FasterCache, 2024, Eq. 9-11"

    nfe: int
    interval: int = 5
    low_weight: float = 1.1
    high_weight: float = 1.1
    low_until: float = 0.8  # share of the run
    high_from: float = 0.6

    def plan(self, run: Run) -> Plan:
        return CFGCache(self.nfe, self.interval).plan(run)

    def guide(self, run: Run) -> Guide:
        return FrequencyGuide(HareGuide(self.plan(run), run), self, run.steps)


class FrequencyGuide:
    """Follows another guide, and weighs the frequencies of what it predicts."""

    def __init__(self, inner: HareGuide, weights: CFGCacheFFT, steps: int) -> None:
        self.plan: Plan | None = inner.plan
        self._inner = inner
        self._weights = weights
        self._steps = steps
        self._low = self._high = 1.0

    def evaluates(self, step: int) -> bool:
        return self._inner.evaluates(step)

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        self._low = self._high = 1.0
        return self._inner.observe(step, conditional, term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        term = self._inner.predict(step, conditional)
        if term is None:
            return None
        position = (step + 1) / self._steps
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
    weights = torch.where(is_low, low, high)
    weighed: Tensor = torch.fft.ifft2(torch.fft.fft2(term) * weights).real
    return weighed


@dataclass(frozen=True)
class SelectiveGuidance:
    """Guidance in the first part of the run only; the rest is conditional. The budget sets where it ends."""

    paper: ClassVar[str] = "Golnari et al., Selective Guidance, 2023: e = e_c + (w - 1) d for the first steps, then e_c"

    nfe: int

    def plan(self, run: Run) -> Plan:
        count = evaluations_for(self.nfe, run.steps)
        return Plan(run.steps, tuple(range(count)), cutoff=count, hare_order=1)

    def guide(self, run: Run) -> Guide:
        return HareGuide(self.plan(run), run)


@dataclass(frozen=True)
class GuidanceInterval:
    """Guidance within an interval of the noise levels; before and after it the run is conditional.

    `start` is the share of the run before the interval, and the budget sets its length. The default is where the
    authors' upper level for Stable Diffusion XL (sigma 5.42) lies on the usual schedule.
    """

    paper: ClassVar[str] = (
        "Kynkaanniemi et al., Applying Guidance in a Limited Interval, 2024: w(sigma) = w inside, 1 outside"
    )

    nfe: int
    start: float = 0.17

    def guide(self, run: Run) -> Guide:
        count = evaluations_for(self.nfe, run.steps)
        if not 0 <= self.start < 1:
            raise PlanError(f"start must be a share of the run from 0 to below 1, not {self.start:g}")
        first = int(self.start * run.steps)
        if first + count > run.steps:
            raise PlanError(
                f"a guidance interval of {count} steps (nfe={self.nfe}) that starts at step {first} of {run.steps} "
                f"does not fit; write start={max(0, run.steps - count) / run.steps:.2f} or less"
            )
        return IntervalGuide(first, first + count)


class IntervalGuide:
    """Evaluates both branches at the steps first .. end - 1, and guides nowhere else."""

    plan: Plan | None = None

    def __init__(self, first: int, end: int) -> None:
        self._first, self._end = first, end

    def evaluates(self, step: int) -> bool:
        return self._first <= step < self._end

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        return None

    def predict(self, step: int, conditional: Term) -> Term | None:
        return None


TOLERANCE = 0.05
"""By how much the mean of Adaptive Guidance may miss a budget: the last guided step jumps with the threshold."""


class AdaptiveGuidance:
    """Guidance until the two branches point the same way: when cos(e_c, e_u) of a sample reaches the threshold, the
    rest of its run is conditional.

    Each sample has its own last guided step, whatever else is in its batch; the network evaluates the unconditional
    branch of a batch until its last sample is through. `evaluations` counts those of each sample, as the method means
    it. A budget is met by a search for the threshold (`find_threshold`), in the mean over samples.
    """

    paper: ClassVar[str] = "Castillo et al., Adaptive Guidance, 2023: e_c alone once cos(e_c, e_u) >= threshold"

    def __init__(self, threshold: float) -> None:
        if not -1 <= threshold <= 1:
            raise PlanError(f"the threshold is a cosine, from -1 to 1, not {threshold:g}")
        self.threshold = threshold
        self._last: AdaptiveGuide | None = None

    def guide(self, run: Run) -> Guide:
        self._last = AdaptiveGuide(self.threshold)
        return self._last

    def evaluations(self) -> list[int]:
        """How often the unconditional branch of each sample counted in the last run."""
        return [] if self._last is None or self._last.counts is None else self._last.counts.tolist()


class AdaptiveGuide:
    """One run of `AdaptiveGuidance`."""

    plan: Plan | None = None

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._active: Tensor | None = None  # one flag a sample
        self.counts: Tensor | None = None

    def evaluates(self, step: int) -> bool:
        return self._active is None or bool(self._active.any())

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        cosines = branch_cosines(conditional, term)
        if self._active is None or self.counts is None:
            self._active = torch.ones_like(cosines, dtype=torch.bool)
            self.counts = torch.zeros_like(cosines, dtype=torch.long)
        active = self._active
        self.counts = self.counts + active.long()
        self._active = active & (cosines < self._threshold)
        if bool(active.all()):
            return None
        return tuple(part * active.view(-1, *[1] * (part.ndim - 1)) for part in term)

    def predict(self, step: int, conditional: Term) -> Term | None:
        return None


class CosineRecorder:
    """Plain CFG that writes down cos(e_c, e_u) of each sample at each step: what `find_threshold` needs."""

    plan: Plan | None = None

    def __init__(self) -> None:
        self.curves: list[list[float]] = []  # one list a step

    def guide(self, run: Run) -> Guide:
        self.curves = []
        return self

    def evaluates(self, step: int) -> bool:
        return True

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        self.curves.append(branch_cosines(conditional, term).tolist())
        return None

    def predict(self, step: int, conditional: Term) -> Term | None:
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

    curves: of `CosineRecorder`, one list of cosines (one a sample) for each step. Until a sample's guidance ends, its
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
            f"{steps + reached:.2f} evaluations in the mean; choose another nfe, or write a threshold"
        )
    return best, steps + reached


def _warmup_then_every(steps: int, count: int, interval: int) -> tuple[int, ...]:
    """`count` steps: all up to some step, then each `interval`-th."""
    if interval < 2:
        raise PlanError(f"interval must be at least 2, not {interval}")
    for warmup in range(steps + 1):
        coarse = (*range(warmup), *(i for i in range(warmup, steps) if i % interval == 0))
        if len(coarse) == count:
            return coarse
    least = math.ceil(steps / interval)
    raise PlanError(
        f"CFG-Cache with interval={interval} evaluates the unconditional branch {least} times in {steps} steps at "
        f"least, so nfe={steps + count} is too small; write nfe={steps + least} or a longer interval"
    )
