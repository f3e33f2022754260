"""thg.GuidedDenoiser inside samplers in the style of k-diffusion, written here as their papers have them."""

import math
from itertools import pairwise

import pytest
import torch

import thg
from tests.core.own_network import NONE, denoised, labels, noise, psnr
from tests.core.test_calls import lms

SIGMAS = torch.cat([torch.logspace(1.3, -1.3, 24), torch.zeros(1)])
SCALE = 4.0


def slope(model, x, sigma, extra_args):
    return (x - model(x, sigma * x.new_ones(len(x)), **extra_args)) / sigma


def euler(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for sigma, after in pairwise(sigmas):
        x = x + slope(model, x, sigma, extra_args or {}) * (after - sigma)
    return x


def heun(model, x, sigmas, extra_args=None, callback=None, disable=None):
    extra_args = extra_args or {}
    for sigma, after in pairwise(sigmas):
        first = slope(model, x, sigma, extra_args)
        ahead = x + first * (after - sigma)
        x = ahead if after == 0 else x + (first + slope(model, ahead, after, extra_args)) / 2 * (after - sigma)
    return x


def dpmpp_2m(model, x, sigmas, extra_args=None, callback=None, disable=None):
    last = None
    for i, (sigma, after) in enumerate(pairwise(sigmas)):
        found = used = model(x, sigma * x.new_ones(len(x)), **extra_args or {})
        if last is not None and after > 0:
            ratio = torch.log(sigmas[i - 1] / sigma) / torch.log(sigma / after)
            used = found + (found - last) / (2 * ratio)
        x, last = after / sigma * x + (1 - after / sigma) * used, found
    return x


def ancestral(model, x, sigmas, extra_args=None, callback=None, disable=None):
    for sigma, after in pairwise(sigmas):
        up = (after**2 * (sigma**2 - after**2) / sigma**2).sqrt()
        x = x + slope(model, x, sigma, extra_args or {}) * ((after**2 - up**2).sqrt() - sigma)
        x = x + up * torch.randn_like(x)
    return x


SAMPLERS = {"euler": euler, "heun": heun, "dpm++ 2m": dpmpp_2m, "ancestral": ancestral}


class Network:
    """x0 of the state x0 + sigma eps; counts what it is asked."""

    def __init__(self):
        self.rows = 0
        self.calls = []

    def __call__(self, x, sigma, cond):
        self.rows += len(x)
        self.calls.append(cond)
        return denoised(x, 1.0, float(sigma[0]), cond)


def guided(network, x, sigma, cond, uncond, cond_scale):
    """Classifier-free guidance as k-diffusion has it."""
    e_u, e_c = network(x, sigma, uncond), network(x, sigma, cond)
    return e_u + (e_c - e_u) * cond_scale


COND = {"cond": labels(6), "uncond": torch.full((6,), NONE), "cond_scale": SCALE}


def run(name, model, **changed):
    torch.manual_seed(3)
    return SAMPLERS[name](model, 20 * noise(), SIGMAS, extra_args={**COND, **changed})


def plain(name):
    network = Network()
    return run(name, lambda x, sigma, **c: guided(network, x, sigma, **c))


def made(name, plan=None, **more):
    network = Network()
    return thg.GuidedDenoiser(network, plan, sigmas=SIGMAS, sampler=SAMPLERS[name], **more), network


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_call_evaluated_is_plain_guidance(name):
    model, network = made(name, thg.uniform(every=1))
    assert torch.equal(run(name, model), plain(name))
    assert network.rows == 6 * model.summary.nfe
    assert model.summary.nfe == model.summary.cfg_nfe == 2 * (47 if name == "heun" else 24)


@pytest.mark.parametrize("name", SAMPLERS)
def test_fewer_evaluations_and_the_same_picture(name):
    model, network = made(name, thg.uniform(nfe=0.7, corrector=0.7))
    expected = plain(name)
    found = run(name, model)
    summary = model.summary
    assert summary.nfe == sum(summary.evaluations) == network.rows // 6 == round(0.7 * summary.cfg_nfe)
    assert summary.finished
    assert summary.plan.nfe == summary.nfe
    assert len(summary.estimated_error) == 6
    assert psnr(found, expected) > (20 if name == "ancestral" else 35)
    assert f"{summary.nfe} network evaluations instead of {summary.cfg_nfe}" in str(summary)


@pytest.mark.parametrize("name", ["euler", "heun", "dpm++ 2m"])
def test_the_whole_network_leaps(name):
    model, network = made(name, thg.tapered(0.5))
    found, summary = run(name, model), model.summary
    assert summary.nfe == sum(summary.evaluations) == network.rows // 6 == 2 * round(0.25 * summary.cfg_nfe)
    assert set(summary.evaluations) == {0, 2}
    assert psnr(found, plain(name)) > 35
    assert len(summary.estimated_error) == 6
    assert sum(share for _, share in summary.lost) == pytest.approx(1)
    assert "within a factor of 3 (not tuned)" in str(summary)


@pytest.mark.parametrize("name", ["euler", "dpm++ 2m"])
@pytest.mark.parametrize("steps", [20, 28])
def test_velocities_leap_if_the_network_predicts_the_data(name, steps):
    """At the levels of EDM: as many evaluations, and where they matter more."""
    sigmas = torch.tensor(thg.Schedule.edm(steps).sigma)

    def run(plan, **kind):
        model = thg.GuidedDenoiser(Network(), plan, sigmas=sigmas, sampler=SAMPLERS[name], **kind)
        return SAMPLERS[name](model, 80 * noise(), sigmas, extra_args=COND), model.summary.plan

    expected, _ = run(thg.uniform(every=1))
    (as_noise, plan), (as_data, other) = run(None), run(None, predicts="data")
    assert abs(plan.evaluations - other.evaluations) <= 1
    wrong = [(found - expected).flatten(1).norm(dim=1).median() for found in (as_noise, as_data)]
    assert wrong[1] < 0.8 * wrong[0]


def test_the_same_as_with_a_schedule():
    """A denoiser of EDM, in a sampler and in `thg.sample`."""
    schedule = thg.Schedule.edm(20)
    sigmas = torch.tensor(schedule.sigma)
    model = thg.GuidedDenoiser(Network(), sigmas=sigmas, sampler=euler, predicts="data")
    found = euler(model, 80 * noise(), sigmas, extra_args=COND)
    own = thg.sample(
        lambda x, t, label: denoised(x, 1.0, t, label),
        80 * noise(),
        schedule=schedule,
        guidance_scale=SCALE,
        condition=labels(6),
        unconditional=NONE,
    )
    assert model.summary.plan.coarse == own.plan.coarse
    assert torch.allclose(found, own.x, rtol=1e-4, atol=1e-4)


def test_what_a_network_predicts_is_checked():
    with pytest.raises(thg.PlanError, match="predicts must be 'noise' or 'data'"):
        made("euler", predicts="v")


def test_what_was_tuned_is_said():
    tuned = thg.plans.Tuned(0.01, 1.2, 0.7, 0.009, 16, 24)
    model, _ = made("euler", tuned)
    run("euler", model)
    assert model.summary.tuned
    assert model.summary.note == str(tuned) == "tuned on 16 samples: 95 % within 1.0%"


def test_all_evaluations_are_the_plain_run():
    assert torch.equal(run("euler", made("euler", thg.tapered(1.0))[0]), plain("euler"))


def test_what_adds_noise_is_evaluated():
    model, _ = made("ancestral", thg.tapered(0.5))
    assert torch.equal(run("ancestral", model), plain("ancestral"))
    assert model.summary.nfe == model.summary.cfg_nfe
    assert model.summary.note == "everything was evaluated: the sampler adds noise"


def test_a_sampler_that_explodes_is_evaluated():
    def lms_of_order_8(model, x, sigmas, extra_args=None, disable=None):
        return lms(lambda x, sigma: model(x, sigma * x.new_ones(len(x)), **extra_args or {}), x, sigmas, order=8)

    model = thg.GuidedDenoiser(Network(), sigmas=SIGMAS, sampler=lms_of_order_8)
    lms_of_order_8(model, 20 * noise(), SIGMAS, extra_args=COND)
    assert model.summary.nfe == model.summary.cfg_nfe == 48
    assert "the sampler magnifies errors; a lower order does not" in model.summary.note


def test_the_corrector_needs_the_sampler():
    expected = plain("euler")
    known, _ = made("euler", thg.uniform(every=3, corrector=0.7))
    unknown = thg.GuidedDenoiser(Network(), thg.uniform(every=3, corrector=0.7), sigmas=SIGMAS.tolist())
    assert psnr(run("euler", known), expected) > psnr(run("euler", unknown), expected) + 3
    assert unknown.summary.nfe == known.summary.nfe == 32


def test_the_next_run_starts_anew():
    model, _ = made("euler", thg.uniform(every=3))
    first = run("euler", model)
    assert torch.equal(run("euler", model), first)
    assert model.summary.nfe == 24 + 8


class Stop(Exception):
    pass


def test_a_run_after_one_that_was_interrupted():
    model, network = made("euler", thg.uniform(every=3))
    expected = run("euler", model)
    network.calls.clear()

    def stopping(x, sigma, **more):
        if float(sigma[0]) < 1:
            raise Stop
        return model(x, sigma, **more)

    with pytest.raises(Stop):
        run("euler", stopping)
    assert not model.summary.finished
    assert "the run stopped after" in str(model.summary)
    assert torch.equal(run("euler", model), expected)
    model.reset()
    assert torch.equal(run("euler", model), expected)


def test_nothing_is_kept_after_a_run():
    model, _ = made("euler")
    run("euler", model)
    assert model._last._guide is None
    assert model._last._subject == ()


def test_other_conditions_are_evaluated_anew():
    """A sampler that changes the conditions half way: the terms of the old ones predict nothing."""
    model, _ = made("euler", thg.uniform(every=2))
    calls, conditions = [], (labels(6), torch.flip(labels(6), (0,)))

    def changing(x, sigma, **more):
        calls.append(sigma)
        return model(x, sigma, **{**more, "cond": conditions[len(calls) > 13]})

    run("euler", changing)
    assert model.summary.evaluations == (*(2, 1) * 6, 2, *(2, 1) * 5, 2), "planned anew from there"


def test_calls_that_were_not_expected():
    """Heun without saying so: never wrong, and said."""
    model = thg.GuidedDenoiser(Network(), thg.uniform(every=2), sigmas=SIGMAS)
    found = run("heun", model)
    assert psnr(found, plain("heun")) > 35
    assert "call 2 came at sigma" in model.summary.note
    assert "GuidedDenoiser(..., sampler=)" in str(model.summary)
    assert model.summary.nfe > 1.9 * 47


def test_a_run_of_other_sigmas():
    model, _ = made("euler")
    with pytest.raises(
        thg.errors.ScheduleError, match=r"starts at sigma = 9.976, but the model's sigmas start at 19.95"
    ):
        euler(model, 10 * noise(), SIGMAS / 2, extra_args=COND)


def test_a_sampler_that_adapts_its_steps():
    def adaptive(model, x, sigmas, extra_args=None):
        sigma = sigmas[0]
        while sigma > 0.1:
            d = slope(model, x, sigma, extra_args or {})
            after = sigma * (0.5 if d.abs().max() > 0.5 else 0.8)
            x, sigma = x + d * (after - sigma), after
        return x

    with pytest.raises(thg.errors.ScheduleError, match="chooses its steps from the network's outputs"):
        thg.GuidedDenoiser(Network(), sigmas=SIGMAS, sampler=adaptive)


def test_the_dry_run_leaves_the_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.randn(3)
    torch.manual_seed(1)
    made("ancestral")
    assert torch.equal(torch.randn(3), expected)


def test_both_branches_in_one_call():
    model, network = made("euler", thg.uniform(every=2), batched=True)
    found = run("euler", model)
    twice, _ = made("euler", thg.uniform(every=2))
    assert torch.allclose(found, run("euler", twice), rtol=1e-9)
    assert len(network.calls) == 24
    assert network.calls[0].tolist() == [NONE] * 6 + labels(6).tolist()


def test_no_guidance():
    model, network = made("euler", thg.uniform(every=2))
    found = run("euler", model, cond_scale=1.0)
    assert network.rows == 6 * 24
    assert torch.equal(found, run("euler", model, uncond=None))
    assert model.summary.nfe == model.summary.cfg_nfe == 24


def test_no_guidance_leaps_as_well():
    model, network = made("euler", thg.tapered(0.5))
    found = run("euler", model, uncond=None)
    assert network.rows == 6 * 12
    assert (model.summary.nfe, model.summary.cfg_nfe) == (12, 24)
    assert psnr(found, run("euler", made("euler", thg.uniform(every=2))[0], uncond=None)) > 40


def test_a_scale_for_each_sample():
    model, _ = made("euler", thg.uniform(every=2))
    together = run("euler", model, cond_scale=torch.tensor([2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
    assert torch.allclose(together[2], run("euler", model, cond_scale=4.0)[2], rtol=1e-9)


def test_a_flow_model():
    """sigma is the time; the plan of a profile is found by the noise level."""
    times = torch.linspace(1, 0, 21)

    def velocity_x0(x, sigma, cond):
        return denoised(x, 1 - float(sigma[0]), float(sigma[0]), cond)

    schedule = thg.Schedule.flow(20, time=(1, 0), prediction="sample")
    profile = thg.calibrate(
        lambda x, t, c: denoised(x, 1 - t, t, c),
        labels(6),
        x=noise(),
        schedule=schedule,
        guidance_scale=SCALE,
        unconditional=NONE,
        sensitivity=0,
        progress=False,
    )
    planner = profile.planner(nfe=0.75)
    model = thg.GuidedDenoiser(velocity_x0, planner, sigmas=times, sampler=euler, flow=True)
    found = euler(model, noise(), times, extra_args=COND)
    own = thg.sample(
        lambda x, t, c: denoised(x, 1 - t, t, c),
        noise(),
        planner,
        schedule,
        guidance_scale=SCALE,
        condition=labels(6),
        unconditional=NONE,
    )
    assert model.summary.plan == own.plan
    assert psnr(found, own.x) > 60  # the dry run computes in float32


def test_a_run_that_saves_nothing_says_so():
    few = SIGMAS[::6]
    model = thg.GuidedDenoiser(Network(), sigmas=few, sampler=euler)
    euler(model, 20 * noise(), few, COND)
    assert model.summary.saved == 0
    assert model.summary.note == "everything was evaluated, as the plan has it for 4 calls of this sampler"


@pytest.mark.parametrize("wrong", [[1.0], 20, "karras", [math.nan, 1.0, 0.0], [math.inf, 1.0], torch.ones(3, 3)])
def test_bad_sigmas(wrong):
    with pytest.raises(thg.errors.ScheduleError, match=r"at least two noise levels .* not "):
        thg.GuidedDenoiser(Network(), sigmas=wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (3, r"sampler must be a function, called as sampler\(model, x, sigmas\), not 3"),
        (lambda: 0, r"could not be executed as sampler\(model, x, sigmas\) on a few numbers \(TypeError"),
        (lambda model, x, sigmas: None, "the sampler must return the final latents, not NoneType"),
    ],
)
def test_bad_samplers(wrong, words):
    with pytest.raises(thg.THGError, match=words):
        thg.GuidedDenoiser(Network(), sigmas=SIGMAS, sampler=wrong)


def test_a_denoiser_that_is_none():
    with pytest.raises(thg.PlanError, match=r"denoiser must be a function, called as denoiser\(x, sigma, cond=\)"):
        thg.GuidedDenoiser(None, sigmas=SIGMAS)


@pytest.mark.parametrize("wrong", ["4", None, [4.0, 4.0], torch.ones(3)])
def test_bad_scales(wrong):
    model = thg.GuidedDenoiser(Network(), sigmas=SIGMAS)
    with pytest.raises(thg.PlanError, match=r"cond_scale must be a number such as 7.0, or a tensor with one for each"):
        model(noise()[:2], SIGMAS[:1], cond=labels(2), uncond=NONE, cond_scale=wrong)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("wrong", [lambda x: None, lambda x: x[:1], lambda x: (x,)])
def test_what_is_no_denoised_latents(wrong, batched):
    model = thg.GuidedDenoiser(lambda x, sigma, cond: wrong(x), sigmas=SIGMAS, batched=batched)
    with pytest.raises(thg.PlanError, match="must return the denoised latents alone"):
        model(noise()[:2], SIGMAS[:1], cond=torch.ones(2), uncond=torch.zeros(2), cond_scale=4.0)
