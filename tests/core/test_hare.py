"""The hare's prediction and the guide that follows a plan, on numbers that can be checked by hand."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thg import Plan, uniform
from thg.plans.guide import HareGuide
from thg.plans.leaps import lagrange_weights, predicted, prediction_weights
from thg.plans.planners import guide_maker
from thg.plans.response import Response
from thg.plans.run_info import RunInfo


def test_order_1_holds_the_last_term():
    terms = [torch.tensor([1.0]), torch.tensor([4.0])]
    assert predicted([0.0, 2.0], terms, 3.0, order=1) is terms[-1]


def test_order_2_holds_while_there_is_one_evaluation():
    terms = [torch.tensor([1.0])]
    assert predicted([0.0], terms, 3.0, order=2) is terms[-1]


@given(st.floats(-5, 5), st.floats(-5, 5), st.integers(0, 20), st.integers(1, 10), st.integers(0, 10))
def test_order_2_is_exact_for_a_line(offset, slope, first, gap, ahead):
    def line(x):
        return torch.tensor([offset + slope * x], dtype=torch.float64)

    second, target = first + gap, first + gap + ahead
    value = predicted([first, second], [line(first), line(second)], target, order=2)
    torch.testing.assert_close(value, line(target), rtol=1e-12, atol=1e-9)


def test_weights_sum_to_one():
    for order in (1, 2):
        assert sum(prediction_weights([0.0, 3.0], 7.0, order)) == pytest.approx(1.0)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=3), st.integers(1, 5), st.integers(1, 5), st.floats(-3, 12))
def test_interpolation_is_exact_for_a_parabola(coefficients, gap, next_gap, at):
    nodes = (0.0, float(gap), float(gap + next_gap))

    def parabola(x):
        return coefficients[0] + coefficients[1] * x + coefficients[2] * x * x

    value = sum(w * parabola(x) for w, x in zip(lagrange_weights(nodes, at), nodes, strict=True))
    assert value == pytest.approx(parabola(at), rel=1e-9, abs=1e-6)


def _walk(plan, values, positions=None):
    """The terms that a guide uses over a run in which the true term at step i is values[i]."""
    run = RunInfo.of(plan.steps) if positions is None else RunInfo(plan.steps, tuple(positions))
    guide = HareGuide(plan, run)
    cond = (torch.zeros(1),)
    used = []
    for i, value in enumerate(values):
        if guide.evaluates(i):
            replaced = guide.observe(i, cond, (torch.tensor([float(value)]),))
            used.append(float(value) if replaced is None else replaced[0].item())
        else:
            term = guide.predict(i, cond)
            used.append(None if term is None else term[0].item())
    return used


def test_held_with_boost_and_cutoff():
    plan = Plan(7, (0, 1, 3), cutoff=6, boost=2.0, hare_order=1)
    assert _walk(plan, [1, 2, 9, 4, 9, 9, 9]) == [1.0, 4.0, 4.0, 8.0, 8.0, 8.0, None]


def test_extrapolated():
    plan = Plan(6, (0, 2, 4))
    assert _walk(plan, [1, 9, 3, 9, 4, 9]) == [1.0, 1.0, 3.0, 4.0, 4.0, 4.5]


def test_two_calls_at_one_position_count_once():
    plan = Plan(4, (0, 1, 2))
    # calls 1 and 2 stand at the same time: the later one replaces the earlier, the line runs from 0 to it
    assert _walk(plan, [0, 5, 2, 9], positions=[0, 1, 1, 2]) == [0.0, 5.0, 2.0, 4.0]


def test_calls_at_almost_the_same_time_count_as_one():
    plan = Plan(4, (0, 1, 2), hare_order=2)
    assert _walk(plan, [0, 5, 2, 9], positions=[0, 1, 1 + 1e-7, 2]) == pytest.approx([0.0, 5.0, 2.0, 4.0], abs=1e-5)


def test_guidance_that_starts_late_is_evaluated_first():
    guide = HareGuide(Plan(6, (0, 4)), RunInfo.of(6))
    assert guide.evaluates(3)  # nothing is known yet, although 3 is not in the grid
    guide.observe(3, (), (torch.ones(1),))
    assert guide.evaluates(4)


def test_a_planner_plans_from_the_step_at_which_guidance_begins():
    run = replace(RunInfo.of(28, 5.0), response=Response.one_step([1.0] * 28))
    planner = uniform(nfe=0.7)
    guide = guide_maker(planner).guide(run)
    assert guide.evaluates(6)
    later = planner.plan(run.part(6, 28))
    assert guide.plan.coarse == tuple(6 + step for step in later.coarse)
    assert (guide.plan.steps, guide.plan.start) == (28, 6)
    fixed = guide_maker(Plan(28, (0, 4))).guide(run)
    assert fixed.evaluates(6)
    assert fixed.plan.coarse == (0, 4)


def test_guidance_that_comes_back_is_evaluated_first():
    guide = HareGuide(Plan(8, (0,)), RunInfo.of(8))
    assert guide.evaluates(0)
    guide.observe(0, (), (torch.ones(1),))
    assert not guide.evaluates(1)
    guide.predict(1, ())
    assert guide.evaluates(4)  # steps 2 and 3 ran without guidance


def test_an_interval_of_guidance():
    plan = Plan(8, (2, 3, 6), start=2, cutoff=7)
    assert _walk(plan, [9, 9, 1, 2, 9, 9, 5, 9]) == [None, None, 1.0, 2.0, 3.0, 4.0, 5.0, None]


def test_nothing_is_predicted_or_corrected_across_a_gap():
    guide = HareGuide(Plan(9, (0, 1), corrector=1.0), replace(RunInfo.of(9), response=Response.one_step([1.0] * 9)))
    for step in (0, 1):
        assert guide.evaluates(step)
        guide.observe(step, (), (torch.tensor([float(step)]),))
    assert guide.evaluates(5)  # steps 2 to 4 ran without guidance
    assert guide.observe(5, (), (torch.tensor([7.0]),)) is None
    assert not guide.evaluates(6)
    assert guide.predict(6, ()) == (torch.tensor([7.0]),)  # held: the terms before the gap give no slope


@pytest.mark.parametrize("slope", [0.0, 0.6, 1.0])
def test_whatever_slope_was_used_the_corrector_takes_back_what_it_missed(slope):
    """Parabolic terms: with three evaluations the corrector knows them exactly, so the state is plain CFG's."""
    weights = [0.5, 1.0, 1.5, 1.0, 0.5, 2.0, 1.0, 1.0, 0.7]
    terms = [3.0 - 2.0 * k + 0.5 * k * k for k in range(9)]
    run = replace(RunInfo.of(9), response=Response.one_step(weights))
    guide = HareGuide(Plan(9, (0, 1, 4, 8), corrector=1.0, slope=slope), run)
    used = []
    for k, d in enumerate(terms):
        given = (torch.tensor([d], dtype=torch.float64),)
        used.append(float(((guide.observe(k, (), given) or given) if guide.evaluates(k) else guide.predict(k, ()))[0]))
    assert used[2] == pytest.approx(terms[1] + slope * (terms[1] - terms[0]))
    total = sum(w * d for w, d in zip(weights, terms, strict=True))
    assert sum(w * d for w, d in zip(weights, used, strict=True)) == pytest.approx(total)
