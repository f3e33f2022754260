"""Every sampler and every scheduler of ComfyUI's lists: evaluations are saved, and the picture stays the same; or
everything is evaluated, and the report says why."""

import comfy.samplers
import pytest
import torch
import torchsde
from comfy.model_sampling import EPS
from pack.sampler import DryRun
from sampling import (
    ALL_SAMPLERS,
    CFG,
    call,
    compared,
    custom,
    estimate,
    guider,
    ksampler,
    psnr,
    report,
    strip,
    with_thg,
)
from shipped import CPU

CALLS = 30  # of the denoiser in a run, about
NOISE = ("ancestral", "sde", "ddpm", "lcm", "seeds", "sa_solver")  # in their names
PLAIN = {name: "adds noise" for name in ALL_SAMPLERS if any(kind in name for kind in NOISE)}
PLAIN["dpm_adaptive"] = "chooses its steps"
PLAIN["heunpp2"] = "the noise level falls and rises again"
SAVING = [name for name in ALL_SAMPLERS if name not in PLAIN]
PAIRS = [(model, name) for model in ("eps", "flow") for name in SAVING]
ALIKE = 36  # dB, of pictures to those of the plain run; pictures of other seeds are at about 10


def cfg(shipped, sampler):
    return 1.6 if "cfg_pp" in sampler else CFG[shipped.name]  # as CFG++ is meant to be used


def known(shipped, sampler, steps):
    """What is known of a run before it starts."""
    sigmas = comfy.samplers.KSampler(shipped.model, steps, CPU, sampler, "normal", 1.0).sigmas
    return DryRun(comfy.samplers.sampler_object(sampler), sigmas, comfy.samplers.CFGGuider(shipped.model), 0).run()


def watched(model, seen):
    """The same model; the noise level of each denoiser call is written down."""

    def watch(executor, x, sigma, *args):
        seen.append(float(sigma[0]))
        return executor(x, sigma, *args)

    model = model.clone()
    model.add_wrapper("predict_noise", watch)
    return model


