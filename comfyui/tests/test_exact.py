"""With all evaluations, and where nothing may be skipped, the result is that without the node, bit for bit."""

import itertools

import comfy.samplers
import pytest
import torch
from sampling import call, custom, guider, ksampler, report, with_thg

SOME = ("euler", "heun", "dpmpp_2m_sde", "uni_pc", "euler_cfg_pp", "lcm")


@pytest.mark.parametrize("sampler", SOME)
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_all_evaluations_are_the_plain_run(name, sampler, request):
    shipped = request.getfixturevalue(name)
    plain = ksampler(shipped, shipped.model, sampler, steps=8)
    result = ksampler(shipped, with_thg(shipped.model, preset="off"), sampler, steps=8)
    assert torch.equal(result.latents, plain.latents)
    assert result.calls == plain.calls


@pytest.mark.parametrize("percents", [(0.0, 0.0), (1.0, 1.0)])
def test_outside_of_its_part_of_the_run_everything_is_evaluated(eps, percents):
    plain = ksampler(eps, eps.model, steps=8)
    start, end = percents
    result = ksampler(eps, with_thg(eps.model, evaluations=0.5, start_percent=start, end_percent=end), steps=8)
    assert torch.equal(result.latents, plain.latents)


@pytest.mark.parametrize("other", ["EasyCache", "LazyCache"])
def test_nodes_that_skip_by_themselves_are_left_alone(eps, other):
    def patch(model):
        return call(f"easycache.{other}Node", model, 0.2, 0.15, 0.95, False)

    plain = ksampler(eps, patch(eps.model), steps=12)
    for model in (with_thg(patch(eps.model)), patch(with_thg(eps.model))):
        result = ksampler(eps, model, steps=12)
        assert torch.equal(result.latents, plain.latents)
        assert f"{other} is on" in report(result.latents)


def with_option(name):
    """A node that leaves this among the options of the network."""
    return lambda model: model.model_options["transformer_options"].update({name: 0.4})


def with_function(name):
    """A node that wraps the network in a function of this name."""

    def wrapper(apply_model, args):
        return apply_model(args["input"], args["timestep"], **args["c"])

    wrapper.__qualname__ = name
    return lambda model: model.set_model_unet_function_wrapper(wrapper)


OTHER_PACKS = {
    "TeaCache": with_option("rel_l1_thresh"),
    "MagCache": with_option("magcache_thresh"),
    "Spectrum": with_function("SpectrumNode.patch.<locals>.spectrum_unet_wrapper"),
    "apply_my_cache": with_function("apply_my_cache"),
}


@pytest.mark.parametrize("other", OTHER_PACKS)
def test_caches_of_other_packs_are_known_by_what_they_leave_on_a_model(eps, other):
    patched = with_thg(eps.model)
    OTHER_PACKS[other](patched)
    result = custom(eps, guider(eps, patched), 12)
    assert torch.equal(result, custom(eps, guider(eps, eps.model), 12))
    assert f"{other} is on, which skips by itself; remove one of the two nodes" in report(result)


def merged(model):
    return call("tomesd.TomePatchModel", model, 0.5)


def shuffled(model):
    """Tokens in a random order, as in Token Perturbation Guidance."""
    model = model.clone()
    model.set_model_attn1_patch(lambda q, k, v, options: (q[:, torch.randperm(q.shape[1])], k, v))
    return model


@pytest.mark.parametrize("patch", [merged, shuffled])
def test_random_numbers_inside_the_network(eps, patch):
    """They are drawn at each evaluation: a skipped one would change all later ones."""

    def run(model):
        torch.manual_seed(0)
        return ksampler(eps, model, steps=16, batch=2).latents

    plain = run(patch(eps.model))
    for model in (with_thg(patch(eps.model)), patch(with_thg(eps.model))):
        ours = run(model)
        assert torch.equal(ours, plain)
        assert "another node draws random numbers" in report(ours)


@pytest.mark.parametrize("momentum", [0.5, -0.5])
def test_a_node_that_remembers_former_evaluations(eps, momentum):
    """Leaps gave 27 and 39 dB."""

    def patch(model):
        return call("apg.APG", model, 1.0, 5.0, momentum)

    plain = ksampler(eps, patch(eps.model), steps=16)
    for model in (with_thg(patch(eps.model)), patch(with_thg(eps.model))):
        result = ksampler(eps, model, steps=16)
        assert torch.equal(result.latents, plain.latents)
        assert "another node remembers what was evaluated before" in report(result.latents)


def twice_where_large(model, x, sigmas, extra_args, callback, disable):
    """Euler's method, which calls its denoiser twice a step for latents, but not for a few numbers."""
    for now, after in itertools.pairwise(sigmas):
        for _ in range(1 + (x.shape[2] > 1)):
            denoised = model(x, now.reshape(1), **extra_args)
        x = denoised + after / now * (x - denoised)
    return x


def test_a_sampler_that_does_not_repeat_its_dry_run(eps):
    sampler = comfy.samplers.KSAMPLER(twice_where_large)
    models = (eps.model, with_thg(eps.model, evaluations=0.5))
    plain, ours = (custom(eps, guider(eps, model), 12, sampler) for model in models)
    assert torch.equal(ours, plain)
    assert "nothing is skipped from call 2 on" in report(ours)


def euler_with_a_restart(model, x, sigmas, extra_args, callback, disable):
    for now, after in itertools.pairwise([*sigmas[:8], *sigmas[3:]]):
        denoised = model(x, now.reshape(1), **extra_args)
        x = denoised + after / now * (x - denoised)
    return x


def test_a_sampler_that_restarts(eps):
    sampler = comfy.samplers.KSAMPLER(euler_with_a_restart)
    latents = custom(eps, guider(eps, with_thg(eps.model, evaluations=0.6)), 12, sampler)
    assert "nothing is skipped: the noise level falls and rises again" in report(latents)


def test_few_steps_are_all_evaluated(eps):
    assert "an error of 0.01 needs all 4 calls" in report(ksampler(eps, with_thg(eps.model), steps=4).latents)


def test_a_model_without_the_node_is_untouched(eps):
    before = ksampler(eps, eps.model, steps=8)
    ksampler(eps, with_thg(eps.model, evaluations=0.5), steps=8)
    assert torch.equal(ksampler(eps, eps.model, steps=8).latents, before.latents)
    assert not eps.model.wrappers.get("outer_sample")
