"""Leaps of both branches: the conditional output is continued along a line."""

from __future__ import annotations

import pytest
import torch
from thg.plans.both import BothGuide

import thg
from thg.plans.run import Run, Term

STEPS = 12
PLAN = thg.Plan(STEPS, (0, 6), hare_order=2)


def outputs(step: int, dtype: torch.dtype = torch.float64) -> Term:
    return (torch.tensor([1.0 - 0.5 * step], dtype=dtype), torch.tensor([2.0 + step], dtype=dtype))


def follow(guide: BothGuide, dtype: torch.dtype = torch.float64) -> dict[int, Term]:
    """A run on outputs that are linear in the step: the steps at which e_c was predicted, with the predictions."""
    predicted = {}
    for step in range(STEPS):
        own = guide.conditional(step)
        if own is not None:
            predicted[step] = own
        e_c = outputs(step, dtype) if own is None else own
        if guide.evaluates(step):
            guide.observe(step, e_c, tuple(0.1 * part for part in e_c))
        else:
            guide.predict(step, e_c)
    return predicted


def test_what_is_linear_is_predicted_exactly() -> None:
    predicted = follow(BothGuide(PLAN, Run.of(STEPS), every=4))
    assert sorted(predicted) == [5, 7], "the network runs at both ends, at each 4th step, and with the hare"
    for step, own in predicted.items():
        torch.testing.assert_close(own, outputs(step))


def test_every_step_is_the_plan_by_itself() -> None:
    assert follow(BothGuide(PLAN, Run.of(STEPS), every=1)) == {}


def test_a_prediction_is_no_evaluation() -> None:
    """What was predicted must not be remembered as known: an error would feed itself."""
    guide = BothGuide(thg.Plan(30, (0,)), Run.of(30), every=10)
    for step in range(9):
        own = guide.conditional(step)
        assert (own is None) == (step < 4)
        if own is not None:
            torch.testing.assert_close(own, outputs(step))
        e_c = outputs(step) if own is None else tuple(part + 100 for part in own)
        if guide.evaluates(step):
            guide.observe(step, e_c, e_c)
        else:
            guide.predict(step, e_c)


def test_half_precision_is_continued_in_single() -> None:
    predicted = follow(BothGuide(PLAN, Run.of(STEPS), every=4), torch.float16)
    assert {part.dtype for own in predicted.values() for part in own} == {torch.float32}


def test_the_maker() -> None:
    guide = thg.leap_both(thg.uniform(every=3), every=2).guide(Run.of(STEPS))
    assert isinstance(guide, BothGuide)
    assert guide.plan == thg.uniform(every=3).plan(Run.of(STEPS))


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_every_is_a_whole_number(every: int) -> None:
    with pytest.raises(thg.PlanError, match=f"not {every!r}"):
        thg.leap_both(every=every)


def test_only_plans_and_planners() -> None:
    with pytest.raises(thg.PlanError, match="takes a plan or a planner"):
        thg.leap_both(thg.leap_both())


def test_noise_is_refused() -> None:
    noisy = Run(STEPS, tuple(range(STEPS)), adds_noise=True)
    with pytest.raises(thg.PlanError, match="adds noise"):
        thg.leap_both().guide(noisy)
