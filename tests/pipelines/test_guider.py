"""TortoiseHareGuidance: by itself, saved and loaded, and in a modular pipeline with the shipped flow model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import ClassifierFreeGuidance, StableDiffusion3AutoBlocks
from diffusers.modular_pipelines import BlockState

import thg

STEPS = 8


def walk(guider, steps=STEPS, condition=lambda i: float(i), unconditional=lambda i: 0.25 * i):
    """The guided outputs of a loop like that of modular pipelines, and the evaluations of each step."""
    results, counts = [], []
    for i in range(steps):
        guider.set_state(step=i, num_inference_steps=steps, timestep=torch.tensor(1000 - i))
        row = torch.tensor([[1.0, 2.0]])
        data = guider.prepare_inputs({"x": (condition(i) * row, unconditional(i) * row)})
        for batch in data:
            guider.prepare_models(torch.nn.Identity())
            batch.noise_pred = batch.x
            assert isinstance(batch, BlockState)
        counts.append(len(data))
        results.append(guider(data)[0][0, 0].item())
    return results, counts


def test_a_full_grid_is_classifier_free_guidance():
    plain, counts = walk(ClassifierFreeGuidance(guidance_scale=3.0))
    ours, own_counts = walk(thg.TortoiseHareGuidance(guidance_scale=3.0, nfe=1.0))
    assert ours == plain
    assert own_counts == counts == [2] * STEPS


def test_terms_on_a_line_are_predicted_exactly():
    plain, _ = walk(ClassifierFreeGuidance(guidance_scale=3.0))
    ours, counts = walk(thg.TortoiseHareGuidance(guidance_scale=3.0, plan=thg.Plan(STEPS, (0, 1, 4))))
    assert counts == [2, 2, 1, 1, 2, 1, 1, 1]
    assert ours == pytest.approx(plain)


@pytest.mark.parametrize("rescale", [0.0, 0.7])
def test_interval_and_rescale_and_a_second_run(rescale):
    guider = thg.TortoiseHareGuidance(
        guidance_scale=3.0, guidance_rescale=rescale, start=0.25, stop=0.75, plan=thg.Plan(STEPS, (0, 2, 4, 6))
    )
    _, counts = walk(guider)
    assert counts == [1, 1, 2, 1, 2, 1, 1, 1]  # the first guided step is evaluated, wherever it is
    assert walk(guider)[1] == counts
    guider.disable()
    assert walk(guider)[1] == [1] * STEPS


def test_a_run_that_stopped_on_its_way_leaves_nothing_behind():
    guider = thg.TortoiseHareGuidance(guidance_scale=3.0, nfe=0.75)
    expected = walk(guider, condition=lambda i: float(i * i))
    guider.set_state(step=0, num_inference_steps=STEPS, timestep=torch.tensor(1000))
    guider.set_state(step=1, num_inference_steps=STEPS, timestep=torch.tensor(999))
    assert walk(guider, condition=lambda i: float(i * i)) == expected


def test_its_configuration_round_trips(tmp_path):
    guider = thg.TortoiseHareGuidance(guidance_scale=4.5, stop=0.9, plan=thg.Plan(STEPS, (0, 3)))
    guider.save_pretrained(tmp_path)
    again = thg.TortoiseHareGuidance.from_pretrained(tmp_path)
    assert (again.guidance_scale, again._stop) == (4.5, 0.9)
    assert walk(again) == walk(guider)
    assert guider.new(guidance_scale=2.0).guidance_scale == 2.0


@pytest.mark.parametrize("plan", [None, thg.within(0.05), thg.tapered(0.5), thg.uniform(every=2), "sd15", 0.5, "3%"])
def test_a_planner_round_trips_too(tmp_path, plan):
    guider = thg.TortoiseHareGuidance(plan=plan)
    guider.save_pretrained(tmp_path)
    assert thg.TortoiseHareGuidance.from_pretrained(tmp_path)._maker == guider._maker


def test_the_default_is_that_of_enable():
    assert thg.TortoiseHareGuidance()._maker.planner == thg.within(0.01)
    assert walk(thg.TortoiseHareGuidance(3.0))[1] == [2] * STEPS  # without a scheduler nothing can be predicted


def test_a_planner_that_no_file_can_hold_is_named(tmp_path):
    class Own:
        def plan(self, run):
            return thg.Plan(run.steps, (0,))

    thg.TortoiseHareGuidance(plan=Own()).save_pretrained(tmp_path)
    with pytest.raises(thg.PlanError, match="a Own cannot be loaded from a guider's configuration; pass it again"):
        thg.TortoiseHareGuidance.from_pretrained(tmp_path)


CALL = {"num_inference_steps": STEPS, "output_type": "np"}


@pytest.fixture(scope="module")
def source():
    pipe = thg.shipped_pipeline("flow")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def modular(source, guider):
    """A picture by a modular pipeline with these components."""
    pipe = StableDiffusion3AutoBlocks().init_pipeline()
    parts = {k: v for k, v in source.components.items() if v is not None and k in pipe.component_names}
    pipe.update_components(**parts, guider=guider)
    pipe.set_progress_bar_config(disable=True)
    noise = torch.Generator().manual_seed(0)
    size = {"height": 32, "width": 32}
    return np.asarray(pipe(prompt="a bag", negative_prompt="", generator=noise, output="images", **size, **CALL))


def enabled(source, plan):
    """The same by the pipeline itself."""
    with thg.enabled(source, plan):
        return source("a bag", guidance_scale=4.0, generator=torch.Generator().manual_seed(0), **CALL).images


def test_in_a_modular_pipeline_it_equals_enable(source):
    plain = modular(source, ClassifierFreeGuidance(guidance_scale=4.0))
    coarse = thg.uniform(nfe=0.75).plan(thg.plans.RunInfo.of(STEPS)).coarse
    fixed, corrected = (thg.Plan(STEPS, coarse, corrector=corrector) for corrector in (0.0, 0.85))
    found = []
    for plan, settings in ((fixed, {"plan": fixed}), (corrected, {"plan": corrected, "scheduler": source.scheduler})):
        found.append(modular(source, thg.TortoiseHareGuidance(guidance_scale=4.0, **settings)))
        np.testing.assert_allclose(found[-1], enabled(source, plan), atol=1e-4)
        assert np.abs(found[-1] - plain).max() > 1e-4
    assert np.abs(found[0] - found[1]).max() > 1e-4  # the corrector acts


def test_the_whole_network_leaps_as_with_enable(source):
    """A denoising loop of diffusers runs no network for a step without batches."""
    guider = thg.TortoiseHareGuidance(4.0, plan=thg.tapered(0.75), scheduler=source.scheduler)
    np.testing.assert_allclose(modular(source, guider), enabled(source, thg.tapered(0.75)), atol=1e-4)


def test_a_modular_pipeline_is_enabled_like_others(source):
    pipe = StableDiffusion3AutoBlocks().init_pipeline()
    parts = {k: v for k, v in source.components.items() if v is not None and k in pipe.component_names}
    pipe.update_components(**parts, guider=ClassifierFreeGuidance(guidance_scale=4.0))
    pipe.set_progress_bar_config(disable=True)

    def picture():
        noise = torch.Generator().manual_seed(0)
        call = {"height": 32, "width": 32, "num_inference_steps": 12, "output_type": "np"}
        return np.asarray(pipe(prompt="a bag", negative_prompt="", generator=noise, output="images", **call))

    plain = picture()
    thg.enable(pipe, thg.tapered(0.75))
    fewer = picture()
    summary = thg.summary(pipe)
    assert (summary.nfe, summary.cfg_nfe) == (18, 24)
    assert 0 < np.abs(fewer - plain).max() < 0.5
    np.testing.assert_array_equal(picture(), fewer)
    thg.disable(pipe)
    np.testing.assert_array_equal(picture(), plain)
