"""An enabled pipeline is `thg.sample` on the same plan: Algorithm 1 and the predictor, as the core integrates them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler
from torch import Tensor

import thg
from tests.pipelines.families import FAMILIES, GUIDANCE, Case
from tests.solver_like import solver_like
from thg.ode.integrate import Form, sample
from thg.ode.schedulers import read_schedule

STEPS = 10
COARSE = (0, 1, 2, 5, 7, 8)
HELD = {
    "plain CFG": thg.Plan(STEPS, range(STEPS), hare_order=1),
    "held": thg.Plan(STEPS, COARSE, hare_order=1),
    "held with cutoff": thg.Plan(STEPS, COARSE, cutoff=6, hare_order=1),
    "held with boost": thg.Plan(STEPS, COARSE, boost=1.2, hare_order=1),
    "held with cutoff and boost": thg.Plan(STEPS, (0, 3, 4), cutoff=7, boost=0.9, hare_order=1),
}
EXTRAPOLATED = {
    "extrapolated": thg.Plan(STEPS, COARSE),
    "extrapolated with cutoff and boost": thg.Plan(STEPS, COARSE, cutoff=6, boost=1.1),
}


class Setting(NamedTuple):
    """A pipeline, the arguments of its call, and its network as the core calls it."""

    case: Case
    arguments: dict[str, Any]
    noise: Tensor
    denoiser: Callable[[Tensor, float, bool], Tensor]


def sd15() -> Setting:
    case = FAMILIES["SD 1.5"]()
    given = case.inputs((0,))

    def denoiser(x: Tensor, t: float, conditional: bool) -> Tensor:
        embeds = given["prompt_embeds" if conditional else "negative_prompt_embeds"]
        return case.pipe.unet(x, t, encoder_hidden_states=embeds).sample

    return Setting(case, {"guidance_scale": GUIDANCE}, _noise(1, 4, 8, 8), denoiser)


def sd15_with(scheduler: type) -> Setting:
    setting = sd15()
    setting.case.pipe.scheduler = scheduler.from_config(setting.case.pipe.scheduler.config)
    return setting


def sd3() -> Setting:
    """Flow Euler, both branches in one call."""
    case = FAMILIES["SD3"]()
    given = case.inputs((0,))

    def denoiser(x: Tensor, t: float, conditional: bool) -> Tensor:
        negative = "" if conditional else "negative_"
        return case.pipe.transformer(
            hidden_states=x,
            timestep=torch.tensor([t]),
            encoder_hidden_states=given[f"{negative}prompt_embeds"],
            pooled_projections=given[f"{negative}pooled_prompt_embeds"],
        ).sample

    return Setting(case, {"guidance_scale": GUIDANCE}, _noise(1, 4, 8, 8), denoiser)


def flux() -> Setting:
    """Flow Euler, one call for each branch."""
    case = FAMILIES["Flux with true CFG"]()
    given = case.inputs((0,))
    text_ids = torch.zeros(given["prompt_embeds"].shape[1], 3)
    image_ids = case.pipe._prepare_latent_image_ids(1, 4, 4, "cpu", torch.float32)

    def denoiser(x: Tensor, t: float, conditional: bool) -> Tensor:
        negative = "" if conditional else "negative_"
        return case.pipe.transformer(
            hidden_states=x,
            timestep=torch.tensor([t]) / 1000,
            encoder_hidden_states=given[f"{negative}prompt_embeds"],
            pooled_projections=given[f"{negative}pooled_prompt_embeds"],
            txt_ids=text_ids,
            img_ids=image_ids,
        ).sample

    return Setting(case, {"true_cfg_scale": GUIDANCE}, _noise(1, 16, 16), denoiser)


def _noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


FIRST_ORDER = {"DDIM": sd15, "flow Euler": sd3, "flow Euler in two calls": flux}
OTHERS = {
    "Euler in sigma": lambda: sd15_with(EulerDiscreteScheduler),
    "DPM++ 2M": lambda: sd15_with(DPMSolverMultistepScheduler),
}


@cache
def setting_of(name: str) -> Setting:
    return {**FIRST_ORDER, **OTHERS}[name]()


def assert_pipeline_is_reference(setting: Setting, plan: Any, form: Form) -> None:
    pipe = setting.case.pipe
    with thg.enabled(pipe, plan):
        found = setting.case.run(steps=STEPS, latents=setting.noise, **setting.arguments)
        nfe = thg.summary(pipe).nfe
    scheduler = pipe.scheduler  # as the run has left it: with the run's time steps
    start = setting.noise * getattr(scheduler, "init_noise_sigma", 1.0)
    with torch.no_grad():
        expected = sample(
            setting.denoiser,
            start,
            plan,
            read_schedule(scheduler),
            solver_like(scheduler),
            guidance_scale=GUIDANCE,
            form=form,
            check=False,  # random weights
        )
    assert nfe == expected.nfe == getattr(plan, "nfe", nfe)
    assert float((found - expected.x).norm() / expected.x.norm()) < 1e-5


@pytest.mark.parametrize("form", ["two-state", "predictor"])
@pytest.mark.parametrize("plan", HELD.values(), ids=HELD)
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_first_order_pipeline_is_algorithm_1(name, plan, form):
    assert_pipeline_is_reference(setting_of(name), plan, form)


@pytest.mark.parametrize("plan", EXTRAPOLATED.values(), ids=EXTRAPOLATED)
@pytest.mark.parametrize("name", FIRST_ORDER)
def test_a_first_order_pipeline_is_the_predictor(name, plan):
    assert_pipeline_is_reference(setting_of(name), plan, "predictor")


@pytest.mark.parametrize("plan", [*HELD.values(), *EXTRAPOLATED.values()], ids=[*HELD, *EXTRAPOLATED])
@pytest.mark.parametrize("name", OTHERS)
def test_other_schedulers_are_the_predictor_too(name, plan):
    assert_pipeline_is_reference(setting_of(name), plan, "predictor")
