"""`thg.tune` on a shipped model: its planner is a value, and spends what the tolerance asks for."""

from dataclasses import replace
from itertools import pairwise

import pytest

import thg
from thg.errors import PlanError, ProfileError
from thg.plans.response import Response
from thg.plans.run import Run

PROMPTS = ["a dark ankle boot", "a light dress", "a medium coat"]


def test_the_effort_follows_the_estimates():
    pipe = thg.shipped_pipeline("eps")
    tuned = thg.tune(pipe, PROMPTS, 0.02, steps=16, batch_size=3)
    assert tuned == thg.tune(pipe, PROMPTS, 0.02, steps=16, batch_size=3)  # nothing is remembered
    assert tuned == thg.within(0.02, effort=tuned.effort)  # with the tapered shape, which this network is better with
    assert tuned.effort != 1.0
    with pytest.raises(thg.THGError, match="not enabled"):
        thg.summary(pipe)  # the pipeline is as it was


def test_the_shape_follows_the_estimates(monkeypatch):
    """As above, with a tapered shape that leaves the second half of a run to two evaluations."""
    monkeypatch.setattr("thg.plans.fidelity.balanced", lambda run, count: (*range(count - 1), run.steps - 1))
    tuned = thg.tune(thg.shipped_pipeline("eps"), PROMPTS, 0.02, steps=16, batch_size=3)
    assert tuned == thg.within(0.02, effort=tuned.effort, shape="even")


def test_even_leaps_by_choice():
    run = replace(Run.of(50, 5.0), response=Response.one_step([0.02] * 50))
    tapered, even = thg.within().plan(run), thg.within(shape="even").plan(run)
    assert even.evaluations == tapered.evaluations
    leaps = [b - a for a, b in pairwise(even.coarse)]
    assert max(leaps) - min(leaps) <= 1 < max(b - a for a, b in pairwise(tapered.coarse)) - 1
    with pytest.raises(PlanError, match="shape must be 'tapered' or 'even', not 'flat'"):
        thg.within(shape="flat")


def test_more_effort_is_more_evaluations():
    counts = [thg.within(effort=effort).plan(Run.of(60, 5.0)).evaluations for effort in (0.5, 1.0, 2.0)]
    assert counts == sorted(set(counts))
    with pytest.raises(PlanError, match="effort must lie between"):
        thg.within(effort=0)


def test_a_run_without_a_leap_cannot_be_tuned():
    with pytest.raises(ProfileError, match=r"gives no error estimate.*thg\.within\(0\.003\)"):
        thg.tune(thg.shipped_pipeline("eps"), PROMPTS[:1], 0.0001, steps=4)
