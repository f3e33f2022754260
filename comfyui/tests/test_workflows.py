"""The ways in which people use sampler nodes: parts of a run, a picture to start from, masks, regions, and so on."""

import re

import comfy.controlnet
import comfy.ldm.modules.attention
import comfy.samplers
import comfy.sd
import nodes
import pytest
import torch
from comfy.cldm.cldm import ControlNet
from pack.session import SETTLING
from sampling import CFG, PROMPTS, call, compared, custom, estimate, guider, ksampler, psnr, report, strip, with_thg
from shipped import CPU, UNET, Operations

STEPS = 30
ALIKE = 36  # dB
SHARE = 0.65


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_a_run_in_two_parts(name, request):
    shipped = request.getfixturevalue(name)
    prompt, empty = shipped.encode(PROMPTS[0]), shipped.encode("")

    def run(model):
        latent, texts = shipped.empty(), []
        for first, last, noise, leave in ((0, 12, "enable", "enable"), (12, STEPS, "disable", "disable")):
            arguments = (prompt, empty, latent, first, last, leave)
            (latent,) = nodes.KSamplerAdvanced().sample(
                model, noise, 0, STEPS, CFG[name], "euler", "normal", *arguments
            )
            texts.append(report(latent["samples"]))
        return shipped.decode(latent["samples"]), texts

    plain, _ = run(shipped.model)
    pictures, texts = run(with_thg(shipped.model))
    assert "of 12 calls" in texts[0]
    assert "of 18 calls" in texts[1]
    assert psnr(pictures, plain) > ALIKE


def test_custom_samplers(eps):
    prompt, empty = eps.encode(PROMPTS[0]), eps.encode("")
    sigmas = comfy.samplers.calculate_sigmas(eps.model.get_model_object("model_sampling"), "karras", STEPS)
    sampler = comfy.samplers.sampler_object("dpmpp_2m")

    def simple(model):
        arguments = (model, True, 0, 5.0, prompt, empty, sampler, sigmas, eps.empty())
        return call("custom_sampler.SamplerCustom", *arguments)["samples"]

    def advanced(model):
        return custom(eps, guider(eps, model), STEPS, sampler)

    for run in (simple, advanced):
        plain, ours = run(eps.model), run(with_thg(eps.model))
        assert re.search("at 1[4-8] of 30 calls", report(ours))
        assert psnr(eps.decode(ours), eps.decode(plain)) > ALIKE


@pytest.mark.parametrize("name", ["eps", "flow", "emoji"])
def test_a_batch(name, request):
    shipped = request.getfixturevalue(name)
    result = compared(shipped, shipped.model, steps=STEPS, batch=3)
    assert result.psnr > ALIKE
    assert result.share < SHARE


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_from_a_picture_and_with_a_mask(name, request):
    shipped = request.getfixturevalue(name)
    start = ksampler(shipped, shipped.model, seed=1, steps=10).latents
    mask = torch.zeros(1, 1, 8, 8)
    mask[..., 4:] = 1
    for latent in ({"samples": start}, {"samples": start, "noise_mask": mask}):
        result = compared(shipped, shipped.model, steps=STEPS, denoise=0.6, latent=latent)
        assert result.psnr > ALIKE
        assert result.share < SHARE
    assert psnr(result.ours.latents[..., :3], start[..., :3]) > 60, "what the mask keeps"


def test_regions(eps):
    left = nodes.ConditioningSetArea().append(eps.encode(PROMPTS[0]), 32, 64, 0, 0, 1.0)[0]
    right = nodes.ConditioningSetMask().append(eps.encode(PROMPTS[1]), torch.ones(1, 8, 8).triu(), "default", 1.0)[0]
    result = compared(eps, eps.model, steps=STEPS, positive=left + right + eps.encode(""))
    assert result.psnr > ALIKE
    assert result.share < SHARE


def masked(condition):
    return nodes.ConditioningSetMask().append(condition, torch.ones(1, 64, 64), "default", 1.0)[0]


def with_area(condition):
    return nodes.ConditioningSetAreaPercentage().append(condition, 1.0, 0.9, 0.0, 0.0, 1.0)[0]


@pytest.mark.parametrize("whole", [list, masked, with_area])
@pytest.mark.parametrize("name", ["eps", "flow"])
def test_conditions_that_are_combined_are_all_evaluated(name, whole, request):
    """A boot or a dress: leaps that were 0.5 % off made the other one (11 dB)."""
    shipped = request.getfixturevalue(name)
    prompts = whole(shipped.encode(PROMPTS[0])) + whole(shipped.encode(PROMPTS[1]))
    result = compared(shipped, shipped.model, steps=12, positive=prompts)
    assert torch.equal(result.ours.latents, result.plain.latents)
    assert "several conditions are combined" in report(result.ours.latents)


@pytest.mark.parametrize("share", [0.3, 0.55])
def test_a_prompt_that_changes_during_the_run_is_evaluated_anew(eps, share):
    first = nodes.ConditioningSetTimestepRange().set_range(eps.encode(PROMPTS[0]), 0.0, share)[0]
    second = nodes.ConditioningSetTimestepRange().set_range(eps.encode(PROMPTS[1]), share, 1.0)[0]
    result = compared(eps, eps.model, steps=STEPS, positive=first + second)
    assert result.psnr > ALIKE
    schedule = eps.model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(schedule, "normal", STEPS)[:-1]
    change = int((sigmas > schedule.percent_to_sigma(share)).sum())
    assert strip(result.ours.latents)[change : change + SETTLING] == "●" * SETTLING
    assert estimate(result.ours.latents) > result.error / 10, "the estimate covers the whole run"


