"""Leaps of the whole network: exact where they can be, of the order that theory gives, and equal to leaps of every
branch."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

import thg
from thg.ode import ddim, dpm_multistep
from thg.ode.integrate import Sampled, run_of
from thg.ode.mixture import GaussianMixture
from thg.plans.leaps import Leaps
from thg.plans.planners import guide_maker
from thg.plans.response import Response
from thg.plans.run_info import RunInfo

STEPS = 12


def network_plan(steps: int, every: int, **options: float) -> thg.Plan:
    """Evaluates the first two steps, each `every`-th and the last."""
    coarse = sorted({0, 1, *range(1, steps, every), steps - 1})
    return thg.Plan(steps, coarse, skips="network", **options)


def polynomial(degree: int, step: int) -> tuple[Tensor]:
    return (sum(torch.tensor([2.0 - k, 0.5 + k], dtype=torch.float64) * (0.3 * step) ** k for k in range(degree + 1)),)


def states(leaps: Leaps, weights: np.ndarray, degree: int) -> list[Tensor]:
    """The states of a one-step solver whose network's outputs are polynomials of the step."""
    x, found = torch.zeros(2, dtype=torch.float64), []
    for step, weight in enumerate(weights):
        output = polynomial(degree, step)
        used = leaps.observe(step, output) if leaps.evaluates(step) else leaps.predict(step)
        x = x + weight * used[0]
        found.append(x)
    return found


@pytest.mark.parametrize(("degree", "corrector"), [(1, 0.0), (1, 1.0), (2, 1.0)])
def test_polynomials_are_exact(degree, corrector):
    """A line is predicted exactly; what a parabola misses is corrected in full, at the next evaluation."""
    weights = np.linspace(1.0, 0.3, STEPS)
    run = replace(RunInfo.of(STEPS), response=Response.one_step(weights.tolist()))
    plan = network_plan(STEPS, 3, corrector=corrector)
    plain = states(Leaps(replace(plan, coarse=tuple(range(STEPS))), run), weights, degree)
    found = states(Leaps(plan, run), weights, degree)
    for step in plan.coarse if degree == 2 else range(STEPS):
        torch.testing.assert_close(found[step], plain[step], rtol=1e-12, atol=1e-12)
    if degree == 2:
        assert max(float((a - b).abs().max()) for a, b in zip(found, plain, strict=True)) > 1e-3


def test_two_evaluations_come_first_and_after_a_break():
    leaps = Leaps(thg.Plan(8, (0, 7), skips="network"), RunInfo.of(8))
    assert leaps.evaluates(0)
    leaps.observe(0, polynomial(1, 0))
    assert leaps.evaluates(1), "a line needs two"
    leaps.observe(1, polynomial(1, 1))
    assert not leaps.evaluates(2)
    torch.testing.assert_close(leaps.predict(2), polynomial(1, 2))
    leaps.forget()
    assert leaps.evaluates(3)
    leaps.observe(3, (10 * polynomial(1, 3)[0],))
    assert leaps.evaluates(4)
    leaps.observe(4, (10 * polynomial(1, 4)[0],))
    torch.testing.assert_close(leaps.predict(5), (10 * polynomial(1, 5)[0],))


def test_what_needs_no_correction_is_passed_on_as_it_is():
    leaps = Leaps(thg.Plan(3, (0, 1, 2), corrector=1.0, skips="network"), RunInfo.of(3))
    for step in range(3):
        output = (torch.randn(2),)
        assert leaps.observe(step, output) is output


def test_a_jump_at_the_beginning_is_no_miss():
    """With almost no signal outputs may jump, to little effect; the same jump later makes the result doubtful."""
    for end, doubtful in ((3, False), (18, True)):
        leaps = Leaps(thg.Plan(20, tuple(k for k in range(20) if k != end - 1), skips="network"), RunInfo.of(20))
        for step in range(20):
            if leaps.evaluates(step):
                leaps.observe(step, (torch.full((1, 4), 1.0 if step < end else -0.2),))
            else:
                leaps.predict(step)
        assert ("may be wrong" in leaps.doubt()) == doubtful


