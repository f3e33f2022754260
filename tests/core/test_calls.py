"""The calls of samplers that are plain functions, and guidance in the network's space inside a denoiser."""

from itertools import pairwise

import pytest
import torch

from thg import Plan, ScheduleError
from thg.plans.guide import HareGuide
from thg.plans.k_diffusion import DenoisedGuide, positions, trace

from .problems import guided_eps

SIGMAS = torch.tensor([10.0, 4.0, 1.5, 0.5, 0.1, 0.0])
GUIDANCE = 3.0


def euler(denoiser, x, sigmas=SIGMAS):
    for sigma, after in pairwise(sigmas):
        x = x + (x - denoiser(x, sigma)) / sigma * (after - sigma)
    return x


def heun(denoiser, x, sigmas=SIGMAS):
    for sigma, after in pairwise(sigmas):
        slope = (x - denoiser(x, sigma)) / sigma
        ahead = x + slope * (after - sigma)
        if after > 0:
            slope = (slope + (ahead - denoiser(ahead, after)) / after) / 2
        x = x + slope * (after - sigma)
    return x


def dpmpp_2m(denoiser, x, sigmas=SIGMAS):
    last = None
    for i in range(len(sigmas) - 1):
        denoised = denoiser(x, sigmas[i])
        used = denoised
        if last is not None and sigmas[i + 1] > 0:
            ratio = torch.log(sigmas[i - 1] / sigmas[i]) / torch.log(sigmas[i] / sigmas[i + 1])
            used = denoised + (denoised - last) / (2 * ratio)
        x = sigmas[i + 1] / sigmas[i] * x + (1 - sigmas[i + 1] / sigmas[i]) * used
        last = denoised
    return x


def ancestral(denoiser, x, sigmas=SIGMAS):
    for sigma, after in pairwise(sigmas):
        x = denoiser(x, sigma)
        x = x + after * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    return x


def clipped(denoiser, x, sigmas=SIGMAS):
    return euler(lambda x, sigma: denoiser(x, sigma).clamp(-1, 1), x, sigmas)


def adaptive(denoiser, x, sigmas=SIGMAS):
    sigma = sigmas[0]
    while sigma > 0.1:
        slope = (x - denoiser(x, sigma)) / sigma
        after = sigma * (0.5 if slope.norm() > 0.1 else 0.1)
        x, sigma = x + slope * (after - sigma), after
    return x


def on_numbers(sampler, sigmas=SIGMAS):
    """A sampler as `trace` runs it, for a network that predicts the noise."""
    return lambda start, answer: sampler(lambda x, sigma: x - sigma * answer(x, sigma), start, sigmas)


def calls_of(sampler, sigmas=SIGMAS):
    return trace(on_numbers(sampler, sigmas), lambda sigma: -sigma)


def test_the_responses_of_euler_are_its_steps():
    calls = calls_of(euler)
    assert calls.sigmas == tuple(SIGMAS[:-1].tolist())
    assert calls.units == tuple(-sigma for sigma in calls.sigmas)
    assert calls.response.final == pytest.approx(SIGMAS.diff().tolist(), rel=1e-5)
    assert calls.response.matrix[2] == pytest.approx([*SIGMAS.diff()[:3].tolist(), 0, 0], rel=1e-5), "one row per state"


@pytest.mark.parametrize("sampler", [heun, dpmpp_2m])
def test_the_final_state_is_the_sum_of_the_responses(sampler):
    calls = calls_of(sampler)
    outputs = torch.randn(len(calls.sigmas), generator=torch.Generator().manual_seed(1))
    given = iter(outputs)
    final = on_numbers(sampler)(torch.zeros(1), lambda x, sigma: next(given))
    assert final.item() == pytest.approx(torch.tensor(calls.response.final).float().dot(outputs).item(), rel=1e-5)


def test_the_order_is_measured():
    orders = [calls_of(sampler).run(SIGMAS.tolist()).order for sampler in (euler, heun, dpmpp_2m, clipped)]
    assert orders == [1, 2, 2, 1]


