"""What a user sets on the node, and the plan that follows."""

import dataclasses

import pytest
from pack.core.errors import PlanError
from pack.core.plans.run_info import RunInfo
from pack.settings import PRESETS, Settings, step_list

import thg


def run(steps=20, **more):
    return RunInfo(
        steps, tuple(map(float, range(steps))), 5.0, times=tuple(1 - i / steps for i in range(steps)), **more
    )


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


@pytest.mark.parametrize("text", ["0-999999999", "12345", "9" * 400, "1," * 600, "9-3"])
def test_a_list_of_steps_is_bounded(text):
    with pytest.raises(PlanError, match="list of steps"):
        step_list(text)


def test_steps_beyond_the_run_are_told():
    with pytest.raises(PlanError, match="none of the listed steps, 90 to 99, is in this run"):
        plan(Settings(steps=step_list("90-99")))
    assert plan(Settings(steps=step_list("3-99"))).coarse == (0, *range(3, 20))


def test_no_error_is_every_evaluation():
    with pytest.raises(PlanError, match="ask for every evaluation"):
        plan(Settings(error=PRESETS["off"]))


def test_the_presets_go_from_close_to_fast():
    counts = [plan(Settings(error=PRESETS[name]), run(40)).evaluations for name in ("quality", "balanced", "fast")]
    assert counts == sorted(set(counts), reverse=True)


@pytest.mark.parametrize("steps", [20, 28, 50])
def test_the_default_is_that_of_python(steps):
    ours, theirs = plan(Settings(), run(steps)), thg.within().plan(run(steps))
    assert (ours.coarse, ours.slope, ours.corrector) == (theirs.coarse, theirs.slope, theirs.corrector)


def test_a_share_comes_before_an_error_and_steps_before_a_share():
    assert plan(Settings(error=0.0, evaluations=0.65)).evaluations == 13
    assert plan(Settings(evaluations=0.65, steps=(0, 7, 40))).coarse == (0, 7)
    assert plan(Settings(evaluations=0.01)).evaluations == 3


def test_outside_of_its_part_everything_is_evaluated():
    coarse = plan(Settings(evaluations=0.4, start_percent=0.25, end_percent=0.7)).coarse
    assert {*range(6), *range(15, 20)} < set(coarse)
    assert len(coarse) == 5 + 4 + 5
    with pytest.raises(PlanError, match="no call lies between 100% and 100%"):
        plan(Settings(start_percent=1.0))


def test_steps_of_several_calls_at_the_start_are_evaluated():
    """As RES4LYF's multistep samplers begin; a line through two stages of a step leads away from the run: 32 dB."""

    def coarse(positions):
        return plan(Settings(), dataclasses.replace(run(25), positions=tuple(map(float, positions)))).coarse

    found = coarse((0, 0.5, 1, 1.5, *range(2, 22), 21.5))
    assert {*range(7), 24} < set(found)
    assert len(found) < 25
    assert coarse(i // 2 for i in range(25)) == plan(Settings(), run(25)).coarse, "all steps have several calls"


def test_noise_and_the_corrector():
    with pytest.raises(PlanError, match="adds noise"):
        plan(Settings(), run(40, adds_noise=True))
    assert plan(Settings()).corrector > 0
    assert plan(Settings(corrector=False)).corrector == 0
