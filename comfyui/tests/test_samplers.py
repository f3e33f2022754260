"""Every sampler and every scheduler of ComfyUI's lists: the evaluations are saved, and the picture stays the same."""

import comfy.samplers
import pytest
from pack.sampler import DryRun
from sampling import ALL_SAMPLERS, CFG, compared, ksampler, psnr, report, strip, with_thg
from shipped import CPU

CALLS = 30  # of the denoiser in a run, about
NOISE = ("ancestral", "sde", "ddpm", "lcm", "seeds", "sa_solver")  # in their names
PLAIN = {name: "in its own formula" for name in ALL_SAMPLERS if "cfg_pp" in name and "ancestral" in name}
PLAIN["dpm_adaptive"] = "chooses its steps"
SAVING = [name for name in ALL_SAMPLERS if name not in PLAIN]
PAIRS = [("eps", name) for name in SAVING] + [("flow", name) for name in SAVING if not name.endswith("_gpu")]


def adds_noise(sampler):
    return any(kind in sampler for kind in NOISE)


def floor(sampler):
    """The least PSNR of pictures to those of plain guidance, in dB; pictures of other seeds are at about 10."""
    if sampler == "lcm":  # each step starts from new noise alone
        return 25
    if sampler.startswith("ipndm"):  # of order 4: an error of the term acts on four steps
        return 33
    return 28 if adds_noise(sampler) else 36


def cfg(shipped, sampler):
    return 1.6 if "cfg_pp" in sampler else CFG[shipped.name]  # as CFG++ is meant to be used


def known(shipped, sampler, steps):
    """What is known of a run before it starts."""
    sigmas = comfy.samplers.KSampler(shipped.model, steps, CPU, sampler, "normal", 1.0).sigmas
    schedule, chosen = shipped.model.get_model_object("model_sampling"), comfy.samplers.sampler_object(sampler)
    return DryRun(chosen, sigmas, schedule, cfg(shipped, sampler), 0).run()


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
    calls_per_step = round(known(shipped, sampler, 10)[1].steps / 10)
    given = {"sampler": sampler, "steps": CALLS // calls_per_step, "cfg": cfg(shipped, sampler)}
    calls, run = known(shipped, sampler, given["steps"])
    plain = ksampler(shipped, watched(shipped.model, seen), **given)
    assert calls.sigmas == tuple(seen), "each call is known before the run"
    assert run.adds_noise == adds_noise(sampler)
    assert (run.response is None) == run.adds_noise

    result = ksampler(shipped, with_thg(shipped.model), **given)
    marks = strip(result.latents)
    assert result.calls == [2 if mark == "●" else 1 for mark in marks], "the report does not tell what was evaluated"
    assert f"{sum(result.calls)} network evaluations instead of {sum(plain.calls)}" in report(result.latents)
    found = psnr(result.pictures, plain.pictures)
    print(f"\n{name} {sampler} {sum(result.calls)}/{sum(plain.calls)} {found:.1f} dB")
    assert sum(result.calls) < (0.95 if run.adds_noise else 0.93 if "cfg_pp" in sampler else 0.82) * sum(plain.calls)
    assert found > floor(sampler)


@pytest.mark.parametrize("sampler", ["euler_ancestral", "dpmpp_sde", "dpmpp_2m_sde", "dpmpp_3m_sde", "lcm"])
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_noise_with_other_seeds(name, sampler, request):
    """With some seeds, a small difference early in such a run leads to another picture."""
    shipped, steps = request.getfixturevalue(name), CALLS // 2 if sampler == "dpmpp_sde" else CALLS
    for seed in (1, 2):
        result = compared(shipped, shipped.model, sampler=sampler, steps=steps, seed=seed)
        print(f"\n{name} {sampler} seed {seed} {result.psnr:.1f} dB")
        assert result.psnr > floor(sampler)


@pytest.mark.parametrize("sampler", PLAIN)
def test_the_others_run_as_plain_guidance_and_say_why(eps, sampler):
    scale = cfg(eps, sampler)
    plain = ksampler(eps, eps.model, sampler, steps=5, cfg=scale)
    result = ksampler(eps, with_thg(eps.model), sampler, steps=5, cfg=scale)
    assert result.latents.equal(plain.latents)
    assert PLAIN[sampler] in report(result.latents)


@pytest.mark.parametrize("scheduler", comfy.samplers.SCHEDULER_NAMES)
def test_each_scheduler(eps, scheduler):
    result = compared(eps, eps.model, sampler="dpmpp_2m", scheduler=scheduler, steps=CALLS)
    print(f"\n{scheduler} {result.share:.2f} {result.psnr:.1f} dB")
    assert result.share < 0.8
    assert result.psnr > 36
