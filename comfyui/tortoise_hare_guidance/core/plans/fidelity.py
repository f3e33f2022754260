# A copy of src/thg/plans/fidelity.py, made by comfyui/make_core.py: change it there.
"""The default planner: from a tolerance for the final latents to a plan that keeps a run within it.

The network is unknown here, so the number of evaluations and their positions are a prior, chosen for the worst runs on
the shipped models (measured by benchmarks/fidelity.py) and on exact mixtures. The difference from plain CFG depends on
the number of evaluations and hardly on the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..plans.guide import Run
from ..plans.noise import evaluated_despite_noise
from ..plans.plan import Plan

Array = NDArray[np.float64]
Shape = Literal["tapered", "even"]

DEFAULT_ERROR = 0.01
CORRECTOR = 0.85  # damped, because the error of the last leap is itself an estimate,
SLOPE = 0.6  # and so is the slope for the next leap

# The evaluations for 1 % at guidance scale 5 in a run of very many steps ...
EVALUATIONS = 14.5
ORDER = 3.2  # ... the error decreases with this power of their number ...
GUIDANCE = 0.3  # ... above guidance scale 5 they grow with this power of w - 1, below it they are constant ...
SECOND_ORDER = 1.1  # ... a higher-order scheduler needs this factor more ...
SHORT_RUN = 4.0  # ... and a run of N steps, where leaps are short, needs N / (N + 4) of them ...
WITHOUT_CORRECTOR = 1.35  # ... or this factor more without the corrector

EVEN_DESPITE_NOISE = 0.02  # about the error of evenly spread evaluations if the scheduler adds noise

START, START_WIDTH = 2.0, 0.2  # additional density of evaluations at the start of a run, and over which share of it
END, END_WIDTH = 2.0, 0.12
OUTER = 4.0  # how much more the first leap may count, which has no slope, and the last, which nothing repairs
TINY = 0.25  # in average steps: no evaluation is spent on the end of a run that moves the state by less
LONGEST_RUN = 1000  # in steps, that is chosen for a budget
LONGEST_LEAP = 8  # in average leaps; longer ones are not considered


@dataclass(frozen=True)
class Within:
    """As many evaluations as keep the final latents within a tolerance; made by `within` and `thg.tune`."""

    error: float = DEFAULT_ERROR
    effort: float = 1.0
    shape: Shape = "tapered"

    def plan(self, run: Run) -> Plan:
        count = evaluations_within(self.error, run, self.effort)
        if run.adds_noise and self.error < EVEN_DESPITE_NOISE:
            coarse = evaluated_despite_noise(run, count)
        elif self.shape == "tapered" and run.response is not None:
            coarse = balanced(run, count)
        else:
            coarse = even(run.steps, count)
        return Plan(run.steps, coarse, corrector=CORRECTOR, slope=SLOPE)


def within(error: float = DEFAULT_ERROR, *, effort: float = 1.0, shape: Shape = "tapered") -> Within:
    """The default planner: as many evaluations as keep the result close to plain CFG's, for any number of steps.

    error: how far the final latents may be from plain CFG's with the same seed, relative to their norm. It is a target,
        set without knowing the network: with 0.01, 95 % of the runs of the shipped models end within 0.7 % (noise
        model) or 1.3 % (flow model). `summary(pipe).estimated_error` estimates the result after a run, and `thg.tune`
        adapts the plan to the worst 5 % of a given network.
    effort: factor on the number of evaluations, for this network compared with the assumed one; `thg.tune` finds it.
    shape: "tapered" has short leaps at both ends of a run; "even" is better on some networks, which `thg.tune` finds.
    """
    check_error(error)
    if isinstance(effort, bool) or not isinstance(effort, int | float) or not 0.1 <= effort <= 10:
        raise PlanError(f"effort must lie between 0.1 and 10, not {effort!r}; thg.tune(pipe, prompts) finds it")
    if shape not in get_args(Shape):
        raise PlanError(f"shape must be 'tapered' or 'even', not {shape!r}")
    return Within(float(error), float(effort), shape)


def check_error(error: float) -> None:
    """Raises an error for an invalid tolerance."""
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 < error < 1:
        raise PlanError(
            f"error must be a share above 0 and below 1, not {error!r}: thg.within(0.01), or error=0.01 of a profile's "
            "planner, keeps the final latents within 1 % of plain CFG's"
        )


def evaluations_within(error: float, run: Run, effort: float = 1.0) -> int:
    """The number of unconditional evaluations that the prior gives for this tolerance."""
    tightness: float = (DEFAULT_ERROR / error) ** (1 / ORDER)
    count = effort * EVALUATIONS * tightness * run.steps / (run.steps + SHORT_RUN)
    if run.guidance_scale is not None:
        count *= max(1.0, (run.guidance_scale - 1) / 4) ** GUIDANCE
    if run.order > 1:
        count *= SECOND_ORDER
    if run.response is None:
        count *= WITHOUT_CORRECTOR
    return min(run.steps, max(2, math.floor(count + 0.5)))


def most_steps(nfe: int, run_of: Callable[[int], Run], error: float = DEFAULT_ERROR) -> int:
    """The largest number of steps for which this many evaluations in total keep the tolerance.

    run_of: the run with a number of steps. At equal evaluations this ends closer to the converged result than plain CFG
    with fewer steps, which has half as many: benchmarks/converged_eps.toml and converged_flow.toml compare them.
    """
    for steps in range(min(nfe - 1, LONGEST_RUN), 1, -1):
        run = run_of(steps)
        if run.steps + evaluations_within(error, run) <= nfe:
            return steps
    raise PlanError(f"nfe={nfe!r} evaluations are too few for two steps with guidance; use a few dozen")


# -- the positions of the evaluations


def even(steps: int, count: int) -> tuple[int, ...]:
    """`count` steps spread evenly, the first and the last among them."""
    return tuple(np.linspace(0, steps - 1, count).round().astype(int).tolist())


def balanced(run: Run, count: int) -> tuple[int, ...]:
    """`count` steps, densest at both ends of the run; the last of them is the last that moves the state noticeably.

    The density is the mean of one over the step indices and one over the distance that the state travels: on a schedule
    with uneven steps neither alone is right. Nothing corrects the last leap, so the last step is evaluated, except for
    an end that hardly moves the state, which many schedules have.
    """
    if run.adds_noise:  # no corrector, and the noise dominates earlier errors
        return even(run.steps, count)
    density = tapering((np.arange(run.steps) + 0.5) / run.steps)
    sizes = np.zeros(run.steps) if run.response is None else run.response.step_sizes()
    if not sizes.any():
        return lightest(density, count)
    sizes = sizes / sizes.sum()
    by_distance = tapering(np.cumsum(sizes) - sizes / 2) * sizes
    density = density / density.mean() + by_distance / by_distance.mean()
    remaining = np.cumsum(sizes[::-1])[::-1] * run.steps
    tiny = min(TINY, (1 - count / run.steps) ** 2)  # where most steps are evaluated, a small error is left to gain
    end = 1 + int(np.flatnonzero(remaining >= tiny)[-1])
    return lightest(density[: max(end, count)], count)


def tapering(x: Array) -> Array:
    """The density of evaluations at a position between the start of a run, 0, and its end, 1."""
    start = START * np.exp(-((x / START_WIDTH) ** 2))
    return np.asarray(1 + start + END * np.exp(-(((1 - x) / END_WIDTH) ** 2)))


def outer(count: int) -> float:
    """How much more the first and the last leap count; with few evaluations all leaps are long, and count alike."""
    return min(OUTER, max(1.0, count - 6.0))


def lightest(density: Array, count: int) -> tuple[int, ...]:
    """The `count` steps, including the first and the last, whose leaps have the least total weight.

    The weight of a leap is the fourth power of the density that it covers, `outer` times that for the first and the
    last leap, and 0 for a leap to the next step, where nothing is predicted. Found by dynamic programming over the last
    evaluation.
    """
    steps = len(density)
    if not 1 <= count <= steps:
        raise PlanError(f"a grid over {steps} steps has 1 to {steps} evaluations, not {count}")
    if count == 1:
        return (0,)
    covered = np.append(0.0, np.cumsum(density)) / np.sum(density)
    longest = min(steps - 1, LONGEST_LEAP * steps // count)
    ends = np.arange(steps)[:, None]
    starts = ends - np.arange(1, longest + 1)  # row: the step where a leap ends; column: how long it is
    weight = (covered[ends] - covered[np.maximum(starts, 0)]) ** 4
    weight[starts == 0] *= outer(count)
    weight[-1] *= outer(count)
    weight[:, 0] = 0.0
    weight[starts < 0] = np.inf
    best = np.where(np.arange(steps) == 0, 0.0, np.inf)  # of the grids so far, by their last step
    came_from = []
    for _ in range(count - 1):
        total = best[np.maximum(starts, 0)] + weight
        chosen = total.argmin(axis=1)
        best = total[np.arange(steps), chosen]
        came_from.append(starts[np.arange(steps), chosen])
    grid = [steps - 1]
    for starts_of in reversed(came_from):
        grid.append(int(starts_of[grid[-1]]))
    return tuple(reversed(grid))
