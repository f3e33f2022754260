"""Plan: what it costs, what it does at a step, JSON, and the refusal of everything malformed."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thg import Plan, PlanError


@st.composite
def plans(draw):
    steps = draw(st.integers(1, 60))
    start = draw(st.integers(0, steps - 1))
    coarse = tuple(sorted({start} | draw(st.sets(st.integers(start, steps - 1)))))
    return Plan(
        steps,
        coarse,
        start=start,
        cutoff=draw(st.none() | st.integers(start + 1, steps)),
        boost=draw(st.floats(0.1, 3)),
        hare_order=draw(st.sampled_from([1, 2])),
        corrector=draw(st.floats(0, 1)),
    )


@given(plans())
def test_nfe_counts_the_steps_that_evaluate(plan):
    assert plan.nfe == plan.steps + sum(plan.evaluates(i) for i in range(plan.steps))
    assert plan.nfe == plan.steps + sum(i < plan.cutoff for i in plan.coarse)
    assert plan.steps + 1 <= plan.nfe <= plan.cfg_nfe == 2 * plan.steps


@given(plans())
def test_leaps_tile_the_guided_steps(plan):
    leaps = plan.leaps()
    assert leaps[0][0] == plan.start
    assert leaps[-1][1] == plan.cutoff
    assert all(a[1] == b[0] for a, b in itertools.pairwise(leaps))
    assert [start for start, _ in leaps] == [i for i in plan.coarse if i < plan.cutoff]


@given(plans())
def test_json_round_trip_and_hash(plan):
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert hash(again) == hash(plan)
    assert eval(repr(plan)).coarse == plan.coarse


@given(plans())
def test_strip_has_one_mark_per_step(plan):
    assert len(plan.strip()) == plan.steps
    assert plan.strip().count("●") == plan.evaluations
    assert plan.strip().count(" ") == plan.steps - (plan.cutoff - plan.start)


def test_a_leap_that_crosses_the_cutoff_ends_there():
    plan = Plan(10, (0, 3, 5, 8), cutoff=6, boost=1.5)
    assert plan.leaps() == ((0, 3), (3, 5), (5, 6))
    # boost on whole leaps of two or more steps; the last one has one step left before the cutoff
    assert [plan.boost_at(i) for i in range(10)] == [1.5] * 5 + [1.0] * 5


def test_boost_is_not_applied_to_leaps_of_one():
    plan = Plan(6, (0, 1, 2, 4, 5), boost=1.2)
    assert [plan.boost_at(i) for i in range(6)] == [1.0, 1.0, 1.2, 1.2, 1.0, 1.0]


def test_guidance_may_start_late():
    plan = Plan(10, (3, 4, 7), start=3, cutoff=9, boost=1.5)
    assert plan.strip() == "   ●●··●· "
    assert plan.nfe == 13
    assert plan.leaps() == ((3, 4), (4, 7), (7, 9))
    assert [plan.boost_at(i) for i in range(10)] == [1.0] * 4 + [1.5] * 5 + [1.0]
    assert repr(plan) == "Plan(steps=10, coarse=(3, 4, 7), start=3, cutoff=9, boost=1.5, hare_order=2)"


def test_whole_floats_lists_and_numbers_of_numpy_are_normalised():
    assert Plan(4.0, [0, 2.0]) == Plan(4, (0, 2))
    plan = Plan(np.int64(4), np.arange(1, 4, 2), cutoff=np.int32(4), boost=np.float32(1.5), start=np.uint8(1))
    assert plan == Plan(4, (1, 3), boost=1.5, start=1)
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": 2.5}, "steps"),
        ({"steps": True}, "steps"),
        ({"steps": float("nan")}, "steps"),
        ({"steps": "4"}, "steps"),
        ({"coarse": ()}, "coarse is empty"),
        ({"coarse": (1, 2)}, "begin with 0, not 1.*write start=1"),
        ({"start": 1}, "begin with start = 1, not 0"),
        ({"start": -1}, "start"),
        ({"start": 4}, "its end at 4, not at start = 4"),
        ({"start": 2, "cutoff": 2, "coarse": (2,)}, "its end at 2, not at start = 2"),
        ({"coarse": (0, 2, 2)}, "2 follows 2"),
        ({"coarse": (0, 3, 1)}, "1 follows 3"),
        ({"coarse": (0, 4)}, "index 4 is outside the 4 steps"),
        ({"coarse": "012"}, "coarse"),
        ({"coarse": None}, "coarse"),
        ({"coarse": (0, 1.5)}, "coarse"),
        ({"cutoff": 0}, "cutoff"),
        ({"cutoff": 5}, "cutoff"),
        ({"cutoff": 1.5}, "cutoff"),
        ({"boost": 0}, "boost"),
        ({"boost": -1.0}, "boost"),
        ({"boost": float("inf")}, "boost"),
        ({"boost": None}, "boost"),
        ({"hare_order": 3}, "hare_order"),
        ({"hare_order": True}, "hare_order"),
        ({"corrector": 1.5}, "corrector"),
        ({"corrector": -0.1}, "corrector"),
    ],
)
def test_malformed_plans_are_refused_by_field(change, names):
    with pytest.raises(PlanError, match=names):
        Plan(**{"steps": 4, "coarse": (0, 2), **change})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "not valid JSON"),
        ("[]", "JSON object"),
        ('{"steps": 4, "coarse": [0]}', "format"),
        (json.dumps({"format": "thg-plan-1", "coarse": [0]}), "'steps' is missing"),
        (json.dumps({"format": "thg-plan-1", "steps": 4}), "'coarse' is missing"),
        (json.dumps({"format": "thg-plan-1", "steps": 4, "coarse": [0], "rho": 1}), "unknown field 'rho'"),
        (json.dumps({"format": "thg-plan-1", "steps": 4, "coarse": [0, 9]}), "index 9"),
    ],
)
def test_malformed_json_is_refused(text, names):
    with pytest.raises(PlanError, match=names):
        Plan.from_json(text)


@given(st.text(max_size=40) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_fuzzed_json_gives_a_plan_error_and_nothing_else(text):
    with pytest.raises(PlanError):
        Plan.from_json(text)
