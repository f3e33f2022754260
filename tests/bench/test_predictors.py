"""Predictors of the network's output: exact where they should be, and real runs at an exact budget."""

import numpy as np
import pytest
import torch

pytest.importorskip("diffusers", reason="the predictors run on diffusers pipelines")

from tests.bench.test_policies import STEPS, sample, sample_under
from tests.calibrate.pipelines import stable_diffusion
from thg.bench.methods import as_policy
from thg.bench.methods.predictors import HiCache, PredictedLeaps, Spectrum, TaylorSeer, differences
from thg.plans.plan import Plan
from thg.plans.run_info import RunInfo

NODES = np.array([0.0, 1.0, 2.0, 4.0, 7.0])


def test_differences_are_the_derivatives_of_polynomials_on_an_even_grid():
    nodes = np.arange(4.0)
    for power, derivatives in ((1, [3, 1, 0, 0]), (2, [9, 5, 2, 0])):  # backward differences of x^2 at 3: 9 - 4
        found = [weights @ nodes**power for weights in differences(nodes)]
        assert found == pytest.approx(derivatives)


@pytest.mark.parametrize("predictor", [TaylorSeer(10), HiCache(10), Spectrum(10)], ids=lambda p: type(p).__name__)
def test_a_constant_output_is_predicted_as_it_is(predictor):
    assert predictor.weights(NODES, 9.0, 20).sum() == pytest.approx(1.0)


def test_lines_and_curves_are_continued():
    assert TaylorSeer(10, order=0).weights(NODES, 9.0, 20) @ NODES[-1:] == 7.0
    assert TaylorSeer(10, order=1).weights(NODES, 9.0, 20) @ NODES[-2:] == pytest.approx(9.0)
    # Hermite's first polynomial is 2 x: with sigma = 1/2 a line has half its slope
    assert HiCache(10, order=1).weights(NODES, 9.0, 20) @ NODES[-2:] == pytest.approx(8.0)
    smooth = Spectrum(10, degree=2, ridge=1e-9).weights(NODES, 9.0, 20) @ (NODES**2 - 3 * NODES)
    assert smooth == pytest.approx(81 - 27, rel=1e-6)


def test_a_run_uses_the_weights_and_forgets():
    plan, run = Plan(8, (0, 1, 3), skips="network"), RunInfo.of(8)
    leaps = PredictedLeaps(plan, run, TaylorSeer(10, order=1))
    for step in (0, 1):
        leaps.observe(step, (torch.full((2, 3), float(step)),))
    assert torch.equal(leaps.predict(2)[0], torch.full((2, 3), 2.0))
    leaps.forget()
    assert leaps.evaluates(2)


@pytest.mark.parametrize("cls", [TaylorSeer, HiCache, Spectrum])
def test_a_real_run_costs_the_budget_and_differs_from_plain_cfg(cls):
    pipe = stable_diffusion()
    policy = as_policy(cls(nfe=STEPS + 2), STEPS)
    assert policy.budget(STEPS, 5.0) == STEPS + 2
    latents, evaluations = sample_under(pipe, policy)
    assert evaluations == [STEPS + 2] * 2
    plain = sample(pipe)
    assert 0 < float((latents - plain).norm() / plain.norm()) < 0.5
