# A copy of src/thg/plans/fidelity.py, made by comfyui/make_core.py: change it there.
"""The dial: a tolerance for the final latents, and the plan that keeps a run within it.

Nothing is known here of the network, so the number of evaluations and their places are a prior: chosen for the worst
runs on the shipped models and on exact mixtures (benchmarks/fidelity.py measures them). How far a run ends from plain
CFG follows the number of evaluations and hardly depends on the number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from ..plans.guide import Run
from ..plans.plan import Plan

Array = NDArray[np.float64]

DEFAULT_ERROR = 0.01
CORRECTOR = 0.85  # damped: what a fresh term says about the leap before it is itself an estimate

# The evaluations that keep 95 % of runs within 1 % at guidance scale 5, in a run of very many steps ...
EVALUATIONS = 14.0
ORDER = 3.2  # ... the error falls with this power of their number ...
GUIDANCE = 0.2  # ... they grow with this power of w - 1 (the error is linear in it, but so is what w is chosen for) ...
SHORT_RUN = 4.0  # ... and a run of N steps, where leaps are short, needs N / (N + 4) of them ...
WITHOUT_CORRECTOR = 1.35  # ... or this many times as many when nothing takes back what a leap got wrong

START, START_WIDTH = 1.5, 0.4  # how much denser evaluations are at the start of a run, over which share of it
END, END_WIDTH = 3.0, 0.05


@dataclass(frozen=True)
class Within:
    """As many evaluations as keep the final latents within a tolerance; made by `within`."""

    error: float = DEFAULT_ERROR

    def plan(self, run: Run) -> Plan:
        count = evaluations_within(self.error, run)
        coarse = even(run.steps, count) if run.adds_noise else balanced(run, count)
        return Plan(run.steps, coarse, corrector=CORRECTOR)


def within(error: float = DEFAULT_ERROR) -> Within:
    """The default planner: spends the evaluations that keep the result close to plain CFG's, whatever the steps.

    error: how far the final latents of 95 % of runs may be from plain CFG's with the same seed, relative to their own
        norm. 0.01 is 1 %: a PSNR of 45 to 50 dB on the shipped models. It is an expectation, made without knowing the
        network; `summary(pipe).estimated_error` tells afterwards what came of it.
    """
    if isinstance(error, bool) or not isinstance(error, int | float) or not 0 < error < 1:
        raise PlanError(
            f"error must be a share above 0 and below 1, not {error!r}: thg.within(0.01) keeps the final latents "
            "within 1 % of plain CFG's"
        )
    return Within(float(error))


def evaluations_within(error: float, run: Run) -> int:
    """How many unconditional evaluations the prior wants for this tolerance."""
    count: float = EVALUATIONS * (DEFAULT_ERROR / error) ** (1 / ORDER) * run.steps / (run.steps + SHORT_RUN)
    if run.guidance_scale is not None and run.guidance_scale > 1:
        count *= ((run.guidance_scale - 1) / 4) ** GUIDANCE
    if run.adds_noise:
        count *= WITHOUT_CORRECTOR
    return min(run.steps, max(2, math.floor(count + 0.5)))


# -- where they go


def even(steps: int, count: int) -> tuple[int, ...]:
    """`count` steps spread evenly, the first and the last among them."""
    return spread(np.ones(steps), count)


def balanced(run: Run, count: int) -> tuple[int, ...]:
    """`count` steps, the first and the last among them, densest at both ends of the run.

    The ends are those of the sequence of steps, and those of the noise levels that they pass through, half and half: on
    a schedule whose steps are uneven in noise neither alone is right.
    """
    density = tapering((np.arange(run.steps) + 0.5) / run.steps)
    if run.log_snr is not None:
        noise = 1 / (1 + np.exp(np.clip(np.asarray(run.log_snr), -80, 80) / 2))  # sigma / (alpha + sigma)
        passed = 1 - np.append(noise, 0.0) / noise[0]  # 0 at the start of the run, 1 at its end
        way = np.maximum(np.diff(passed), 0.0)  # of each step
        in_noise = tapering(passed[:-1] + way / 2) * way
        density = density / density.mean() + in_noise / in_noise.mean()
    return spread(density, count)


def tapering(x: Array) -> Array:
    """The density of evaluations at a place between the start of a run, 0, and its end, 1."""
    start = START * np.exp(-((x / START_WIDTH) ** 2))
    return np.asarray(1 + start + END * np.exp(-(((1 - x) / END_WIDTH) ** 2)))


def spread(density: Array, count: int) -> tuple[int, ...]:
    """`count` distinct steps with this density, the first and the last among them."""
    steps = len(density)
    if not 1 <= count <= steps:
        raise PlanError(f"a grid over {steps} steps has 1 to {steps} evaluations, not {count}")
    if count == 1:
        return (0,)
    passed = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2))
    ideal = np.interp(np.linspace(0, passed[-1], count), passed, np.arange(steps))
    grid: list[int] = []
    for k, place in enumerate(ideal):  # each moved as little as need be to be distinct and to leave room for the rest
        lowest = grid[-1] + 1 if grid else 0
        grid.append(min(max(math.floor(place + 0.5), lowest), steps - count + k))
    return tuple(grid)
