"""`plan_for`: steps and plan for a number of evaluations."""

import pytest
import torch
from diffusers import (
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    HeunDiscreteScheduler,
    PNDMScheduler,
)

import thg
from tests.calibrate.pipelines import stable_diffusion, stable_diffusion_3
from thg.ode.mixture import GaussianMixture


def spent(pipe, nfe, **settings):
    """Steps, and the evaluations of a run with them."""
    steps, planner = thg.plan_for(pipe, nfe, **settings)
    with thg.enabled(pipe, planner):
        pipe("a bag", num_inference_steps=steps, output_type="latent", **settings)
        return steps, thg.summary(pipe).nfe


@pytest.mark.parametrize(
    "scheduler",
    [
        EulerDiscreteScheduler,
        DPMSolverMultistepScheduler,
        HeunDiscreteScheduler,
        PNDMScheduler,
        EulerAncestralDiscreteScheduler,
    ],
)
def test_a_run_spends_what_was_asked_for(scheduler):
    pipe = stable_diffusion()
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    steps, nfe = spent(pipe, 30)
    assert 28 <= nfe <= 30
    assert steps > 15 or scheduler in (HeunDiscreteScheduler, EulerAncestralDiscreteScheduler)


def test_the_scheduler_of_the_pipeline_is_left_alone():
    pipe = stable_diffusion()
    pipe.scheduler.set_timesteps(7)
    thg.plan_for(pipe, 30)
    assert len(pipe.scheduler.timesteps) == 7


def test_more_evaluations_allow_more_steps():
    pipe = stable_diffusion()
    assert [thg.plan_for(pipe, nfe, guidance_scale=5.0)[0] for nfe in (24, 30, 40)] == [60, 75, 100]
    assert thg.plan_for(pipe, 24, guidance_scale=1.0)[0] == 120
    pipe.scheduler = EulerAncestralDiscreteScheduler.from_config(pipe.scheduler.config)
    assert thg.plan_for(pipe, 40, guidance_scale=5.0)[0] == 20, "where noise is added, everything is evaluated"


def test_a_flow_pipeline_runs_with_it():
    pipe = stable_diffusion_3()
    pipe.set_progress_bar_config(disable=True)
    steps, nfe = spent(pipe, 30, guidance_scale=4.0)
    assert steps > 15
    assert nfe == 30


@pytest.mark.parametrize("nfe", [0.65, True, 1, "40"])
def test_what_is_no_number_of_evaluations_is_refused(nfe):
    with pytest.raises(thg.PlanError, match="nfe must be a number of evaluations such as 40"):
        thg.plan_for(stable_diffusion(), nfe)


def test_a_pipeline_without_a_scheduler_is_refused():
    with pytest.raises(thg.UnsupportedPipelineError, match="has no scheduler with set_timesteps"):
        thg.plan_for(object(), 40)


def test_an_own_network_has_a_schedule():
    steps, planner = thg.plan_for(thg.Schedule.vp, 40, guidance_scale=3.0)
    assert steps == 100
    schedule = thg.Schedule.vp(steps)
    network = GaussianMixture.random(dimension=4).denoiser(schedule, 0)
    x = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert thg.sample(network, x, planner, schedule, guidance_scale=3.0).nfe == 40
    assert thg.plan_for(lambda steps: thg.Schedule.flow(steps, time=(1, 0)), 24, guidance_scale=1.0)[0] == 120