@pytest.mark.parametrize(("name", "sampler"), PAIRS)
def test_each_sampler(name, sampler, request):
    shipped, seen = request.getfixturevalue(name), []
    calls_per_step = round(known(shipped, sampler, 10)[1][0].steps / 10)
    given = {"sampler": sampler, "steps": CALLS // calls_per_step, "cfg": cfg(shipped, sampler)}
    calls, runs = known(shipped, sampler, given["steps"])
    plain = ksampler(shipped, watched(shipped.model, seen), **given)
    assert calls.sigmas == tuple(seen), "each call is known before the run"
    assert all(run.response is not None for run in runs)

    result = ksampler(shipped, with_thg(shipped.model), **given)
    evaluated = strip(result.latents).count("●")
    assert evaluated == len(result.calls), "the report does not tell what was evaluated"
    assert f"at {evaluated} of {len(plain.calls)} calls" in report(result.latents)
    found = psnr(result.pictures, plain.pictures)
    print(f"\n{name} {sampler} {evaluated}/{len(plain.calls)} {found:.1f} dB, {report(result.latents).splitlines()[0]}")
    assert evaluated <= (0.8 if "cfg_pp" in sampler else 0.7) * len(plain.calls)
    assert found > ALIKE


@pytest.mark.parametrize("sampler", PLAIN)
def test_the_others_evaluate_everything_and_say_why(eps, sampler):
    trees = []
    plain = ksampler(eps, eps.model, sampler, steps=4, cfg=cfg(eps, sampler))
    with pytest.MonkeyPatch.context() as patch:
        made = torchsde.BrownianTree.__init__
        patch.setattr(torchsde.BrownianTree, "__init__", lambda *args, **more: trees.append(made(*args, **more)))
        result = ksampler(eps, with_thg(eps.model), sampler, steps=4, cfg=cfg(eps, sampler))
    assert result.latents.equal(plain.latents)
    assert PLAIN[sampler] in report(result.latents)
    assert len(trees) <= 1, "the dry run builds no Brownian tree, which takes longer than a small model's run"


@pytest.mark.parametrize("scheduler", comfy.samplers.SCHEDULER_NAMES)
@pytest.mark.parametrize(("name", "sampler"), [("eps", "dpmpp_2m"), ("flow", "euler")])
def test_each_scheduler(name, sampler, scheduler, request):
    shipped = request.getfixturevalue(name)
    result = compared(shipped, shipped.model, sampler=sampler, scheduler=scheduler, steps=CALLS)
    print(f"\n{name} {scheduler} {result}")
    assert result.share < 0.75
    assert result.psnr > ALIKE


@pytest.mark.parametrize("order", [5, 8])
def test_a_multistep_sampler_of_high_order_is_all_evaluated(eps, order):
    """It swings: leaps gave 33 and 7 dB."""
    sampler = call("custom_sampler.SamplerLMS", order)
    plain, ours = (custom(eps, guider(eps, model), 12, sampler) for model in (eps.model, with_thg(eps.model)))
    assert torch.equal(ours, plain)
    assert f"order {order} magnifies what predictions miss" in report(ours)


@pytest.mark.parametrize("name", ["eps", "flow", "emoji"])
@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m"])
def test_without_guidance(name, sampler, request):
    """At scale 1, which distilled models are used with, the network leaps as well."""
    shipped = request.getfixturevalue(name)
    result = compared(shipped, shipped.model, sampler=sampler, steps=CALLS, cfg=1.0)
    print(f"\n{name} {sampler} {result}")
    assert result.share < 0.7
    assert result.psnr > ALIKE


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m"])
def test_a_flux_with_distilled_guidance(flux, sampler):
    result = compared(flux, flux.model, sampler=sampler, scheduler="simple", steps=20)
    print(f"\nflux {sampler} {result}")
    assert set(result.plain.calls) == {1}, "one branch"
    assert result.share < 0.7
    assert result.error < 0.01


def third_party(model, x, sigmas, extra_args=None, callback=None, disable=None):
    """Euler's method in the way of other packs (RES4LYF): it looks at the model's parts, its device, its conditions and
    its configuration, and writes into the options and into its state."""
    inner = model.inner_model.inner_model
    x = x.to(inner.device).clone()
    assert model.inner_model.conds["positive"]
    assert inner.diffusion_model is not None
    assert model.inner_model.model_patcher.model.model_config.unet_config["in_channels"] == 4
    assert isinstance(inner.model_sampling, EPS)
    assert torch.equal(inner.process_latent_in(torch.ones(1)), torch.ones(1))
    assert model.inner_model.cfg == 5.0
    extra_args["model_options"].setdefault("transformer_options", {})["sample_sigmas"] = sigmas
    assert model.inner_model.model_patcher.get_model_object("latent_format").latent_channels
    sigma_max = inner.model_sampling.sigma_max.to(inner.device)
    for now, after in zip(sigmas[:-1].double(), sigmas[1:].double(), strict=True):
        assert now <= 1.01 * sigma_max
        denoised = model(x, now.float().reshape(1), **extra_args)
        x.copy_(denoised + after / now * (x - denoised))
    return x


def test_a_sampler_of_another_pack(eps):
    sampler = comfy.samplers.KSAMPLER(third_party)
    plain, ours = (custom(eps, guider(eps, model), CALLS, sampler) for model in (eps.model, with_thg(eps.model)))
    assert strip(ours).count("●") < 0.7 * CALLS
    assert estimate(ours) < 0.02
    assert psnr(eps.decode(ours), eps.decode(plain)) > ALIKE
    of_euler = custom(eps, guider(eps, with_thg(eps.model)), CALLS)
    assert torch.allclose(ours, of_euler, atol=1e-4), "it is corrected as euler is"
