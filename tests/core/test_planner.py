"""Grids and planners: the paper's tables through Algorithm 2, uniform grids, budgets, presets."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thg
from tests.core import paper_grids as paper
from thg import Plan, PlanError, look_before_you_leap, m_max, preset, tapered, uniform
from thg.plans.planners import Fixed, Planned, evaluations_for, guide_maker
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import PRIOR

ALL_GRIDS = [
    *((grid, 50) for grid in paper.SD15_BY_RHO.values()),
    *((grid, 28) for grid in paper.SD35_BY_RHO.values()),
    *((grid[:-1], 50) for grid in paper.SD15_BY_W.values()),
    (paper.SD15_1K_TRIAL_8[:-1], 50),
]


@pytest.mark.parametrize(("grid", "steps"), ALL_GRIDS)
def test_algorithm_2_reproduces_the_papers_grids(grid, steps):
    leaps = np.ones(steps, dtype=int)
    leaps[list(grid)] = np.diff([*grid, steps])
    assert look_before_you_leap(leaps.tolist()) == grid
    # and through the error constants that give those leaps, for both orders (rho |c_T| / |c_H|)^(1/p)
    for order in (1, 2):
        constants = (leaps + 0.5) ** order
        assert look_before_you_leap(m_max(constants, np.ones(steps), rho=1.0, order=order)) == grid


@pytest.mark.parametrize(("rho", "nfe"), paper.SD15_NFE.items())
def test_nfe_of_the_papers_rho_table(rho, nfe):
    assert Plan(50, paper.SD15_BY_RHO[rho], cutoff=38).nfe == nfe


def test_the_same_grid_from_w_and_rho_in_proportion():
    grids = paper.SD15_BY_W
    assert grids[6.5, 0.93] == grids[7.5, 1.1] == grids[8.5, 1.22]
    ratios = [(w - 1) / rho for w, rho in ((6.5, 0.93), (7.5, 1.1), (8.5, 1.22))]
    assert max(ratios) / min(ratios) < 1.05


def test_presets():
    sd15, sd35 = preset("sd15"), preset("sd35-large")
    assert (sd15.nfe, sd15.cfg_nfe, sd15.cutoff, sd15.boost, sd15.hare_order) == (70, 100, 38, 1.1, 1)
    assert (sd35.nfe, sd35.cfg_nfe, sd35.cutoff, sd35.boost) == (38, 56, 21, 1.2)
    assert sd15.coarse == paper.SD15_BY_RHO[1.1]
    assert sd35.coarse == paper.SD35_BY_RHO[1.0]
    settings = thg.PRESETS["audioldm2"]
    assert (settings.steps, settings.guidance_scale, settings.rho, settings.boost, settings.cutoff) == (
        50,
        3.5,
        0.9,
        1.15,
        39,
    )
    with pytest.raises(PlanError, match=r"does not print .* thg.calibrate"):
        preset("audioldm2")
    with pytest.raises(PlanError, match="no preset 'sd21'; the presets are audioldm2, sd15, sd35-large"):
        preset("sd21")


def test_m_max_by_hand():
    # rho c_T / c_H = 3.9, 0.5, 9, infinite: floor, at least 1, at most the number of steps
    assert m_max([3.9, 0.5, 9.0, 1.0], [1.0, 1.0, 1.0, 0.0], rho=1.0, order=1) == (3, 1, 4, 4)
    assert m_max([3.9, 0.5, 9.0, 1.0], [1.0, 1.0, 1.0, 0.0], rho=1.0, order=2) == (1, 1, 3, 4)
    assert m_max([2.0] * 3, [1.0] * 3, rho=1.0, order=1) == (2, 2, 2)


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (([1.0], [1.0, 2.0], 1.0, 1), "one constant per step"),
        (([], [], 1.0, 1), "one constant per step"),
        (([1.0], [-1.0], 1.0, 1), "not negative"),
        (([float("nan")], [1.0], 1.0, 1), "finite"),
        (([1.0], [1.0], 0.0, 1), "rho"),
        (([1.0], [1.0], 1.0, 0), "order"),
    ],
)
def test_m_max_refuses(args, names):
    with pytest.raises(PlanError, match=names):
        m_max(*args)


def test_look_before_you_leap_refuses():
    with pytest.raises(PlanError, match="none were given"):
        look_before_you_leap([])
    with pytest.raises(PlanError, match="at least 1"):
        look_before_you_leap([1, 0])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60))
def test_algorithm_2_never_leaps_further_than_allowed(leaps):
    grid = look_before_you_leap(leaps)
    assert grid[0] == 0
    assert all(after - before == leaps[before] for before, after in itertools.pairwise(grid))
    assert grid[-1] + leaps[grid[-1]] >= len(leaps)


# -- uniform


@given(st.integers(1, 80), st.integers(1, 10))
def test_uniform_every(steps, every):
    assert uniform(every=every).plan(RunInfo.of(steps)).coarse == tuple(range(0, steps, every))


@given(st.integers(2, 100), st.data())
def test_uniform_budget_is_exact_and_even(steps, data):
    nfe = data.draw(st.integers(steps + 1, 2 * steps))
    plan = uniform(nfe=nfe).plan(RunInfo.of(steps))
    assert plan.nfe == nfe
    leaps = [end - start for start, end in plan.leaps()]
    assert max(leaps) - min(leaps) <= 1


@given(st.integers(1, 100), st.floats(0.51, 1.0))
def test_a_share_fits_every_run(steps, share):
    plan = uniform(nfe=share).plan(RunInfo.of(steps))
    assert steps + 1 <= plan.nfe <= 2 * steps
    assert abs(plan.nfe - share * 2 * steps) <= 1


@pytest.mark.parametrize(
    ("kwargs", "names"),
    [
        ({}, "exactly one of every=2 and nfe=0.65"),
        ({"every": 2, "nfe": 0.6}, "exactly one of every=2 and nfe=0.65"),
        ({"every": 0}, "every"),
        ({"every": 1.5}, "every"),
        ({"nfe": 0.5}, "above 0.5"),
        ({"nfe": 1.1}, "at most at 1.0"),
        ({"nfe": 1}, "nfe"),
        ({"nfe": "70"}, "nfe"),
        ({"nfe": 0.7, "hare_order": 3}, "hare_order"),
        ({"nfe": 0.7, "corrector": 2}, "corrector"),
    ],
)
def test_uniform_refuses(kwargs, names):
    with pytest.raises(PlanError, match=names):
        uniform(**kwargs)


# -- tapered


@given(st.integers(3, 200), st.data())
def test_tapered_budget_is_exact(steps, data):
    count = data.draw(st.integers(3, steps))
    for budget, branches in ((2 * count, 2), (count, 1), (count / steps, 2)):
        plan = tapered(budget).plan(replace(RunInfo.of(steps), branches=branches))
        assert (plan.evaluations, plan.skips) == (count, "network")
        assert plan.nfe == 2 * count


@pytest.mark.parametrize(("steps", "nfe"), [(50, 0.7), (50, 0.5), (50, 0.36), (28, 0.5), (25, 0.6), (100, 0.2)])
def test_tapered_leaps_are_short_at_both_ends(steps, nfe):
    plan = tapered(nfe).plan(RunInfo.of(steps))
    leaps = [end - start for start, end in plan.leaps()]
    assert leaps[0] == leaps[-1] == 1 < max(leaps)
    assert plan.coarse[-1] == steps - 1


@pytest.mark.parametrize("nfe", [0.0, 1.2, 1, True, "half"])
def test_tapered_refuses(nfe):
    with pytest.raises(PlanError):
        tapered(nfe)


@pytest.mark.parametrize("nfe", [50, 101])
def test_an_impossible_budget_says_what_is_possible(nfe):
    with pytest.raises(PlanError, match="51 to 100"):
        evaluations_for(nfe, 50)


# -- what enable accepts


def test_a_plan_for_another_number_of_steps_says_both_and_the_remedy():
    with pytest.raises(
        PlanError, match=r"for 50 steps, but this run calls the network 28 times.*num_inference_steps=50"
    ):
        Fixed(preset("sd15")).plan(RunInfo.of(28))


def test_choices_become_guide_makers():
    assert guide_maker("sd15").guide(RunInfo.of(50)).plan == preset("sd15")
    assert guide_maker(Plan(4, (0, 2))).guide(RunInfo.of(4)).plan == Plan(4, (0, 2))
    maker = Planned(uniform(every=2))
    assert guide_maker(maker) is maker
    with pytest.raises(PlanError, match="not 7"):
        guide_maker(7)


# -- a plan on a sampler that calls the network several times a step


def test_a_plan_on_repeated_calls_does_at_each_call_what_its_step_does():
    plan = Plan(4, (1, 3), cutoff=4, start=1, boost=1.2, hare_order=1)
    heun = RunInfo(7, (0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0))
    mapped = Fixed(plan).plan(heun)
    assert mapped == Plan(7, (1, 2, 5, 6), cutoff=7, start=1, boost=1.2, hare_order=1)
    short = Fixed(Plan(4, (0, 2), cutoff=3)).plan(heun)
    assert (short.coarse, short.cutoff) == ((0, 3, 4), 5)
    assert Fixed(plan).plan(RunInfo.of(4)) is plan


def test_a_plan_of_another_length_says_steps_and_calls():
    with pytest.raises(PlanError, match="for 5 steps, but this run with 4 steps calls the network 7 times"):
        Fixed(Plan(5, (0, 2))).plan(RunInfo(7, (0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0)))


def test_a_preset_of_the_paper_is_a_choice():
    guide = guide_maker(thg.PRESETS["sd15"]).guide(RunInfo.of(50))
    assert guide.plan == preset("sd15")


@pytest.mark.parametrize("planner", [tapered, lambda nfe, **shape: uniform(nfe=nfe, **shape)])
def test_a_shape_moves_evaluations_and_keeps_the_budget(planner):
    """Density at the end only, evenly, and at the start only: the mean position of an evaluation falls."""
    plans = [planner(0.7, shape=shape).plan(RunInfo.of(40, 5.0)) for shape in ((0, 3), (0, 0), (3, 0))]
    assert len({plan.nfe for plan in plans}) == 1
    means = [np.mean(plan.coarse) for plan in plans]
    assert means[0] > means[1] + 1 > means[2] + 2
    assert tapered(0.7, shape=(PRIOR.start[0], PRIOR.end[0])).plan(RunInfo.of(40)) == tapered(0.7).plan(RunInfo.of(40))


@pytest.mark.parametrize("shape", [1.0, (1,), (-1, 0), (0, 1e9), "ab", (None, 1)])
def test_what_is_no_shape_is_refused(shape):
    with pytest.raises(PlanError, match="shape must be two densities"):
        tapered(0.5, shape=shape)
    with pytest.raises(PlanError, match="shape must be two densities"):
        uniform(nfe=0.6, shape=shape)
    with pytest.raises(PlanError, match="shape belongs to a budget"):
        uniform(every=2, shape=(1, 2))
