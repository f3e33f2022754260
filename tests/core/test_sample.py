"""thg.sample for people with their own loop: what it takes, what it tells, and what it does not do unasked."""

import math

import numpy as np
import pytest
import torch

import thg
from tests.core.own_network import NONE, denoised, labels, noise, psnr
from thg.ode import Step
from thg.plans.planners import guide_maker

STEPS = 20
SCHEDULE = thg.Schedule.flow(STEPS, time=(1, 0))


def velocity(x, t, label):
    x0 = denoised(x, 1 - t, t, label)
    return (x - x0) / t


def run(plan=None, network=velocity, x=None, schedule=SCHEDULE, **more):
    x = noise() if x is None else x
    given = {"guidance_scale": 4.0, "condition": labels(len(x)), "unconditional": NONE, **more}
    return thg.sample(network, x, plan, schedule, **given)


PLAIN = thg.uniform(every=1)


# -- plans


class WithoutPlan:
    """Makes guides that evaluate everything and follow no plan."""

    plan = None

    def guide(self, run):
        return self

    def evaluates(self, step):
        return True

    def observe(self, step, conditional, term):
        return None

    def predict(self, step, conditional):
        return None


@pytest.mark.parametrize(
    "choice",
    [
        None,
        thg.tapered(0.65),
        thg.uniform(nfe=0.85),
        thg.within(0.02),
        thg.Plan(STEPS, range(0, STEPS, 2)),
    ],
    ids=["default", "tapered", "uniform", "within", "plan"],
)
def test_whatever_enable_takes(choice):
    found = run(choice)
    assert found.nfe == found.summary.nfe == found.plan.nfe == sum(found.summary.evaluations)
    assert STEPS < found.nfe < 2 * STEPS
    assert psnr(found.x, run(PLAIN).x) > 35
    assert f"{found.nfe} network evaluations instead of 40" in str(found.summary)


