"""The dial: evaluations for a tolerance, and where they go."""

from itertools import pairwise

import numpy as np
import pytest

import thg
from thg.plans.fidelity import balanced, evaluations_within, spread
from thg.plans.guide import Run
from thg.plans.planners import guide_maker


def flow_run(steps: int, shift: float) -> Run:
    share = np.linspace(1, 1 / steps, steps)
    share = shift * share / (1 + (shift - 1) * share)
    with np.errstate(divide="ignore"):
        log_snr = 2 * np.log((1 - share) / share)
    return Run(steps, tuple(map(float, range(steps))), 4.0, log_snr=tuple(log_snr.tolist()))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 20, 28, 50, 100, 1000])
@pytest.mark.parametrize("w", [None, 0.5, 1.0, 3.0, 5.0, 7.5, 30.0])
def test_every_run_gets_a_plan_that_evaluates_its_ends(steps, w):
    for error in (1e-6, 0.001, 0.01, 0.1, 0.9):
        plan = thg.within(error).plan(Run.of(steps, w))
        assert plan.steps == steps
        assert plan.coarse[0] == 0
        assert plan.coarse[-1] == steps - 1
        assert plan.evaluations == min(steps, evaluations_within(error, Run.of(steps, w)))


def test_the_steps_hardly_change_the_number_of_evaluations_and_the_tolerance_does():
    counts = [evaluations_within(0.01, Run.of(steps, 5.0)) for steps in (20, 28, 50, 100, 1000)]
    assert counts == sorted(counts)
    assert counts[-1] - counts[0] <= 3
    finer = [evaluations_within(error, Run.of(1000, 5.0)) for error in (0.1, 0.03, 0.01, 0.003, 0.001)]
    assert finer == sorted(set(finer))
    scales = [evaluations_within(0.01, Run.of(50, w)) for w in (2.0, 5.0, 10.0)]
    assert scales == sorted(set(scales))


def test_a_tolerance_of_almost_nothing_is_plain_guidance():
    assert thg.within(1e-9).plan(Run.of(30, 5.0)).coarse == tuple(range(30))


def test_grids_have_the_density_asked_for():
    assert spread(np.ones(11), 6) == (0, 2, 4, 6, 8, 10)
    assert spread(np.ones(4), 1) == (0,)
    at_the_start = spread(np.linspace(3, 1, 60), 12)
    leaps = [b - a for a, b in pairwise(at_the_start)]
    assert leaps[0] < leaps[-1]
    assert spread(np.array([1e-9] * 9 + [1.0]), 6) == (0, 5, 6, 7, 8, 9)  # distinct, whatever the density


def test_uneven_noise_levels_move_the_grid():
    """With shift 3 most of the way is made at the end of the run, so leaps are shorter there than with even steps."""
    even, shifted = (balanced(flow_run(50, shift), 14) for shift in (1.0, 3.0))
    assert sum(i >= 25 for i in shifted) > sum(i >= 25 for i in even)
    assert balanced(Run.of(50), 14)[-1] == 49


def test_noise_is_met_with_an_even_grid_and_more_evaluations():
    quiet, noisy = Run.of(50, 5.0), Run(50, tuple(map(float, range(50))), 5.0, adds_noise=True)
    plan = thg.within().plan(noisy)
    assert plan.evaluations > thg.within().plan(quiet).evaluations
    leaps = [b - a for a, b in pairwise(plan.coarse)]
    assert max(leaps) - min(leaps) <= 1


@pytest.mark.parametrize("error", [0, -0.1, 1, 1.5, float("nan"), True, "0.01", None])
def test_what_is_no_tolerance_is_refused(error):
    with pytest.raises(thg.PlanError, match=r"thg\.within\(0\.01\)"):
        thg.within(error)


def test_it_is_the_default():
    assert guide_maker(None) == guide_maker(thg.within(0.01))