def test_heun_calls_twice_at_each_inner_level():
    calls = calls_of(heun)
    assert len(calls.sigmas) == 9
    assert positions(calls.sigmas, SIGMAS.tolist()) == pytest.approx([0, 1, 1, 2, 2, 3, 3, 4, 4])


def test_a_call_in_between_stands_where_its_logarithm_is():
    assert positions([10.0, 40**0.5, 4.0], SIGMAS.tolist()) == pytest.approx([0, 0.5, 1])
    assert positions([0.0, 20.0], SIGMAS.tolist()) == pytest.approx([5, 0])


def test_a_grid_that_rises_leaves_the_order_of_the_calls():
    assert positions([4.0, 1.0, 2.0], [4.0, 1.0, 2.0, 0.0]) == (0, 1, 2)


@pytest.mark.parametrize(("sampler", "reason"), [(ancestral, "adds noise"), (clipped, "not linear")])
def test_no_responses_where_they_do_not_exist(sampler, reason):
    calls = calls_of(sampler, SIGMAS[:-1])
    assert calls.response is None
    assert reason in calls.no_response
    assert calls.adds_noise == (sampler is ancestral)
    assert len(calls.sigmas) == 4


def test_steps_that_depend_on_the_network_are_refused():
    with pytest.raises(ScheduleError, match="chooses its steps"):
        calls_of(adaptive)


def test_a_call_without_noise_is_guided_in_denoised_latents():
    def sampler(start, answer):
        return start + answer(start, torch.tensor(2.0)) + answer(start, torch.tensor(0.0))

    calls = trace(sampler, lambda sigma: -sigma)
    assert calls.units == (1.0, 1.0)


def test_a_denoiser_is_guided_as_its_network_would_be():
    """Prediction inside x0 = x - sigma e is the prediction of e_c - e_u, call for call."""
    calls = calls_of(euler)
    grid = SIGMAS.tolist()
    plan = Plan(5, (0, 1, 4))
    start = 10 * torch.randn(3, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def eps(x, sigma):
        alpha = (1 + float(sigma) ** 2) ** -0.5
        return guided_eps(alpha * x, alpha, float(sigma) * alpha)

    guide, step = HareGuide(plan, calls.run(grid, GUIDANCE)), iter(range(5))

    def network(x, sigma):
        i, (e_c, d) = next(step), eps(x, sigma)
        if guide.evaluates(i):
            guide.observe(i, (e_c,), (d,))
        else:
            (d,) = guide.predict(i, (e_c,))
        return x - sigma * (e_c + (GUIDANCE - 1) * d)

    denoised, call = DenoisedGuide(HareGuide(plan, calls.run(grid, GUIDANCE)), calls.units), iter(range(5))

    def denoiser(x, sigma):
        i, (e_c, d) = next(call), eps(x, sigma)
        c, u = x - sigma * e_c, x - sigma * (e_c - d)
        u = denoised.observe(i, c, u) if denoised.evaluates(i) else denoised.predict(i, c)
        return u + GUIDANCE * (c - u)

    torch.testing.assert_close(euler(denoiser, start), euler(network, start), rtol=1e-9, atol=1e-9)


def test_where_all_is_evaluated_the_unconditional_output_is_itself():
    guide = DenoisedGuide(HareGuide(Plan(2, (0, 1)), calls_of(euler, SIGMAS[:3]).run([10.0, 4.0, 1.5])), (-10.0, -4.0))
    c, u = torch.randn(2), torch.randn(2)
    assert guide.evaluates(0)
    assert guide.observe(0, c, u) is u


def test_after_the_cutoff_there_is_no_guidance():
    guide = DenoisedGuide(HareGuide(Plan(2, (0,), cutoff=1), calls_of(euler, SIGMAS[:3]).run([10.0, 4.0, 1.5])), (1, 1))
    c, u = torch.randn(2), torch.randn(2)
    guide.observe(0, c, u)
    assert not guide.evaluates(1)
    assert guide.predict(1, c) is c
