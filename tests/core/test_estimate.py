"""The estimate of a run's error against the error itself, on an exact model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import thg
from thg.ode.mixture import GaussianMixture
from thg.plans.guide import HareGuide
from thg.plans.leaps import Estimate
from thg.plans.plan import Plan
from thg.plans.response import Response
from thg.plans.run_info import RunInfo

STEPS, SCALE = 40, 5.0


def even(steps: int, count: int) -> tuple[int, ...]:
    return tuple(np.linspace(0, steps - 1, count).round().astype(int).tolist())


def wide_mixture() -> GaussianMixture:
    """Gaussians as wide as they are apart: errors survive, as they do in networks, and are not drawn into a mode."""
    rng = np.random.default_rng(0)
    ones = torch.ones(8, dtype=torch.float64)
    return GaussianMixture(torch.from_numpy(rng.normal(size=(8, 16))), 0.7 * ones, ones, torch.arange(8) % 2)


def flow_run(plan: Plan, response: bool = True) -> tuple[Tensor, Tensor | None]:
    """The final state of a flow model under the Euler scheduler, and the estimate of how far it is from plain CFG's."""
    sigmas = np.linspace(1, 0, STEPS + 1)
    run = RunInfo.of(STEPS, SCALE)
    if response:
        run = replace(run, response=Response.one_step(np.diff(sigmas).tolist()))
    guide, model = HareGuide(plan, run), wide_mixture()
    x = torch.randn(8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for k in range(STEPS):
        sigma = float(sigmas[k])
        x0, eps = model._split(x, 1 - sigma, sigma, 0)
        conditional = eps - x0
        if guide.evaluates(k):
            x0, eps = model._split(x, 1 - sigma, sigma, None)
            fresh = conditional - (eps - x0)
            used = guide.observe(k, (conditional,), (fresh,)) or (fresh,)
        else:
            used = guide.predict(k, (conditional,)) or (torch.zeros_like(x),)
        last = x
        x = x + (float(sigmas[k + 1]) - sigma) * (conditional + (SCALE - 1) * used[0])
    return x, guide.estimated_error(last)


@pytest.mark.parametrize(("corrector", "response"), [(0.85, True), (0.0, True), (0.0, False)])
def test_the_estimate_follows_the_error_over_a_decade(corrector, response):
    plain, none = flow_run(Plan(STEPS, range(STEPS)))
    assert none is None
    true, estimated = [], []
    for count in (6, 9, 14, 20, 28):
        x, estimate = flow_run(Plan(STEPS, even(STEPS, count), corrector=corrector, slope=0.6), response)
        assert estimate.shape == (8,)
        true.append(float(((x - plain).norm(dim=1) / plain.norm(dim=1)).median()))
        estimated.append(float(estimate.median()))
    ratios = np.array(true) / np.array(estimated)
    assert true[0] > 10 * true[-1]
    assert ratios.max() < 4 * ratios.min()
    assert 0.2 < np.median(ratios) < 5


@pytest.mark.parametrize("other", [{"boost": 1.1}, {"cutoff": STEPS - 5}])
def test_a_plan_that_wants_other_guidance_than_plain_cfg_has_no_estimate(other):
    coarse = even(STEPS, 10)
    assert flow_run(Plan(STEPS, coarse))[1] is not None
    assert flow_run(Plan(STEPS, coarse, **other))[1] is None


def test_rows_are_judged_on_their_own_and_over_the_state_alone():
    estimate = Estimate(share=0.5)
    assert estimate.relative_to(torch.ones(2, 4)) is None
    estimate.add((torch.tensor([[3.0, 4.0], [0.0, 0.0]]),), 4)
    estimate.add((torch.tensor([[0.0, 0.0], [0.0, 2.0]]),), 9)
    state = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert estimate.relative_to(state).tolist() == [2.5, 0.5]
    assert estimate.relative_to(torch.cat([state, state])).tolist() == [2.5, 0.5]  # two branches


def test_other_channels_than_the_state_do_not_count():
    estimate = Estimate(share=1.0)
    estimate.add((torch.ones(1, 2, 3, 3),), 3)
    state = torch.ones(1, 2, 3, 3)
    masked = torch.cat([state, 100 * torch.ones(1, 5, 3, 3)], dim=1)
    assert estimate.relative_to(masked).tolist() == pytest.approx([1.0])
    assert estimate.relative_to(state).tolist() == pytest.approx([1.0])


def test_samples_of_different_sizes_are_judged_together():
    estimate = Estimate(share=1.0)
    estimate.add((torch.ones(2, 2), torch.ones(3, 4)), 5)
    assert estimate.relative_to([torch.ones(2, 2), torch.ones(3, 4)]).shape == (1,)


@pytest.mark.parametrize("schedule", [thg.Schedule.flow(50, time=(1, 0)), thg.Schedule.vp(50)], ids=["flow", "vp"])
@pytest.mark.parametrize("combined", [1, 2, 3])
def test_conditions_that_contradict_each_other_are_seen(schedule, combined):
    """A network that adds up the terms of several classes has no data to go to, and jumps from one to another."""
    rng = np.random.default_rng(0)
    ones = torch.ones(8, dtype=torch.float64)
    mixture = GaussianMixture(torch.from_numpy(rng.normal(size=(8, 16))), 0.2 * ones, ones, torch.arange(8) % 4)
    classes = [mixture.denoiser(schedule, name) for name in range(combined)]

    def network(x: Tensor, t: float, conditional: bool) -> Tensor:
        plain = classes[0](x, t, False)
        return plain + sum(one(x, t, True) - plain for one in classes) if conditional else plain

    x = torch.randn(32, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain, found = (
        thg.sample(network, x, plan, schedule, guidance_scale=3.0) for plan in (thg.tapered(1.0), thg.within())
    )
    errors = (found.x - plain.x).norm(dim=1) / plain.x.norm(dim=1)
    if combined == 1:
        assert errors.median() < 0.01
        assert np.median(found.summary.estimated_error) < 0.01
    else:
        assert errors.median() > 0.2
        assert min(found.summary.estimated_error) > 0.05
        assert f"estimated difference from the plain run: {max(found.summary.estimated_error):.1%}" in str(
            found.summary
        )
