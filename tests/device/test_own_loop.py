"""thg.sample and thg.GuidedDenoiser on an accelerator: no operation mixes devices, and the numbers are the CPU's."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thg
from tests.device.accelerator import NAME, ToyTensor, counted_waits
from tests.pipelines.families.stable_diffusion import sd15
from thg.ode import ddim

STEPS = 8
PLAN = thg.Plan(STEPS, (0, 1, 3, 5, 7), corrector=0.8)


class OnDevice:
    """A tiny U-Net as a denoiser of one's own."""

    def __init__(self, device: str) -> None:
        case = sd15()
        given = case.inputs((0,))
        self.unet = case.pipe.unet.to(device)
        self.words = [given[name].to(device) for name in ("negative_prompt_embeds", "prompt_embeds")]
        self.x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0)).to(device)

    def __call__(self, x: Tensor, t: float, conditional: bool, /) -> Tensor:
        return self.unet(x, t, encoder_hidden_states=self.words[conditional]).sample

    def denoise(self, x: Tensor, sigma: Tensor, *, cond: int) -> Tensor:
        return x - sigma.reshape(-1, 1, 1, 1) * self(x, 500.0, bool(cond))


def sampled(device: str) -> Tensor:
    model = OnDevice(device)
    schedule = thg.Schedule.vp(STEPS)
    return thg.sample(model, model.x, PLAN, schedule, ddim(), guidance_scale=4.0, check=False).x


def inside_a_sampler(device: str) -> Tensor:
    model = OnDevice(device)
    sigmas = torch.linspace(4.0, 0.0, STEPS + 1)
    guided = thg.GuidedDenoiser(model.denoise, PLAN, sigmas=sigmas)
    x = 4 * model.x
    with torch.no_grad():
        for sigma, after in zip(sigmas.tolist(), sigmas.tolist()[1:], strict=False):
            given = torch.full((1,), sigma).to(device)
            found = guided(x, given, cond=1, uncond=0, cond_scale=4.0)
            x = x + (x - found) / sigma * (after - sigma)
    return x


@pytest.mark.parametrize("run", [sampled, inside_a_sampler])
def test_the_numbers_are_those_of_the_cpu(run):
    on_device = run(NAME)
    assert isinstance(on_device, ToyTensor)
    assert torch.allclose(on_device.host, run("cpu"), rtol=1e-4, atol=1e-5)


def test_the_loop_of_sample_does_not_wait():
    model = OnDevice(NAME)
    seen = []
    with counted_waits() as waits:

        def denoiser(x, t, conditional, /):
            seen.append(sum(waits.values()))
            return model(x, t, conditional)

        thg.sample(denoiser, model.x, PLAN, thg.Schedule.vp(STEPS), ddim(), guidance_scale=4.0, check=False)
    assert len(set(seen[2:])) == 1, "the host waits between the steps"
