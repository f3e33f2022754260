"""The calls of samplers that are plain functions, and guidance in the network's space inside a denoiser."""

import math
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.polynomial import Polynomial

from thg import Plan, ScheduleError
from thg.ode.guided_denoiser import DenoisedGuide
from thg.plans.guide import HareGuide
from thg.plans.k_diffusion import errors_left, positions, trace
from thg.plans.tolerance import predictable, within

from .problems import guided_eps

SIGMAS = torch.tensor([10.0, 4.0, 1.5, 0.5, 0.1, 0.0])
GUIDANCE = 3.0


def euler(denoiser, x, sigmas=SIGMAS):
    for sigma, after in pairwise(sigmas):
        x = x + (x - denoiser(x, sigma)) / sigma * (after - sigma)
    return x


def in_place(denoiser, x, sigmas=SIGMAS):
    """Euler's method on one tensor, as samplers of some packs do it."""
    for sigma, after in pairwise(sigmas):
        x += (x - denoiser(x, sigma)) / sigma * (after - sigma)
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


def lms(denoiser, x, sigmas=SIGMAS, order=4):
    """Linear multistep: the integral of the polynomial through the last slopes."""
    levels, slopes = sigmas.double().numpy(), []
    for i, sigma in enumerate(sigmas[:-1]):
        slopes = [*slopes[1 - order :], (x - denoiser(x, sigma)) / sigma]
        nodes = levels[i + 1 - len(slopes) : i + 1]
        for node, slope in zip(nodes, slopes, strict=True):
            basis = math.prod((Polynomial([-other, 1]) for other in nodes if other != node), start=Polynomial([1]))
            integral = (basis / basis(node)).integ()
            x = x + slope * float(integral(levels[i + 1]) - integral(levels[i]))
    return x


def karras(steps):
    return torch.cat(
        [torch.linspace(14.6 ** (1 / 7), 0.03 ** (1 / 7), steps, dtype=torch.float64) ** 7, torch.zeros(1)]
    )


def exponential(steps):
    return torch.cat([torch.logspace(1.164, -1.523, steps, dtype=torch.float64), torch.zeros(1)])


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


def test_a_sampler_may_write_into_its_state():
    assert np.array_equal(calls_of(in_place).response.matrix, calls_of(euler).response.matrix)


@pytest.mark.parametrize("sampler", [heun, dpmpp_2m])
def test_the_final_state_is_the_sum_of_the_responses(sampler):
    calls = calls_of(sampler)
    outputs = torch.randn(len(calls.sigmas), generator=torch.Generator().manual_seed(1))
    given = iter(outputs)
    final = on_numbers(sampler)(torch.zeros(1), lambda x, sigma: next(given))
    assert final.item() == pytest.approx(torch.tensor(calls.response.final).float().dot(outputs).item(), rel=1e-5)


@pytest.mark.parametrize(
    ("sampler", "order"),
    [(euler, 1), (heun, 2), (dpmpp_2m, 2), (partial(lms, order=2), 2), (partial(lms, order=3), 3), (clipped, 1)],
)
@pytest.mark.parametrize("steps", [30, 60])
def test_the_order_is_measured(sampler, order, steps):
    sigmas = karras(steps)[:-1]
    assert calls_of(sampler, sigmas).run(sigmas.tolist()).order == order


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


@pytest.mark.parametrize("grid", [karras, exponential])
@pytest.mark.parametrize("steps", [20, 30, 50, 100])
def test_a_sampler_that_explodes_is_known_before_its_run(grid, steps):
    sound = {"euler": euler, "heun": heun, "dpm++ 2m": dpmpp_2m} | {
        f"lms {p}": partial(lms, order=p) for p in (2, 3, 4)
    }
    for name, sampler in sound.items():
        assert not calls_of(sampler, grid(steps)).explodes, name
    for order in (6, 8):
        calls = calls_of(partial(lms, order=order), grid(steps))
        assert calls.explodes
        assert "magnifies errors" in calls.no_response
        run = calls.run(grid(steps).tolist(), 5.0)
        assert not predictable(run)
        assert within(0.1).plan(run).evaluations == steps


def test_a_part_of_the_outputs_does_not_tell_whether_a_sampler_explodes():
    found = trace(on_numbers(partial(lms, order=8), karras(20)), lambda sigma: -sigma, part=True)
    assert not found.explodes
    assert found.response is not None


@pytest.mark.parametrize("steps", [13, 15, 20, 30, 50])
def test_even_levels_of_a_flow_that_end_close_to_the_data(steps):
    """The last step divides the error of a state by a thousandth; guidance, which no longer acts there, had made it
    grow."""
    grid = torch.cat([torch.linspace(1.0, 0.001, steps), torch.zeros(1)])
    for sampler in (euler, heun, dpmpp_2m, *(partial(lms, order=p) for p in (2, 3, 4))):
        assert not calls_of(sampler, grid).explodes
    for order in (6, 8):
        assert calls_of(partial(lms, order=order), grid).explodes


@pytest.mark.parametrize("sampler", [dpmpp_2m, heun, partial(lms, order=4), partial(lms, order=6)])
def test_what_is_left_of_errors_does_not_depend_on_what_the_network_predicts(sampler):
    sigmas = karras(20)
    noise = calls_of(sampler, sigmas)

    def velocity(start, answer):
        def denoiser(x, sigma):
            size = math.hypot(1, sigma)
            return x / size**2 - sigma / size * answer(x, sigma)

        return sampler(denoiser, start, sigmas)

    found = trace(velocity, lambda sigma: -sigma / math.hypot(1, sigma))
    if noise.explodes:
        assert found.explodes
    else:
        expected = errors_left(noise.response, noise.sigmas, noise.units)
        assert errors_left(found.response, found.sigmas, found.units) == pytest.approx(expected, rel=0.02)


def test_feedback_is_that_of_a_network():
    """The response of a run on dx / dsigma = gain x with Euler's method, by the states themselves."""
    calls, gain = calls_of(euler), np.array([0.3, -0.2, 0.5, 1.0, 0.1])
    for k in range(5):
        x, steps = 0.0, SIGMAS.double().diff().numpy()
        for n in range(5):
            x += steps[n] * (gain[n] * x + (n == k))
            assert calls.response.with_feedback(gain)[n, k] == pytest.approx(x, rel=1e-5)


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
