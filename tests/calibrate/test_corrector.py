"""The corrector inside a pipeline: equal to the reference integrator, and left out where it would be wrong."""

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DEISMultistepScheduler,
    DPMSolverMultistepScheduler,
    DPMSolverSinglestepScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    KDPM2DiscreteScheduler,
    LMSDiscreteScheduler,
    PNDMScheduler,
    UniPCMultistepScheduler,
)

import thg
from tests.calibrate.pipelines import stable_diffusion, stable_diffusion_3
from tests.calibrate.test_calibrate import denoiser_of
from tests.solver_like import solver_like
from thg.ode.integrate import sample
from thg.ode.schedulers import read_schedule

STEPS, SCALE, PROMPT = 12, 5.0, "a boot"
COARSE = (0, 1, 3, 6, 8, 11)
NOISE = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(1))


def latents(pipe, plan, **arguments):
    with thg.enabled(pipe, plan):
        result = pipe(
            PROMPT,
            latents=NOISE,
            num_inference_steps=STEPS,
            guidance_scale=SCALE,
            output_type="latent",
            generator=torch.Generator().manual_seed(0),
            **arguments,
        )
        return result.images, thg.summary(pipe)


def with_scheduler(cls, **settings):
    pipe = stable_diffusion()
    pipe.scheduler = cls.from_config(pipe.scheduler.config, **settings)
    return pipe


@pytest.mark.parametrize("hare_order", [1, 2])
@pytest.mark.parametrize(
    "scheduler",
    [
        DDIMScheduler,
        EulerDiscreteScheduler,
        LMSDiscreteScheduler,
        DPMSolverMultistepScheduler,
        DPMSolverSinglestepScheduler,
    ],
)
def test_it_is_the_corrector_of_the_reference_integrator(scheduler, hare_order):
    pipe = with_scheduler(scheduler)
    plan = thg.Plan(STEPS, COARSE, hare_order=hare_order, corrector=0.8)
    ours, summary = latents(pipe, plan)
    assert summary.note == ""
    assert summary.nfe == STEPS + len(COARSE)
    pipe.scheduler.set_timesteps(STEPS)
    schedule = read_schedule(pipe.scheduler)
    x = (NOISE * pipe.scheduler.init_noise_sigma).double()
    reference = sample(
        lambda x, t, conditional, /: denoiser_of(pipe, PROMPT)(x.float(), t, conditional),
        x,
        plan,
        schedule,
        solver_like(pipe.scheduler),
        guidance_scale=SCALE,
        check=False,  # random weights
    ).x
    uncorrected, _ = latents(pipe, thg.Plan(STEPS, COARSE, hare_order=hare_order))
    size = float((ours - uncorrected).norm())
    assert size > 1e-3
    assert float((ours - reference).norm()) < 0.02 * size


@pytest.mark.parametrize("scheduler", [UniPCMultistepScheduler, DEISMultistepScheduler])
def test_it_brings_other_linear_schedulers_closer_to_cfg(scheduler):
    pipe = with_scheduler(scheduler)
    full, _ = latents(pipe, thg.uniform(every=1))
    errors = [float((latents(pipe, thg.Plan(STEPS, COARSE, corrector=share))[0] - full).norm()) for share in (0.0, 0.8)]
    assert errors[1] < 0.8 * errors[0]


def test_a_flow_model_too():
    pipe = stable_diffusion_3()
    plan = thg.Plan(STEPS, COARSE, corrector=1.0)
    corrected, summary = latents(pipe, plan)
    assert summary.note == ""
    assert not torch.equal(corrected, latents(pipe, thg.Plan(STEPS, COARSE))[0])


@pytest.mark.parametrize(
    ("pipe", "arguments", "why"),
    [
        (lambda: with_scheduler(DDPMScheduler), {}, "DDPMScheduler adds noise at every step"),
        (lambda: with_scheduler(DDIMScheduler, clip_sample=True), {}, "not linear with this configuration"),
        (lambda: with_scheduler(DDIMScheduler), {"eta": 0.5}, "(eta above 0)"),
    ],
)
def test_where_it_would_be_wrong_the_run_goes_on_without_and_says_so(pipe, arguments, why):
    pipe = pipe()
    corrected, summary = latents(pipe, thg.Plan(STEPS, COARSE, corrector=0.8), **arguments)
    assert "the corrector was left out" in summary.note
    assert why in summary.note
    assert torch.equal(corrected, latents(pipe, thg.Plan(STEPS, COARSE), **arguments)[0])


@pytest.mark.parametrize("scheduler", [DDIMScheduler, PNDMScheduler, HeunDiscreteScheduler, KDPM2DiscreteScheduler])
def test_neither_the_formula_after_cfg_nor_the_calls_of_a_step_matter(scheduler):
    pipe = with_scheduler(scheduler)
    more = {"guidance_rescale": 0.3}
    full, summary = latents(pipe, thg.uniform(every=1), **more)
    calls = summary.steps
    errors = []
    for share in (0.0, 0.8):
        found, summary = latents(pipe, thg.uniform(nfe=0.75, corrector=share), **more)
        assert summary.note == ""
        assert summary.steps == calls
        errors.append(float((found - full).norm()))
    assert errors[1] < 0.8 * errors[0]


def test_the_scheduler_is_what_it_was_after_a_run():
    pipe = stable_diffusion()
    before, state = set(vars(pipe.scheduler)), torch.get_rng_state()
    latents(pipe, thg.Plan(STEPS, COARSE, corrector=0.8))
    added = {name for name, value in vars(pipe.scheduler).items() if "thg" in type(value).__module__}
    assert "step" not in set(vars(pipe.scheduler)) - before
    assert not added
    assert torch.equal(torch.get_rng_state(), state)  # noise of a measured scheduler is nobody else's
