"""Every sampler and every scheduler of ComfyUI's lists: the evaluations are saved, and the picture stays the same."""

import comfy.samplers
import pytest
from sampling import ALL_SAMPLERS, CFG, ksampler, psnr, report, with_thg

STEPS = 30
NOISE = ("ancestral", "sde", "ddpm", "lcm", "seeds", "sa_solver")
ADAPTIVE = ("dpm_adaptive",)


def floor(sampler):
    """The least PSNR to plain guidance, in dB, of pictures with 65 % of the evaluations."""
    return 20 if any(kind in sampler for kind in NOISE) else 35


def cfg(shipped, sampler):
    return 1.6 if "cfg_pp" in sampler else CFG[shipped.name]  # as CFG++ is meant to be used


@pytest.mark.parametrize("sampler", [name for name in ALL_SAMPLERS if name not in ADAPTIVE])
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_each_sampler(name, sampler, request):
    shipped = request.getfixturevalue(name)
    scale = cfg(shipped, sampler)
    plain = ksampler(shipped, shipped.model, sampler, steps=STEPS, cfg=scale)
    result = ksampler(shipped, with_thg(shipped.model), sampler, steps=STEPS, cfg=scale)
    calls = sum(plain.calls) // 2
    assert sum(result.calls) == round(1.3 * calls), "the plan was not followed"
    assert f"{sum(result.calls)} network evaluations instead of {2 * calls}" in report(result.latents)
    found = psnr(result.pictures, plain.pictures)
    print(f"{name} {sampler} {found:.1f}")
    assert found > floor(sampler)


@pytest.mark.parametrize("scheduler", comfy.samplers.SCHEDULER_NAMES)
def test_each_scheduler(eps, scheduler):
    plain = ksampler(eps, eps.model, "dpmpp_2m", scheduler, STEPS)
    result = ksampler(eps, with_thg(eps.model), "dpmpp_2m", scheduler, STEPS)
    assert sum(result.calls) == round(0.65 * sum(plain.calls))
    assert psnr(result.pictures, plain.pictures) > 35
