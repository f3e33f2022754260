"""The dial: evaluations for a tolerance, and where they go."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

import thg
from thg.plans.fidelity import balanced, evaluations_within, even, lightest, most_steps, outer
from thg.plans.planners import guide_maker
from thg.plans.response import Response
from thg.plans.run import Run


def flow_run(steps: int, shift: float = 1.0, last: float = 0.0, w: float | None = 5.0) -> Run:
    """A run of the Euler scheduler of flow models. last: the noise level before the last step, if not one step's."""
    sigmas = np.linspace(1, 1 / steps, steps)
    sigmas = np.append(shift * sigmas / (1 + (shift - 1) * sigmas), 0.0)
    sigmas[-2] = last or sigmas[-2]
    return replace(Run.of(steps, w), response=Response.one_step(np.diff(sigmas).tolist()))


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 10, 20, 28, 50, 100, 1000])
@pytest.mark.parametrize("w", [None, 0.5, 1.0, 3.0, 5.0, 7.5, 30.0])
def test_every_run_gets_a_plan_that_evaluates_its_ends(steps, w):
    for error in (1e-6, 0.001, 0.01, 0.1, 0.9):
        for run in (Run.of(steps, w), flow_run(steps, w=w)):
            plan = thg.within(error).plan(run)
            assert plan.steps == steps
            assert plan.coarse[0] == 0
            assert plan.coarse[-1] == steps - 1
            assert plan.evaluations == evaluations_within(error, run)


def test_the_steps_hardly_change_the_number_of_evaluations_and_the_tolerance_does():
    counts = [evaluations_within(0.01, flow_run(steps)) for steps in (20, 28, 50, 100, 1000)]
    assert counts == sorted(counts)
    assert counts[-1] - counts[0] <= 3
    finer = [evaluations_within(error, flow_run(1000)) for error in (0.1, 0.03, 0.01, 0.003, 0.001)]
    assert finer == sorted(set(finer))
    scales = [evaluations_within(0.01, flow_run(50, w=w)) for w in (2.0, 5.0, 10.0)]
    assert scales[0] == scales[1] < scales[2]


def test_light_calls_of_the_later_half_are_skipped_if_noise_is_added():
    run = replace(Run.of(20, 5.0), adds_noise=True)
    assert thg.within().plan(run).coarse == (*range(10), 11, 13, 15, 17, 18, 19), "not below the number of evaluations"
    weights = np.ones(40)
    weights[[24, 25, 30]] = 1.5
    heavy = thg.within().plan(replace(Run.of(40, 5.0), adds_noise=True, weights=tuple(weights)))
    assert set(range(40)) - set(heavy.coarse) == {20, 22, 26, 28, 31, 33, 35, 37}
    assert thg.within(0.05).plan(replace(run, steps=20)).evaluations < 14, "more error, and even leaps"


def test_a_tolerance_of_almost_nothing_is_plain_guidance():
    assert thg.within(1e-9).plan(Run.of(30, 5.0)).coarse == tuple(range(30))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("nfe", [6, 20, 30, 40, 55, 70, 140])
def test_a_budget_takes_the_most_steps_that_the_default_can_guide(nfe, order):
    def run(steps):
        return replace(flow_run(steps), order=order)

    steps = most_steps(nfe, run)
    assert steps + evaluations_within(0.01, run(steps)) <= nfe < steps + 1 + evaluations_within(0.01, run(steps + 1))
    assert thg.tapered(nfe).plan(run(steps)).nfe == nfe
    assert steps > nfe // 2 or nfe < 30  # more than plain CFG can take


def test_too_small_a_budget_is_refused():
    with pytest.raises(thg.PlanError, match="too few for two steps"):
        most_steps(3, flow_run)


def weight(density: np.ndarray, grid: tuple[int, ...]) -> float:
    """What `lightest` makes small, written out."""
    passed = np.append(0.0, np.cumsum(density))
    leaps = [(passed[b] - passed[a]) ** 4 if b - a > 1 else 0.0 for a, b in pairwise(grid)]
    leaps[0] *= outer(len(grid))
    leaps[-1] *= outer(len(grid))
    return float(np.sum(leaps))


@pytest.mark.parametrize("seed", range(6))
def test_no_other_grid_weighs_less(seed):
    rng = np.random.default_rng(seed)
    density = rng.uniform(0.2, 3, 10)
    for count in range(2, 11):
        grids = [(0, *inner, 9) for inner in combinations(range(1, 9), count - 2)]
        found = lightest(density, count)
        assert found in grids
        assert weight(density, found) <= min(weight(density, grid) for grid in grids) * (1 + 1e-9)


def test_leaps_are_short_where_the_density_is_high():
    leaps = [b - a for a, b in pairwise(lightest(np.linspace(3, 1, 60), 12))]
    assert leaps[0] < leaps[-1]
    assert lightest(np.ones(4), 1) == (0,)
    assert even(13, 5) == (0, 3, 6, 9, 12)


@pytest.mark.parametrize("steps", [20, 28, 50])
def test_a_larger_budget_never_weighs_more(steps):
    density = np.random.default_rng(steps).uniform(0.5, 2, steps)
    weights = [weight(density, lightest(density, count)) for count in range(2, steps + 1)]
    assert weights == sorted(weights, reverse=True)
    assert weights[-1] == 0.0


def test_uneven_steps_move_the_grid():
    """With shift 3 most of the way is made at the end of the run, so leaps are shorter there than with even steps."""
    even, shifted = (balanced(flow_run(50, shift), 14) for shift in (1.0, 3.0))
    assert sum(i >= 25 for i in shifted) > sum(i >= 25 for i in even)


def test_a_last_step_that_hardly_moves_the_state_is_not_worth_an_evaluation():
    assert balanced(flow_run(50), 14)[-1] == 49
    assert balanced(flow_run(50, last=0.001), 14)[-1] == 48
    assert balanced(flow_run(50, last=0.001), 50) == tuple(range(50))
    assert balanced(flow_run(50, last=0.004), 13)[-1] == 48
    assert balanced(flow_run(50, last=0.004), 30)[-1] == 49, "where most steps are evaluated"


def test_an_end_of_small_steps_that_move_the_state_together_is_evaluated():
    """Karras sigmas end with steps that are each far below the average."""
    sizes = np.append(np.ones(23), [0.2, 0.15, 0.1, 0.08, 0.06])
    run = replace(Run.of(28, 5.0), response=Response.one_step(sizes.tolist()))
    assert balanced(run, 13)[-1] == 25


def test_without_a_corrector_the_grid_is_even_and_has_more_evaluations():
    plan = thg.within().plan(Run.of(50, 5.0))
    assert plan.evaluations > thg.within().plan(flow_run(50)).evaluations
    leaps = [b - a for a, b in pairwise(plan.coarse)]
    assert max(leaps) - min(leaps) <= 1


@pytest.mark.parametrize("error", [0, -0.1, 1, 1.5, float("nan"), True, "0.01", None])
def test_what_is_no_tolerance_is_refused(error):
    with pytest.raises(thg.PlanError, match=r"thg\.within\(0\.01\)"):
        thg.within(error)


def test_it_is_the_default():
    assert guide_maker(None) == guide_maker(thg.within(0.01))
