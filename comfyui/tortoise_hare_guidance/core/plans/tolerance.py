# A copy of src/thg/plans/tolerance.py, made by comfyui/make_core.py: change it there.
"""The default planner: from a tolerance for the final latents to a plan that keeps a run within it.

An unknown network is assumed to be as `Prior` says; `Tuned` is what `thg.tune` has measured instead. The difference
from the run with all evaluations depends on their number and hardly on the number of steps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..files import write_atomically
from ..plans.plan import Plan, Skips
from ..plans.run_info import RunInfo


@dataclass(frozen=True)
class Prior:
    """Chosen on small networks of several kinds by `python -m benchmarks.prior` (docs/log.md has the tables).

    How many steps are evaluated:
        evaluations, power_of_steps: a run of N steps needs (E^-q + N^-q)^(-1/q) of them for 1 %, with this E and q.
        order: the error decreases with this power of their number.
        guidance: above guidance scale 5 the number grows with this power of w - 1.
        without_corrector: the factor if nothing can be corrected. fewest: never fewer than this.
        power_of_order: with a solver of order p above 2 it grows with this power of p / 2: the solver's weights have
            different signs, and magnify what differs from one output to the next.
        usual, power_of_response: the predicted error of the leaps (`predicted_error`) that these numbers of evaluations
            leave on usual noise levels, over this power of the response's total. On harder ones (Karras', DDPM's linear
            betas) the number grows until it is no larger.
    Where:
        by_index: the share of the density of evaluations that lies over step indices; the rest lies over angles.
        deviation: of the data, for the angles arctan(sigma / (deviation alpha)).
        start, end: additional density of evaluations at both ends of a run, and the share of the run that it covers.
        start_by_guidance: that at the start grows with this power of (w - 1) / 4 above guidance scale 5, up to the
            factor; strong guidance decides early what a picture shows.
        power, response_power: the weight of a leap is the first power of the density that it covers, times the second
            power of the response of the final state to the outputs that it skips.
        first: steps that are always evaluated at the start.
    How outputs are predicted:
        slope, corrector: see `Plan`.
    How much of the errors of leaps remains in the final state, for the estimate after a run:
        remaining: if the network leaps, in the median of networks; from 0.06 to 0.5 on single ones.
        remaining_of_term: if the guidance term leaps. remaining_uncorrected: without a corrector.
        remaining_unknown: if the response of the solver is unknown. These three were fitted on the shipped models and
            on mixtures of Gaussians; `python -m benchmarks.fidelity` measures their accuracy.
    """

    evaluations: float = 20.5
    power_of_steps: float = 1.7
    order: float = 3.5
    guidance: float = 0.4
    without_corrector: float = 1.35
    fewest: int = 3
    power_of_order: float = 0.55
    usual: float = 0.05
    power_of_response: float = 0.3
    by_index: float = 0.6
    deviation: float = 0.5
    start: tuple[float, float] = (1.0, 0.2)
    end: tuple[float, float] = (1.5, 0.12)
    start_by_guidance: tuple[float, float] = (2.5, 3.0)
    power: float = 4.0
    response_power: float = 0.4
    first: int = 3
    slope: float = 0.95
    corrector: float = 0.85
    remaining: float = 0.16
    remaining_of_term: float = 0.34
    remaining_uncorrected: float = 0.9
    remaining_unknown: float = 0.5


PRIOR = Prior()


Array = NDArray[np.float64]

DEFAULT_ERROR = 0.01
LONGEST_RUN = 200  # in steps, that is chosen for a budget
FREE_STEPS = 5  # for each evaluated one
TRIED_STEPS = 20
MOST_DENSE = 100.0
LONGEST_LEAP = 8  # in average leaps; longer ones are not considered
HIGHEST_LOG_SNR = 30.0  # and lowest: pure noise and pure data are at infinity
SMALLEST_RESPONSE = 0.02  # of the mean; the final state forgets outputs of networks that predict the data


Shape = tuple[float, float]  # additional density of evaluations at the start and at the end of a run; (0, 0) is even


def shaped(shape: Shape | None, prior: Prior = PRIOR) -> Prior:
    """The prior with another shape of its grids."""
    if shape is None:
        return prior
    try:
        start, end = (float(density) for density in shape)
        valid = 0 <= start <= MOST_DENSE and 0 <= end <= MOST_DENSE
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise PlanError(
            f"shape must be two densities from 0 to {MOST_DENSE:g}, at the start and at the end of a run, such as "
            f"(1, 2), not {shape!r}; (0, 0) is even"
        )
    return replace(prior, start=(start, prior.start[1]), end=(end, prior.end[1]))


@dataclass(frozen=True)
class Within:
    """As many evaluations as keep the final latents within a tolerance; made by `within` and `thg.tune`."""

    error: float = DEFAULT_ERROR
    effort: float = 1.0
    skips: ClassVar[Skips] = "network"

    def plan(self, run: RunInfo) -> Plan:
        return network_plan(run, evaluations_within(self.error, run, self.effort))


def within(error: float = DEFAULT_ERROR, *, effort: float = 1.0) -> Within:
    """The default planner: as many evaluations as keep the result close to the plain run's, for any number of steps.

    error: how far the final latents may be from those of the same run with all evaluations, relative to their norm. A
        target, not a guarantee: it is set without knowing the network. On networks that had no part in its choice,
        96 % of the samples are within it (46 % in the worst of 312 cells, docs/log.md), and 99 % after
        `thg.tune` (92 % in the worst). `summary(pipe).estimated_error` estimates the result after a run.
    effort: factor on the number of evaluations, for this network compared with the assumed one; `thg.tune` finds it.
    """
    check_error(error)
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0.1 <= effort <= 10:
        raise PlanError(f"effort must lie between 0.1 and 10, not {effort!r}; thg.tune(pipe, prompts) finds it")
    return Within(float(error), float(effort))


def check_error(error: float) -> None:
    """Raises an error for an invalid tolerance."""
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 < error < 1:
        raise PlanError(
            f"error must be a share above 0 and below 1, not {error!r}: thg.within(0.01), or error=0.01 of a profile's "
            "planner, keeps the final latents within 1 % of plain CFG's"
        )


def evaluations_within(error: float, run: RunInfo, effort: float = 1.0, prior: Prior = PRIOR) -> int:
    """The number of evaluated steps that the prior gives for this tolerance."""
    if not predictable(run):
        return run.steps
    tightness: float = (DEFAULT_ERROR / error) ** (1 / prior.order)
    count: float = effort * tightness * _usual_count(run, prior) * _strength(run) ** prior.guidance
    count *= max(1.0, run.order / 2) ** prior.power_of_order
    count *= prior.without_corrector if run.response is None else hardness(run, prior)
    return min(run.steps, max(prior.fewest, math.floor(count + 0.5)))


def _usual_count(run: RunInfo, prior: Prior) -> float:
    """The number of evaluated steps for 1 % on usual noise levels."""
    q = prior.power_of_steps
    return float((prior.evaluations**-q + run.steps**-q) ** (-1 / q))


def _strength(run: RunInfo) -> float:
    """Of guidance, above the usual scale of 5."""
    return 1.0 if run.guidance_scale is None else max(1.0, (run.guidance_scale - 1) / 4)


def hardness(run: RunInfo, prior: Prior = PRIOR) -> float:
    """The factor on evaluations for noise levels on which leaps cost more than usual, whatever the network predicts."""
    response = run.noise_response or run.response
    if response is None or run.log_snr is None:
        return 1.0
    allowed = prior.usual * response.total**prior.power_of_response
    run = replace(run, response=response, guidance_scale=None)  # which has a factor of its own
    usual = _usual_count(run, prior)
    count = fewest = math.floor(usual + 0.5)
    while count < run.steps and predicted_error(run, grid(run, count, prior), prior) > allowed:
        count += 1
    return 1.0 if count == fewest else count / usual


def predicted_error(run: RunInfo, coarse: Sequence[int], prior: Prior = PRIOR) -> float:
    """The error in the final state that a plan's leaps leave, up to a factor that belongs to the network.

    Each leaves the response to the outputs that it skips, times its length in the angle arctan(sigma / (deviation
    alpha)) and in log(sigma / alpha): `python -m benchmarks.prior leaps`.
    """
    assert run.response is not None
    assert run.log_snr is not None
    level = -np.clip(run.log_snr, -HIGHEST_LOG_SNR, HIGHEST_LOG_SNR) / 2
    angle = np.arctan(np.exp(level) / prior.deviation)
    reached = np.append(0.0, np.cumsum(np.abs(run.response.final)))
    start, end = np.array(coarse[:-1]), np.array(coarse[1:])
    leaps = np.abs(level[end] - level[start]) * np.abs(angle[end] - angle[start])
    return float(((reached[end] - reached[start + 1]) * leaps).sum())


def predictable(run: RunInfo) -> bool:
    """Can outputs be predicted? New noise and clipping change them in ways that no prediction knows, and a sampler that
    explodes magnifies the slightest miss."""
    return not (run.adds_noise or run.clips or run.explodes)


def network_plan(run: RunInfo, count: int, prior: Prior = PRIOR) -> Plan:
    """The plan of a run whose network is evaluated at `count` steps."""
    return Plan(run.steps, grid(run, count, prior), corrector=prior.corrector, slope=prior.slope, skips="network")


# -- the positions of the evaluations


def grid(run: RunInfo, count: int, prior: Prior = PRIOR) -> tuple[int, ...]:
    """`count` steps: the first three, the last, which nothing corrects, and the best in between.

    Of less than a dozen only the first two: at most a quarter is spent on the start.
    """
    first = min(prior.first, max(2, count // 4), count - 1)
    if count >= run.steps or first < 1:
        return tuple(range(min(count, run.steps)))
    inner = _cheapest_grid(leap_weights(run, prior)[first - 1 :, first - 1 : -1], count - first + 1)
    return (*range(first - 1), *(first - 1 + i for i in inner))


def leap_weights(run: RunInfo, prior: Prior = PRIOR) -> Array:
    """The weight of each leap, [start, end], whose total the grids of the prior minimise.

    A power of the density of evaluations that it covers, times one of the response of the final state to the outputs
    that it skips; 0 for a leap to the next step, where nothing is predicted.
    """
    density = _density(run, prior)
    covered = np.append(0.0, np.cumsum(density)) / density.sum()
    start, end = np.indices((run.steps, run.steps + 1))
    weights = np.maximum(covered[end] - covered[start], 0.0) ** prior.power
    if run.response is not None:
        response = np.abs(run.response.final)
        response = np.maximum(response, SMALLEST_RESPONSE * response.mean())
        reached = np.append(0.0, np.cumsum(response)) / response.sum()
        weights *= np.maximum(reached[end] - reached[np.minimum(start + 1, run.steps)], 0.0) ** prior.response_power
    return np.where(end == start + 1, 0.0, weights)


def _density(run: RunInfo, prior: Prior) -> Array:
    """Of evaluations, at each step: a mixture of one over the step indices and one over the angle of a step.

    The angle arctan(sigma / (deviation alpha)) is the same for every parametrisation of noise; it is the distance that
    Gaussian data of this deviation travel when they are scaled to unit variance. On a schedule with uneven steps
    neither alone is right.
    """
    power, most = prior.start_by_guidance
    density_at_start, share_of_run = prior.start
    prior = replace(prior, start=(density_at_start * min(_strength(run) ** power, most), share_of_run))
    density = _density_at((np.arange(run.steps) + 0.5) / run.steps, prior)
    sizes = _angles(run, prior)
    if sizes is None:
        return density
    by_angle = _density_at(np.cumsum(sizes) - sizes / 2, prior) * sizes
    share = prior.by_index
    return np.asarray(share * density / density.mean() + (1 - share) * by_angle / by_angle.mean())


def _angles(run: RunInfo, prior: Prior) -> Array | None:
    """The share of each step in the angle of a run; None if the noise levels are unknown."""
    if run.log_snr is None:
        return None
    end = math.inf if run.end_log_snr is None else run.end_log_snr
    ratio = np.exp(-np.clip([*run.log_snr, end], -80.0, 80.0) / 2)
    sizes = np.abs(np.diff(np.arctan(ratio / prior.deviation)))
    return np.asarray(sizes / sizes.sum()) if sizes.sum() > 0 else None


def _density_at(x: Array, prior: Prior) -> Array:
    """The density of evaluations at a position between the start of a run, 0, and its end, 1."""
    (start, over), (end, under) = prior.start, prior.end
    return np.asarray(1 + start * np.exp(-((x / over) ** 2)) + end * np.exp(-(((1 - x) / under) ** 2)))


def _cheapest_grid(weights: Array, count: int) -> tuple[int, ...]:
    """The `count` steps, including the first and the last, whose leaps have the least total weight, [start, end].

    Found by dynamic programming over the last evaluation.
    """
    steps = len(weights)
    longest = min(steps - 1, LONGEST_LEAP * steps // count)
    ends = np.arange(steps)[:, None]
    starts = ends - np.arange(1, longest + 1)  # row: the step where a leap ends; column: how long it is
    weight = np.where(starts < 0, np.inf, weights[np.maximum(starts, 0), ends])
    best = np.where(np.arange(steps) == 0, 0.0, np.inf)  # of the grids so far, by their last step
    came_from = []
    for _ in range(count - 1):
        total = best[np.maximum(starts, 0)] + weight
        chosen = total.argmin(axis=1)
        best = total[np.arange(steps), chosen]
        came_from.append(starts[np.arange(steps), chosen])
    steps_taken = [steps - 1]
    for starts_of in reversed(came_from):
        steps_taken.append(int(starts_of[steps_taken[-1]]))
    return tuple(reversed(steps_taken))


# -- steps for a budget


def most_steps(nfe: int, run_of: Callable[[int], RunInfo]) -> int:
    """The number of steps with which this many evaluations in total end closest to the converged result.

    run_of: the run with a number of steps. Steps at which nothing runs are nearly free: five for each evaluated one, in
    every case that was measured (docs/log.md).
    """
    run = run_of(TRIED_STEPS)
    evaluated = nfe // run.branches
    if evaluated < PRIOR.fewest:
        raise PlanError(f"{nfe!r} evaluations are too few for two steps with guidance; use a few dozen")
    calls_per_step = run.steps / TRIED_STEPS  # Heun's method makes two
    steps = math.floor((FREE_STEPS if predictable(run) else 1) * evaluated / calls_per_step)
    return min(max(steps, 2), LONGEST_RUN)


FORMAT = "thg-tuned-1"


@dataclass(frozen=True)
class Tuned:
    """As many evaluations as keep this network within a tolerance, measured by comparing runs; made by `thg.tune`.

    error: the tolerance. effort: factor on the evaluations of `thg.within`. factor: of this network's true errors over
    the estimates of its runs. reached: the error that 95 % of other samples are expected to stay within, with this
    effort; above `error` if the tolerance cannot be kept. samples, steps, guidance_scale: of the runs that were
    compared. network, scheduler, precision: what they ran on. nfe, plain_nfe: evaluations per sample of such a run, and
    of a plain one. shape: of the grids, if another one than the default's suits this network clearly better.
    """

    error: float
    effort: float
    factor: float
    reached: float
    samples: int
    steps: int
    guidance_scale: float | None = None
    network: str = ""
    scheduler: str = ""
    precision: str = ""
    nfe: int = 0
    plain_nfe: int = 0
    shape: Shape | None = None
    skips: ClassVar[Skips] = "network"

    def __post_init__(self) -> None:
        if self.shape is not None:  # a list in a file
            object.__setattr__(self, "shape", tuple(self.shape))
        shaped(self.shape)  # validates it

    def plan(self, run: RunInfo) -> Plan:
        return network_plan(run, evaluations_within(self.error, run, self.effort), shaped(self.shape))

    @property
    def kept(self) -> bool:
        """Is the tolerance kept?"""
        return self.reached <= self.error

    def __str__(self) -> str:
        kept = f"95 % within {self.error:.1%}" if self.kept else f"95 % within {self.reached:.1%}, not {self.error:.1%}"
        cost = f" at {self.nfe} of {self.plain_nfe} evaluations" if self.nfe else ""
        return f"tuned on {self.samples} samples: {kept}{cost}"

    def said_of(self, run: RunInfo) -> str:
        """The same for the summary of a run; with what was measured, if this is another network, steps or guidance."""
        if self.network and run.network and not self.network.startswith(f"{run.network}:"):
            return f"{self}, on another network ({self.network.rpartition(':')[0]})"
        own, scale = self.guidance_scale, run.guidance_scale
        if run.steps == self.steps and (own is None or scale is None or max(1.0, scale) == own):
            return str(self)
        return f"{self}, with {self.steps} steps" + ("" if own is None else f" at guidance scale {own:g}")

    # -- files

    def save(self, path: str | Path) -> None:
        """Writes a small JSON file."""
        write_atomically(Path(path), (json.dumps({"format": FORMAT, **asdict(self)}, indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Tuned:
        """Reads what `save` has written."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            found = data.pop("format", None)
            tuned = cls(**data)
            valid = tuned._is_valid()
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise PlanError(f"{path} is no file of Tuned.save ({error}); run thg.tune again") from None
        if found != FORMAT or not valid:
            raise PlanError(f"{path} is no file of Tuned.save, or not of this version of thg; run thg.tune again")
        return tuned

    def _is_valid(self) -> bool:
        """Could `thg.tune` have found it? Files are edited by hand; TypeError for what is no number."""
        counts = (self.samples, self.steps, self.nfe, self.plain_nfe)
        names = (self.network, self.scheduler, self.precision)
        return (
            0 < self.error < 1
            and 0.1 <= self.effort <= 10
            and 0 < self.factor < math.inf
            and 0 <= self.reached < math.inf
            and (self.guidance_scale is None or math.isfinite(self.guidance_scale))
            and all(isinstance(count, int) and count >= 0 for count in counts)
            and all(isinstance(name, str) for name in names)
        )


def folder() -> Path:
    """Where results of `thg.tune` are found again: THG_CACHE, or the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("THG_CACHE") or Path(cache) / "thg") / "tuned"
