"""The Gaussian mixture: its score against automatic differentiation, and a case whose ODE has a closed solution."""

import numpy as np
import pytest
import torch

import thg
from tests.core.problems import noise
from thg.ode.integrate import sample
from thg.ode.mixture import GaussianMixture
from thg.ode.schedule import Schedule
from thg.ode.solvers import dpm_multistep, euler
from thg.plans.plan import Plan


def log_density(mixture, x, alpha, sigma, label):
    mine = torch.ones_like(mixture.labels, dtype=torch.bool) if label is None else mixture.labels == label
    variance = alpha**2 * mixture.stds[mine] ** 2 + sigma**2
    parts = torch.distributions.Independent(
        torch.distributions.Normal(alpha * mixture.means[mine], variance.sqrt()[:, None]), 1
    )
    weights = torch.distributions.Categorical(probs=mixture.weights[mine])
    return torch.distributions.MixtureSameFamily(weights, parts).log_prob(x)


@pytest.mark.parametrize("dimension", [1, 2, 7])
@pytest.mark.parametrize("label", [None, 0, 2])
def test_score_is_the_gradient_of_the_log_density(dimension, label):
    mixture = GaussianMixture.random(dimension=dimension)
    for alpha, sigma in ((1.0, 0.3), (0.6, 0.8), (0.05, 1.0)):
        x = noise(5, dimension).requires_grad_()
        (gradient,) = torch.autograd.grad(log_density(mixture, x, alpha, sigma, label).sum(), x)
        assert torch.allclose(mixture.score(x.detach(), alpha, sigma, label), gradient, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("conditional", [True, False])
def test_denoiser_is_eps_or_velocity_by_the_schedule(conditional):
    mixture = GaussianMixture.random(dimension=12)
    x = noise(3, 12).reshape(3, 3, 2, 2)
    label = 1 if conditional else None
    vp = Schedule.vp(10)
    alpha, sigma = map(float, vp.levels_at(0.4))
    eps = mixture.denoiser(vp, 1)(x, 0.4, conditional)
    assert torch.allclose(eps.flatten(1), -sigma * mixture.score(x.flatten(1), alpha, sigma, label))
    velocity = mixture.denoiser(Schedule.flow(10, time=(1000, 0)), 1)(x, 400.0, conditional)
    eps = -0.4 * mixture.score(x.flatten(1), 0.6, 0.4, label)
    x0 = (x.flatten(1) - 0.4 * eps) / 0.6
    assert torch.allclose(velocity.flatten(1), eps - x0)


@pytest.mark.parametrize("schedule", [Schedule.vp(200), Schedule.flow(200, time=(1000, 0))], ids=["vp", "flow"])
def test_one_gaussian_is_solved_exactly(schedule):
    """The probability flow of a Gaussian is affine: it keeps the deviation in units of the marginal's std."""
    one = GaussianMixture(
        means=torch.tensor([[1.0, -0.5]], dtype=torch.float64),
        stds=torch.tensor([0.7], dtype=torch.float64),
        weights=torch.ones(1, dtype=torch.float64),
        labels=torch.zeros(1, dtype=torch.long),
    )
    x = noise(6)
    start, end = schedule.nodes[0], schedule.nodes[-1]

    def std(node):
        return np.hypot(node.alpha * 0.7, node.sigma)

    exact = end.alpha * one.means + std(end) / std(start) * (x - start.alpha * one.means)
    plan = Plan(200, range(200))
    for solver, tolerance in ((euler(), 3e-2), (dpm_multistep(), 3e-3)):
        found = sample(one.denoiser(schedule, 0), x, plan, schedule, solver, guidance_scale=3.0).x
        assert float((found - exact).norm() / exact.norm()) < tolerance


def test_draws_follow_the_mixture():
    mixture = GaussianMixture.random(classes=2, per_class=1)
    drawn = mixture.draw(20000, label=1)
    assert torch.allclose(drawn.mean(0), mixture.means[1], atol=0.02)
    assert torch.allclose(drawn.std(0), mixture.stds[1].expand(2), atol=0.02)
    assert mixture.draw(3).shape == (3, 2)


def test_wrong_input_is_named():
    mixture = GaussianMixture.random()
    with pytest.raises(thg.THGError, match="no class 9"):
        mixture.draw(1, label=9)
    with pytest.raises(thg.THGError, match="means"):
        GaussianMixture(mixture.means, mixture.stds[:2], mixture.weights, mixture.labels)