def test_the_largest_miss_is_known():
    plan = thg.Plan(20, (0, 1, 4, 8, 12, 19), skips="network")
    for after, missed in ((1.0, 0.0), (-0.4, 14 / 3)):
        leaps = Leaps(plan, RunInfo.of(20))
        assert leaps.largest_miss() is None
        for step in range(20):
            if leaps.evaluates(step):
                leaps.observe(step, (torch.ones(2, 3) * (after if step >= 4 else 1.0),))
            else:
                leaps.predict(step)
        assert float(leaps.largest_miss()) == pytest.approx(missed, abs=1e-5)


def evaluated_steps(leaps: Leaps, jump: int, steps: int) -> list[int]:
    """The steps at which a run evaluates, whose output turns around at the step `jump`."""
    found = []
    for step in range(steps):
        if leaps.evaluates(step):
            found.append(step)
            leaps.observe(step, (torch.full((1, 4), 1.0 if step < jump else -0.2),))
        else:
            leaps.predict(step)
    return found


@pytest.mark.parametrize("jump", [25, 45])
def test_a_hopeless_miss_ends_the_leaps(jump):
    """The miss is seen at the first evaluation after the jump, and read at the next one: from there on all is run."""
    run = RunInfo.of(60)
    leaps = guide_maker("1%").leaps(run)
    later = [step for step in leaps.plan.coarse if step >= jump]
    found = evaluated_steps(leaps, jump, 60)
    assert found == [*(step for step in leaps.plan.coarse if step < later[1]), *range(later[1], 60)]
    assert len(found) > leaps.plan.evaluations
    assert f"from step {later[1] + 1} of 60 on everything was evaluated" in leaps.doubt()


@pytest.mark.parametrize("choice", [0.4, thg.Plan(60, (0, 1, *range(4, 59, 5), 59), skips="network")], ids=str)
def test_a_budget_is_kept_after_a_hopeless_miss(choice):
    leaps = guide_maker(choice).leaps(RunInfo.of(60))
    assert evaluated_steps(leaps, 25, 60) == list(leaps.plan.coarse)
    assert leaps.doubt().endswith("or too few evaluated steps)")


def test_a_break_after_a_hopeless_miss_begins_anew():
    """The miss of a leap says nothing about the outputs after a break."""
    leaps = guide_maker("1%").leaps(RunInfo.of(100))
    after = next(step for step in leaps.plan.coarse if step >= 25)
    for step in range(after + 1):
        if leaps.evaluates(step):
            leaps.observe(step, (torch.full((1, 4), 1.0 if step < 25 else -0.2),))
        else:
            leaps.predict(step)
    leaps.forget()
    for step in range(after + 1, after + 3):
        assert leaps.evaluates(step)
        leaps.observe(step, (torch.full((1, 4), 1.0),))
    following = range(after + 3, leaps.plan.coarse[leaps.plan.coarse.index(after) + 1])
    assert following
    assert not any(leaps.evaluates(step) for step in following)


# -- on an exact model


def mixture() -> GaussianMixture:
    rng = np.random.default_rng(0)
    ones = torch.ones(8, dtype=torch.float64)
    return GaussianMixture(torch.from_numpy(rng.normal(size=(8, 16))), 0.7 * ones, ones, torch.arange(8) % 2)


def final(plan, steps: int, solver=None, scale: float = 3.0, **options) -> Sampled:
    x = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    schedule = thg.Schedule.flow(steps, time=(1, 0))
    return thg.sample(mixture().denoiser(schedule, 0), x, plan, schedule, solver, guidance_scale=scale, **options)


def test_a_hopeless_miss_is_in_the_note():
    """A network that changes its mind halfway, in a loop of thg's and under a sampler of k-diffusion's kind."""

    def network(x, time, condition):
        return torch.full_like(x, 1.0 if time > 0.5 else -0.2)

    x, schedule = torch.ones(2, 3), thg.Schedule.flow(60, time=(1, 0))
    found = thg.sample(network, x, thg.within(0.01), schedule, guidance_scale=1.0).summary
    assert "from step" in found.note
    first = int(found.note.split("from step ")[1].split()[0])
    assert 30 < first < 45
    assert found.evaluations[first - 1 :] == (1,) * (61 - first)

    def denoiser(x, sigma, cond):
        return x - sigma * network(x, sigma, cond)

    sigmas = torch.linspace(1, 0, 61)
    model = thg.GuidedDenoiser(denoiser, sigmas=sigmas, flow=True)
    for sigma, after in pairwise(sigmas):
        x = x + (after - sigma) * (x - model(x, sigma, cond=1, uncond=None, cond_scale=1.0)) / sigma
    assert model.summary.note.startswith("this result may be wrong")
    assert "on everything was evaluated" in model.summary.note