def test_a_prompt_that_changes_at_a_noise_level_of_the_run(flow):
    """There, and only there, both prompts count."""
    first = nodes.ConditioningSetTimestepRange().set_range(flow.encode(PROMPTS[0]), 0.0, 0.5)[0]
    second = nodes.ConditioningSetTimestepRange().set_range(flow.encode(PROMPTS[1]), 0.5, 1.0)[0]
    result = compared(flow, flow.model, scheduler="simple", steps=STEPS, positive=first + second)
    assert max(result.plain.calls) == 3, "two prompts and the negative one"
    assert result.psnr > ALIKE
    assert strip(result.ours.latents)[STEPS // 2 : STEPS // 2 + SETTLING] == "●" * SETTLING
    assert "○" in strip(result.ours.latents)


def test_a_change_after_which_no_calls_are_left_to_skip(eps):
    first = nodes.ConditioningSetTimestepRange().set_range(eps.encode(PROMPTS[0]), 0.0, 0.4)[0]
    second = nodes.ConditioningSetTimestepRange().set_range(eps.encode(PROMPTS[1]), 0.4, 1.0)[0]
    result = compared(eps, eps.model, steps=9, positive=first + second)
    assert torch.equal(result.ours.latents, result.plain.latents)
    assert "conditions or settings change within the run" in report(result.ours.latents)


class Adapter:
    """Adds to the output of an attention layer in a part of the run, with its settings in a list, as IPAdapter has."""

    def __init__(self, **settings):
        self.kwargs = [settings]

    def __call__(self, q, k, v, options):
        out = comfy.ldm.modules.attention.optimized_attention(q, k, v, options["n_heads"])
        (own,) = self.kwargs
        active = own["sigma_start"] >= float(options["sigmas"][0]) >= own["sigma_end"]
        return out + own["weight"] * active


def test_an_adapter_that_ends_early(eps):
    schedule = eps.model.get_model_object("model_sampling")
    end = schedule.percent_to_sigma(0.5)
    model = eps.model.clone()
    model.set_model_attn2_replace(Adapter(weight=4.0, sigma_start=1e9, sigma_end=end), "middle", 0)
    result = compared(eps, model, steps=STEPS)
    assert psnr(result.plain.pictures, ksampler(eps, eps.model, steps=STEPS).pictures) < 30, "it must matter"
    assert result.psnr > ALIKE
    change = int((comfy.samplers.calculate_sigmas(schedule, "normal", STEPS)[:-1] >= end).sum())
    assert strip(result.ours.latents)[change : change + SETTLING] == "●" * SETTLING


def control_net():
    """A small ControlNet with weights at random, one that speaks up."""
    config = {key: value for key, value in UNET.items() if key not in ("out_channels", "transformer_depth_output")}
    torch.manual_seed(0)
    network = ControlNet(**config, hint_channels=3, operations=Operations, device=CPU)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(std=0.1)
    return comfy.controlnet.ControlNet(network, load_device=CPU)


def test_a_control_net_that_ends_early(eps):
    image = torch.rand(1, 64, 64, 3, generator=torch.Generator().manual_seed(0))
    conditions = (eps.encode(PROMPTS[0]), eps.encode(""))
    apply = nodes.ControlNetApplyAdvanced().apply_controlnet
    positive, negative = apply(*conditions, control_net(), image, 1.0, 0.0, 0.5)
    result = compared(eps, eps.model, steps=STEPS, positive=positive, negative=negative)
    assert psnr(result.plain.pictures, ksampler(eps, eps.model, steps=STEPS).pictures) < 30, "it must matter"
    assert result.psnr > ALIKE


def test_a_lora(eps):
    name = "middle_block.1.transformer_blocks.0.attn2.to_k"
    up, down = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) for shape in ((96, 4), (4, 64)))
    lora = {f"lora_unet_{name.replace('.', '_')}.lora_{end}.weight": w for end, w in (("up", up), ("down", down))}
    model, _ = comfy.sd.load_lora_for_models(eps.model, None, lora, 0.3, 0)
    result = compared(eps, model, steps=STEPS)
    assert psnr(result.plain.pictures, ksampler(eps, eps.model, steps=STEPS).pictures) < 50, "it must matter"
    assert result.psnr > ALIKE


@pytest.mark.parametrize("schedule", ["standard_static", "looped_uniform"])
def test_context_windows(eps, schedule):
    windows = (eps.model, 3, 1, schedule, 1, False, "pyramid", 0)
    model = call("context_windows.ContextWindowsManualNode", *windows, freenoise=False, causal_window_fix=False)
    result = compared(eps, model, steps=STEPS, batch=5)
    assert result.psnr > ALIKE


def test_a_part_of_the_run(eps):
    result = compared(
        eps, with_thg(eps.model, start_percent=0.3, end_percent=0.7), ksampler(eps, eps.model, steps=STEPS), steps=STEPS
    )
    marks = strip(result.ours.latents)
    assert marks.startswith("●" * 9)
    assert marks.endswith("●" * 9)
    assert "○" in marks
    assert result.psnr > ALIKE


def test_the_steps_of_a_list(eps):
    result = ksampler(eps, with_thg(eps.model, steps="0-4, 6, 9-28:3"), steps=STEPS)
    assert strip(result.latents) == "●●●●●○●○○" + "●○○" * 7
    heun = ksampler(eps, with_thg(eps.model, steps="0, 2"), "heun", steps=4)
    assert strip(heun.latents) == "●●○●●○○", "a line needs two evaluations"
    short = ksampler(eps, with_thg(eps.model, steps="90-99"), steps=4)
    assert strip(short.latents) == "●●●●"
    assert "none of the listed steps, 90 to 99, is in this run" in report(short.latents)
