"""What a user sets on the node, and the plan that follows."""

import pytest
from pack.core.errors import PlanError
from pack.core.plans.guide import Run
from pack.settings import Settings, step_list


def run(steps=20, **more):
    return Run(steps, tuple(map(float, range(steps))), 5.0, times=tuple(1 - i / steps for i in range(steps)), **more)


def plan(settings, of=None):
    return settings.plan(of or run(), lambda percent: 1 - percent)


def test_lists_of_steps():
    assert step_list("") == ()
    assert step_list(" 3,1, 1") == (1, 3)
    assert step_list("0-4, 6, 9 - 20:3,") == (0, 1, 2, 3, 4, 6, 9, 12, 15, 18)


@pytest.mark.parametrize("text", ["two", "1-", "-3", "1.5", "1-5:0", "1;2"])
def test_what_is_no_list_of_steps(text):
    with pytest.raises(PlanError, match="is not a step; write it like"):
        step_list(text)


def test_no_error_is_plain_guidance():
    assert plan(Settings(error=0.0)).coarse == tuple(range(20))


def test_less_error_is_more_evaluations():
    counts = [plan(Settings(error=error)).evaluations for error in (0.1, 0.01, 0.003)]
    assert counts == sorted(set(counts))


def test_a_share_comes_before_an_error_and_steps_before_a_share():
    assert plan(Settings(error=0.0, evaluations=0.65)).nfe == 26
    assert plan(Settings(evaluations=0.65, steps=(0, 7, 40))).coarse == (0, 7)
    assert plan(Settings(evaluations=0.5)).evaluations == 1


def test_outside_of_its_part_everything_is_evaluated():
    coarse = plan(Settings(evaluations=0.5, start_percent=0.25, end_percent=0.7)).coarse
    assert coarse == (*range(6), *range(15, 20))


def test_where_noise_is_added_the_term_is_held():
    noisy = plan(Settings(), run(40, adds_noise=True))
    assert noisy.hare_order == 1
    assert noisy.coarse == (*range(20), *range(21, 40, 2)), "every other call of the later half"
    assert plan(Settings()).hare_order == 2
    assert plan(Settings(corrector=False)).corrector == 0
