"""With all evaluations, and for whatever the node does not act upon, the result is plain guidance bit for bit."""

import itertools

import comfy.samplers
import pytest
import torch
from comfy_extras import (
    nodes_custom_sampler,
    nodes_easycache,
    nodes_nag,
    nodes_perpneg,
    nodes_sag,
)
from sampling import PROMPTS, ksampler, report, with_thg

SOME = ("euler", "heun", "dpmpp_2m_sde", "uni_pc", "euler_cfg_pp", "lcm")


@pytest.mark.parametrize("sampler", SOME)
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_all_evaluations_are_plain_guidance(name, sampler, request):
    shipped = request.getfixturevalue(name)
    plain = ksampler(shipped, shipped.model, sampler, steps=8)
    result = ksampler(shipped, with_thg(shipped.model, error=0.0), sampler, steps=8)
    assert torch.equal(result.latents, plain.latents)
    assert result.calls == plain.calls


@pytest.mark.parametrize("percents", [(0.0, 0.0), (1.0, 1.0)])
def test_outside_of_its_part_of_the_run_guidance_is_plain(eps, percents):
    plain = ksampler(eps, eps.model, steps=8)
    start, end = percents
    result = ksampler(eps, with_thg(eps.model, evaluations=0.5, start_percent=start, end_percent=end), steps=8)
    assert torch.equal(result.latents, plain.latents)


def test_without_guidance_there_is_nothing_to_do(eps):
    plain = ksampler(eps, eps.model, steps=8, cfg=1.0)
    result = ksampler(eps, with_thg(eps.model), steps=8, cfg=1.0)
    assert torch.equal(result.latents, plain.latents)
    assert sum(result.calls) == 8
    assert "8 network evaluations instead of 8" in report(result.latents)


LEFT_ALONE = {
    "EasyCache": (lambda m: nodes_easycache.EasyCacheNode.execute(m, 0.1, 0.0, 1.0, False)[0], "a cache inside"),
    "NAG": (lambda m: nodes_nag.NAGuidance.execute(m, 5.0, 0.5, 1.5)[0], "Normalized Attention Guidance"),
    "SAG": (lambda m: nodes_sag.SelfAttentionGuidance.execute(m, 0.5, 2.0)[0], "Self-Attention Guidance"),
}


@pytest.mark.parametrize("other", LEFT_ALONE)
def test_what_needs_both_branches_keeps_them(eps, other):
    patch, reason = LEFT_ALONE[other]
    plain = ksampler(eps, patch(eps.model), steps=8)
    for model in (with_thg(patch(eps.model)), patch(with_thg(eps.model))):
        result = ksampler(eps, model, steps=8)
        assert torch.equal(result.latents, plain.latents)
        assert reason in report(result.latents)


def custom(shipped, guider, steps=8, sampler="euler"):
    """A run of SamplerCustomAdvanced."""
    schedule = shipped.model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(schedule, "normal", steps)
    noise = nodes_custom_sampler.Noise_RandomNoise(0)
    chosen = comfy.samplers.sampler_object(sampler) if isinstance(sampler, str) else sampler
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    return nodes_custom_sampler.SamplerCustomAdvanced.execute(noise, guider, chosen, sigmas, latent)[0]["samples"]


def guiders(shipped, model):
    positive, middle, negative = (shipped.encode(text) for text in (*PROMPTS[:2], ""))
    yield nodes_perpneg.PerpNegGuider.execute(model, positive, negative, middle, 5.0, 1.0)[0]
    for style in ("regular", "nested"):
        yield nodes_custom_sampler.DualCFGGuider.execute(model, positive, middle, negative, 5.0, 3.0, style)[0]
    yield nodes_custom_sampler.BasicGuider.execute(model, positive)[0]
    yield nodes_custom_sampler.DualModelGuider.execute(model, positive, 5.0, model, negative)[0]


def test_guiders_with_other_branches_are_left_alone(eps):
    for plain, ours in zip(guiders(eps, eps.model), guiders(eps, with_thg(eps.model)), strict=True):
        latents = custom(eps, ours)
        assert torch.equal(latents, custom(eps, plain)), type(plain).__name__
        assert "nothing to save: this guider" in report(latents)


def twice_where_large(model, x, sigmas, extra_args, callback, disable):
    """Euler's method, which calls its denoiser twice a step for latents, but not for a few numbers."""
    for now, after in itertools.pairwise(sigmas):
        for _ in range(1 + (x.shape[2] > 1)):
            denoised = model(x, now.reshape(1), **extra_args)
        x = denoised + after / now * (x - denoised)
    return x


def test_a_sampler_that_does_not_repeat_its_dry_run(eps):
    sampler = comfy.samplers.KSAMPLER(twice_where_large)
    prompt, empty = eps.encode(PROMPTS[0]), eps.encode("")
    plain, ours = (
        custom(eps, nodes_custom_sampler.CFGGuider.execute(model, prompt, empty, 5.0)[0], 12, sampler)
        for model in (eps.model, with_thg(eps.model, evaluations=0.5))
    )
    assert torch.equal(ours, plain)
    assert "plain guidance from call 2 on" in report(ours)


def euler_with_a_restart(model, x, sigmas, extra_args, callback, disable):
    for now, after in itertools.pairwise([*sigmas[:8], *sigmas[3:]]):
        denoised = model(x, now.reshape(1), **extra_args)
        x = denoised + after / now * (x - denoised)
    return x


def test_a_sampler_that_restarts(eps):
    sampler = comfy.samplers.KSAMPLER(euler_with_a_restart)
    prompt, empty = eps.encode(PROMPTS[0]), eps.encode("")
    guider = nodes_custom_sampler.CFGGuider.execute(with_thg(eps.model, evaluations=0.6), prompt, empty, 5.0)[0]
    assert "plain guidance: the noise level falls and rises again" in report(custom(eps, guider, 12, sampler))


def test_few_steps_are_all_evaluated(eps):
    assert "an error of 0.01 needs both branches at all 6 calls" in report(
        ksampler(eps, with_thg(eps.model), steps=6).latents
    )


def test_a_model_without_the_node_is_untouched(eps):
    before = ksampler(eps, eps.model, steps=8)
    ksampler(eps, with_thg(eps.model, evaluations=0.5), steps=8)
    assert torch.equal(ksampler(eps, eps.model, steps=8).latents, before.latents)
    assert not eps.model.wrappers.get("outer_sample")
