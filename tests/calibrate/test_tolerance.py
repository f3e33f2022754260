"""Plans by error from a profile, on the shipped models: seeds that neither profile nor constant has seen."""

import pytest
import torch

import thg
from thg.models import SHIPPED
from thg.models.garments import mixed_prompts
from thg.profiles.profile import shipped_profiles

SAMPLES, STEPS, HELD_OUT = 4, 20, 7_000_000


def latents(pipe, name):
    seeds = [torch.Generator().manual_seed(HELD_OUT + k) for k in range(SAMPLES)]
    call = {"prompt": mixed_prompts(SAMPLES), "generator": seeds, "num_inference_steps": STEPS}
    return pipe(**call, guidance_scale=SHIPPED[name].guidance_scale, output_type="latent", **SHIPPED[name].call).images


@pytest.mark.parametrize("name", ["eps", "flow"])
def test_held_out_runs_stay_within_the_tolerance(name):
    pipe, profile = thg.shipped_pipeline(name), thg.Profile.load(shipped_profiles()[name])
    pipe.set_progress_bar_config(disable=True)
    plain, spent = latents(pipe, name), {}
    for error in (0.005, 0.02):
        with thg.enabled(pipe, profile.planner(error=error)):
            wrong = (latents(pipe, name) - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
            spent[error] = thg.summary(pipe).nfe
        assert wrong.max() <= error
        assert wrong.max() > error / 20  # and no more was spent than it takes
    assert spent[0.02] < spent[0.005] < 2 * STEPS


def test_a_profile_alone_is_its_plan_for_the_default_tolerance():
    pipe, profile = thg.shipped_pipeline(), thg.Profile.load(shipped_profiles()["eps"])
    pipe.set_progress_bar_config(disable=True)
    plans = []
    for choice in (profile, profile.planner(error=0.01)):
        with thg.enabled(pipe, choice):
            pipe("a light dress", num_inference_steps=STEPS, guidance_scale=5.0, output_type="latent")
            plans.append(thg.summary(pipe).plan)
    assert plans[0] == plans[1]