def fitted_order(corrector: float, solver=None) -> float:
    """The power of the leaps' length with which the final state departs from the plain run's."""
    steps, lengths = 384, np.array([4, 8, 16])
    plain = final(thg.tapered(1.0), steps, solver).x
    errors = [
        float((final(network_plan(steps, m, corrector=corrector), steps, solver).x - plain).norm()) for m in lengths
    ]
    return float(np.polyfit(np.log(lengths), np.log(errors), 1)[0])


@pytest.mark.parametrize("solver", [ddim(), dpm_multistep()], ids=["first order", "second order"])
def test_the_corrector_adds_an_order(solver):
    assert fitted_order(0.0, solver) == pytest.approx(2, abs=0.25)
    assert fitted_order(1.0, solver) == pytest.approx(3, abs=0.35)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_all_evaluations_are_the_plain_run_bit_for_bit(scale):
    plain = final(thg.uniform(every=1), 20, scale=scale)
    found = final(thg.tapered(1.0), 20, scale=scale)
    if scale != 1:
        assert torch.equal(found.x, plain.x)
    assert found.nfe == found.summary.cfg_nfe == (20 if scale == 1 else 40)


def test_a_run_without_guidance_leaps_as_well():
    plain, found = final(thg.tapered(1.0), 28, scale=1.0), final(thg.tapered(0.5), 28, scale=1.0)
    assert (plain.nfe, found.nfe, found.summary.cfg_nfe) == (28, 14, 28)
    assert float((found.x - plain.x).norm() / plain.x.norm()) < 0.02


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_default_keeps_its_tolerance_on_a_smooth_model(scale):
    for steps, share in ((20, 0.75), (28, 0.65), (50, 0.5), (100, 0.25)):
        plain, found = final(thg.tapered(1.0), steps, scale=scale), final(None, steps, scale=scale)
        assert found.summary.nfe < share * found.summary.cfg_nfe
        errors = (found.x - plain.x).norm(dim=1) / plain.x.norm(dim=1)
        assert float(errors.median()) < 0.01


@pytest.mark.parametrize("solver", [ddim(), dpm_multistep()], ids=["first order", "second order"])
def test_leaps_of_the_guided_output_are_leaps_of_every_branch(solver):
    """Prediction and correction are linear, so the guidance formula may come before or after them."""
    steps, w = 20, 4.0
    schedule, model = thg.Schedule.flow(steps, time=(1, 0)), mixture()
    network = model.denoiser(schedule, 0)
    plan = network_plan(steps, 3, corrector=0.8, slope=0.7)
    run = run_of(schedule, solver, w)
    branches = {label: Leaps(plan, run) for label in (True, False)}

    def by_branch(x: Tensor, t: Tensor, label: bool) -> Tensor:
        step = round(len(calls) / 2 - 0.25)
        calls.append(label)
        leaps = branches[label]
        return (leaps.observe(step, (network(x, t, label),)) if leaps.evaluates(step) else leaps.predict(step))[0]

    calls: list[bool] = []
    x = torch.randn(4, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    every_branch = thg.sample(by_branch, x, thg.uniform(every=1), schedule, solver, guidance_scale=w).x
    assert torch.allclose(final(plan, steps, solver, w).x, every_branch, rtol=1e-10)


def test_guidance_in_an_interval_is_a_break():
    interval = (0.3, 0.7)
    plain = final(thg.tapered(1.0), 40, guidance_interval=interval)
    found = final(thg.tapered(0.5), 40, guidance_interval=interval)
    assert found.nfe < 0.65 * plain.nfe
    assert plain.summary.cfg_nfe == plain.nfe
    assert float((found.x - plain.x).norm() / plain.x.norm()) < 0.01
