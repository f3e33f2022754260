"""Every sampler and every scheduler of ComfyUI's lists: the evaluations are saved, and the picture stays the same."""

import comfy.samplers
import pytest
from pack.sampler import DryRun
from sampling import ALL_SAMPLERS, CFG, compared, ksampler, psnr, report, strip, with_thg
from shipped import CPU

STEPS = 30
NOISE = ("ancestral", "sde", "ddpm", "lcm", "seeds", "sa_solver")  # in their names
PLAIN = ("dpm_adaptive", *(name for name in ALL_SAMPLERS if "cfg_pp" in name and "ancestral" in name))
SAVING = [name for name in ALL_SAMPLERS if name not in PLAIN]


def floor(sampler):
    """The least PSNR of pictures to those of plain guidance, in dB."""
    return 20 if any(kind in sampler for kind in NOISE) else 30


def cfg(shipped, sampler):
    return 1.6 if "cfg_pp" in sampler else CFG[shipped.name]  # as CFG++ is meant to be used


@pytest.mark.parametrize("sampler", SAVING)
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_each_sampler(name, sampler, request):
    shipped = request.getfixturevalue(name)
    scale = cfg(shipped, sampler)
    plain = ksampler(shipped, shipped.model, sampler, steps=STEPS, cfg=scale)
    result = ksampler(shipped, with_thg(shipped.model), sampler, steps=STEPS, cfg=scale)
    marks = strip(result.latents)
    assert len(plain.calls) == len(marks) == len(result.calls)
    assert result.calls == [2 if mark == "●" else 1 for mark in marks], "the report does not tell what was evaluated"
    assert f"{sum(result.calls)} network evaluations instead of {sum(plain.calls)}" in report(result.latents)
    found = psnr(result.pictures, plain.pictures)
    print(f"\n{name} {sampler} {sum(result.calls)}/{sum(plain.calls)} {found:.1f} dB")
    assert sum(result.calls) < (0.9 if "cfg_pp" in sampler else 0.8) * sum(plain.calls)
    assert found > floor(sampler)


@pytest.mark.parametrize("sampler", PLAIN)
def test_the_others_run_as_plain_guidance_and_say_why(eps, sampler):
    scale = cfg(eps, sampler)
    plain = ksampler(eps, eps.model, sampler, steps=5, cfg=scale)
    result = ksampler(eps, with_thg(eps.model), sampler, steps=5, cfg=scale)
    assert result.latents.equal(plain.latents)
    assert "nothing was saved" in report(result.latents) or "plain" in report(result.latents)


@pytest.mark.parametrize("sampler", SAVING)
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_each_call_is_known_before_the_run(name, sampler, request):
    shipped = request.getfixturevalue(name)
    schedule, seen = shipped.model.get_model_object("model_sampling"), []

    def watch(executor, x, sigma, *args):
        seen.append(float(sigma[0]))
        return executor(x, sigma, *args)

    model = shipped.model.clone()
    model.add_wrapper("predict_noise", watch)
    ksampler(shipped, model, sampler, steps=5)
    sigmas = comfy.samplers.KSampler(model, 5, CPU, sampler, "normal", 1.0).sigmas
    calls, run = DryRun(comfy.samplers.sampler_object(sampler), sigmas, schedule, CFG[name], 0).run()
    assert calls.sigmas == tuple(seen)
    assert run.adds_noise == any(kind in sampler for kind in NOISE)
    assert (run.response is None) == run.adds_noise


@pytest.mark.parametrize("scheduler", comfy.samplers.SCHEDULER_NAMES)
def test_each_scheduler(eps, scheduler):
    result = compared(eps, eps.model, sampler="dpmpp_2m", scheduler=scheduler, steps=STEPS)
    print(f"\n{scheduler} {result.share:.2f} {result.psnr:.1f} dB")
    assert result.share < 0.8
    assert result.psnr > 30