def test_leaps_are_closer_than_fewer_steps():
    schedule = thg.Schedule.flow(50, time=(1, 0))
    plain, found = run(PLAIN, schedule=schedule), run(thg.tapered(0.4), schedule=schedule)
    assert found.nfe == found.summary.nfe == sum(found.summary.evaluations) == 40
    assert set(found.summary.evaluations) == {0, 2}
    fewer = run(PLAIN, schedule=thg.Schedule.flow(found.nfe // 2, time=(1, 0)))
    assert psnr(found.x, plain.x) > psnr(fewer.x, plain.x) + 10


def test_short_forms():
    assert torch.equal(run(0.6).x, run(thg.tapered(0.6)).x)
    assert torch.equal(run("2%").x, run(thg.within(0.02)).x)


def test_the_summary_estimates_the_difference_from_plain_guidance():
    plan = thg.uniform(every=2, corrector=0.85)
    found, plain = run(plan), run(PLAIN)
    true = (found.x - plain.x).flatten(1).norm(dim=1) / plain.x.flatten(1).norm(dim=1)
    estimated = torch.tensor(found.summary.estimated_error, dtype=torch.float64)
    assert estimated.shape == (6,)
    assert 0.2 < float(estimated.norm() / true.norm()) < 5
    assert "estimated difference from the plain run" in str(found.summary)
    assert plain.summary.estimated_error is None
    each = run(plan, guidance_scale=[4.0] * 6).summary.estimated_error
    assert each == pytest.approx(found.summary.estimated_error, rel=1e-6)


@pytest.mark.parametrize("scales", [[0.0, 0.5, 1.0, 0.2, 1.0, 0.9], [0.0, 0.5, 1.0, 4.0, 7.0, 0.9]])
def test_the_estimate_of_scales_at_and_below_one(scales):
    """It grows with |w - 1|: nothing is missed where the branch has no effect."""
    plan = thg.uniform(every=2, corrector=0.85)
    together = run(plan, guidance_scale=scales)
    assert together.summary.estimated_error[2] == 0
    assert torch.equal(together.x[2], run(PLAIN, guidance_scale=scales).x[2])
    for k, w in enumerate(scales):
        if w != 1:
            alone = run(plan, x=noise()[k : k + 1], condition=labels(6)[k : k + 1], guidance_scale=w).summary
            assert together.summary.estimated_error[k] == pytest.approx(alone.estimated_error[0], rel=1e-6)
            assert alone.estimated_error[0] > 0


def test_the_summary_says_where_a_run_lost_it():
    """Three leaps, of which one is far longer: the shares add up, and most is lost there."""
    coarse = (*range(9), *range(15, 20))
    found = run(thg.Plan(STEPS, coarse, skips="network", corrector=0.85)).summary
    assert [end for end, _ in found.lost] == [15]
    assert "most of it from the predictions before step 15 (100%)" in str(found)
    spread = run(thg.Plan(STEPS, (*range(0, 20, 2), 19), skips="network")).summary
    assert sum(share for _, share in spread.lost) == pytest.approx(1.0)
    assert [end for end, _ in spread.lost] == list(range(4, 20, 2))
    assert run(thg.tapered(1.0)).summary.lost == ()


def test_the_default_is_that_of_enable():
    found = run()
    wanted = guide_maker(None).guide(thg.ode.integrate.run_of(SCHEDULE, thg.ode.ddim(), 4.0)).plan
    assert found.plan == wanted


def test_a_preset_by_name():
    schedule = thg.Schedule.flow(50, time=(1, 0))
    assert run("sd15", schedule=schedule).nfe == 70
    with pytest.raises(thg.PlanError, match="the plan is for 50 steps, the schedule has 20"):
        run("sd15")


# -- gradients


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def forward(self, x, t, label):
        return self.factor * velocity(x, t, label)


def test_no_gradients_unless_asked_for():
    network = Scaled()
    found = run(network=network)
    assert not found.x.requires_grad
    constants = thg.ode.error_constants(
        network, noise(), SCHEDULE, thg.ode.ddim(), guidance_scale=4.0, condition=labels(6), unconditional=NONE
    )
    assert isinstance(constants.hare, np.ndarray)


@pytest.mark.parametrize("form", ["predictor", "two-state"])
def test_gradients_through_a_run(form):
    network = Scaled()
    plan = thg.Plan(STEPS, range(0, STEPS, 2), hare_order=1)
    found = run(plan, network, gradients=True, form=form).x.square().sum()
    (slope,) = torch.autograd.grad(found, network.factor)
    ends = []
    for factor in (1 - 1e-6, 1 + 1e-6):
        network.factor.data.fill_(factor)
        ends.append(float(run(plan, network, form=form).x.square().sum()))
    assert float(slope) == pytest.approx((ends[1] - ends[0]) / 2e-6, rel=1e-4)


# -- both branches at once


def counted(network, calls):
    def counting(x, t, condition):
        calls.append((len(x), condition))
        return network(x, t, condition)

    return counting


def test_both_branches_in_one_call():
    calls = []
    twice = run(PLAIN)
    once = run(PLAIN, counted(velocity, calls), batched=True)
    assert torch.allclose(once.x, twice.x, rtol=1e-9)
    assert once.nfe == twice.nfe == 2 * STEPS
    assert [rows for rows, _ in calls] == [12] * STEPS
    assert calls[0][1].tolist() == [*labels(6).tolist(), *[NONE] * 6]
    calls.clear()
    fewer = run(thg.uniform(every=2), counted(velocity, calls), batched=True)
    assert [rows for rows, _ in calls] == [12, 6] * (STEPS // 2)
    assert fewer.nfe == STEPS + STEPS // 2
    assert torch.allclose(fewer.x, run(thg.uniform(every=2)).x, rtol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_a_network_may_write_all_its_outputs_to_one_tensor(scale):
    buffer = torch.empty_like(noise())

    def overwriting(x, t, label):
        return buffer.copy_(velocity(x, t, label))

    usual, found = (run(None, network, guidance_scale=scale) for network in (velocity, overwriting))
    assert torch.equal(found.x, usual.x)


def test_without_conditions_a_flag_for_each_row():
    calls = []

    def network(x, t, conditional):
        return velocity(x, t, torch.where(conditional, torch.arange(len(x)) % 2, NONE))

    found = run(PLAIN, counted(network, calls), condition=True, unconditional=False, batched=True)
    assert torch.allclose(found.x, run(PLAIN).x, rtol=1e-9)
    assert calls[0][1].tolist() == [True] * 6 + [False] * 6


def test_conditions_of_several_tensors():
    def network(x, t, condition):
        assert condition["weight"].shape == (len(x), 3)
        return velocity(x, t, condition["label"][0])

    condition = {"label": (labels(6),), "weight": torch.ones(6, 3)}
    nothing = {"label": (torch.full((6,), NONE),), "weight": torch.zeros(1, 3)}
    found = run(PLAIN, network, condition=condition, unconditional=nothing, batched=True)
    assert torch.allclose(found.x, run(PLAIN).x, rtol=1e-9)


def test_conditions_that_cannot_be_joined():
    with pytest.raises(thg.PlanError, match=r"must be tensors .* not Tensor and NoneType; without batched"):
        run(unconditional=None, batched=True)


# -- scales


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor, np.array])
def test_a_guidance_scale_for_each_sample(kind):
    scales = [1.5, 2.0, 3.0, 4.0, 5.0, 6.0]
    plan = thg.Plan(STEPS, range(0, STEPS, 2), corrector=0.7)
    together = run(plan, guidance_scale=kind(scales)).x
    for i, w in enumerate(scales):
        alone = run(plan, x=noise()[i : i + 1], condition=labels(6)[i : i + 1], guidance_scale=np.float32(w)).x
        assert torch.allclose(together[i], alone[0], rtol=1e-9)


def test_a_plan_is_made_for_the_largest_scale():
    assert run(guidance_scale=[1.5] * 5 + [8.0]).plan == run(guidance_scale=8.0).plan


@pytest.mark.parametrize("scale", [[1.0, 2.0], [], "high", [1.0, math.nan, 1, 1, 1, 1], -1])
def test_scales_that_do_not_fit(scale):
    with pytest.raises(thg.PlanError, match="guidance_scale"):
        run(guidance_scale=scale)


# -- on the way


@pytest.mark.parametrize("form", ["predictor", "two-state"])
def test_a_callback_and_the_trajectory(form):
    steps = []
    found = run(thg.Plan(STEPS, range(0, STEPS, 2)), callback=steps.append, trajectory=True, form=form)
    assert [step.number for step in steps] == list(range(STEPS))
    assert all(isinstance(step, Step) for step in steps)
    assert len(found.trajectory) == STEPS + 1
    assert torch.equal(found.trajectory[0], noise())
    assert torch.equal(found.trajectory[-1], found.x)
    for step, before, after in zip(steps, found.trajectory, found.trajectory[1:], strict=False):
        assert torch.equal(step.x, after)
        # on a first-order step the states lie on the line from x0
        share = SCHEDULE.sigma[step.number + 1] / SCHEDULE.sigma[step.number]
        assert torch.allclose(after, step.x0 + share * (before - step.x0), rtol=1e-7, atol=1e-9)
    assert run().trajectory == ()


def test_a_progress_bar():
    seen = []

    def bar(steps):
        for i in steps:
            seen.append(i)
            yield i

    run(progress=bar)
    assert seen == list(range(STEPS))


@pytest.mark.parametrize(
    ("interval", "guided"),
    [
        ((0.25, 0.75), range(5, 16)),
        ((0.75, 0.25), range(5, 16)),
        ((0.25, 0.75, "[]"), range(5, 16)),
        ((0.25, 0.75, "(]"), range(5, 15)),
        ((0.25, 0.75, "[)"), range(6, 16)),
        ((0.25, 0.75, "()"), range(6, 15)),
        ((None, 0.75), range(5, 20)),
        ((0.25, None), range(16)),
        ((None, 0.75, "()"), range(6, 20)),
    ],
)
def test_an_interval_with_or_without_its_ends(interval, guided):
    found = run(thg.uniform(every=1), guidance_interval=interval)
    assert [i for i in range(STEPS) if found.plan.guides(i)] == list(guided)


def test_numbers_of_numpy():
    schedule = thg.Schedule.flow(np.int64(STEPS), time=(np.float32(1), np.int64(0)))
    plan = thg.Plan(np.int64(STEPS), np.arange(0, STEPS, 2))
    assert torch.equal(run(plan, schedule=schedule, guidance_scale=np.float64(4)).x, run(plan).x)


# -- what is wrong


@pytest.mark.parametrize(("branch", "name"), [(False, "conditional"), (True, "unconditional")])
def test_a_nan_names_the_step_and_the_branch(branch, name):
    def network(x, t, label):
        output = velocity(x, t, label)
        if abs(t - 0.5) < 1e-9 and bool((label == NONE).all()) == branch:
            output[1, 3] = math.nan
        return output

    with pytest.raises(thg.errors.NonFiniteError, match=rf"in the {name} network output at step 10 \(time 0.5\)"):
        run(PLAIN, network)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"schedule": None}, "sample needs the grid of the run"),
        ({"schedule": 8}, r"as a thg.Schedule, not as int: .* thg.read_schedule\(scheduler, 50\)"),
        ({"solver": "ddim"}, r"solver must be one of thg.ode, such as thg.ode.ddim\(\), not 'ddim'"),
        ({"guidance_interval": (2.0, 3.0)}, r"no step lies in guidance_interval=\(2.0, 3.0\): .* from 1 to 0.05"),
        ({"guidance_interval": 0.5}, "must be two times of the network"),
        ({"guidance_interval": (0.2, 0.8, "][")}, "must be two times of the network"),
        ({"guidance_interval": (0.2, 0.8), "plan": thg.Plan(STEPS, (0,))}, r"Plan\(..., start=, cutoff=\)"),
        ({"plan": WithoutPlan(), "form": "two-state"}, "this planner makes none; use form='predictor'"),
        ({"plan": thg.tapered(0.5), "form": "two-state"}, "pass a plan of that kind, such as thg.uniform"),
        ({"plan": [0, 1]}, r"expected a plan, a planner .* not \[0, 1\]"),
        ({"network": lambda x, t, c: (x,)}, "has the type tuple, the latents have"),
    ],
)
def test_what_cannot_be(more, words):
    with pytest.raises(thg.PlanError, match=words):
        run(**more)


# -- a device of its own


def test_the_loop_never_waits_for_the_device(monkeypatch):
    """After the first step no value is read: neither by .item(), float(), bool() nor .tolist()."""
    waits = []
    for name in ("item", "tolist", "__float__", "__bool__", "__int__", "__index__"):
        plain = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, plain=plain: waits.append(len(calls)) or plain(self))
    calls = []

    def network(x, t, condition):
        calls.append(t)
        return (x - 0.1) / t

    thg.sample(network, noise(), thg.tapered(0.65), SCHEDULE, guidance_scale=4.0)
    within = [call for call in waits if 1 < call < len(calls)]
    assert not within
    assert waits.count(1) <= 2  # finite? of the right sign?
