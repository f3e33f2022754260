"""What a run finds out at its first steps: the guidance scale, and when guidance begins. All runs are alike."""

from __future__ import annotations

from typing import Any

import diffusers
import pytest
import torch

import thg
from tests.pipelines import own_pipelines as own
from tests.pipelines.families import FAMILIES, Case
from tests.pipelines.families.stable_diffusion import sd15

LEAP = thg.uniform(every=2)


class Remembering:
    """A planner that remembers the scales it has planned for."""

    def __init__(self) -> None:
        self.scales: list[float | None] = []

    def plan(self, run: Any) -> thg.Plan:
        self.scales.append(run.guidance_scale)
        return LEAP.plan(run)


# -- the guidance scale


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_a_formula_that_adds_one_is_planned_and_estimated_with_its_w(scale: float) -> None:
    """Z-Image computes e_c + s (e_c - e_u): w = 1 + s, and guidance is on at s = 1."""
    case, planner = FAMILIES["Z-Image"](), Remembering()
    with thg.enabled(case.pipe, planner):
        case.run(guidance_scale=scale)
        summary = thg.summary(case.pipe)
    assert planner.scales[-1] == 1 + scale
    assert summary.checked.endswith(f"w = {1 + scale:g}")
    assert summary.nfe == summary.plan.nfe < summary.cfg_nfe
    assert summary.estimated_error is not None
    assert min(summary.estimated_error) > 0


@pytest.mark.parametrize("family", ["SD 1.5", "Wan 2.1"])
def test_the_stated_scale_is_used_as_it_is_stated(family: str) -> None:
    case, planner = FAMILIES[family](), Remembering()
    with thg.enabled(case.pipe, planner):
        case.run(guidance_scale=4.3217)
    assert planner.scales == [4.3217]


def test_a_scale_that_nobody_states_is_measured() -> None:
    case, planner = FAMILIES["HunyuanVideo 1.5"](), Remembering()
    with thg.enabled(case.pipe, planner):
        case.run()
    assert planner.scales[0] is None
    assert planner.scales[-1] == pytest.approx(case.pipe.guider.guidance_scale, abs=0.1)


def test_the_estimate_of_a_list_of_pictures_is_that_of_each() -> None:
    """Z-Image's network takes and returns a list: its entries are samples, and not tensors of one sample."""
    case = FAMILIES["Z-Image"]()
    found = []
    with thg.enabled(case.pipe, LEAP):
        for prompts in ((0, 1), (0,), (1,)):
            case.run(prompts=prompts, seeds=prompts)
            found.append(thg.summary(case.pipe).estimated_error)
    assert found[0] == pytest.approx(found[1] + found[2], rel=1e-3)


# -- the first run is as the later ones


@pytest.mark.parametrize("family", ["SD 1.5", "DiT", "Wan 2.1", "Z-Image"])
def test_a_boosted_first_leap_is_followed_in_the_first_run(family: str) -> None:
    case = FAMILIES[family]()
    boosted = thg.Plan(6, (0, 2, 3), boost=1.2, hare_order=1)
    with thg.enabled(case.pipe, boosted):
        first = case.run()
        assert thg.summary(case.pipe).note == ""
        assert thg.summary(case.pipe).nfe == boosted.nfe
        assert torch.equal(case.run(), first)
    with thg.enabled(case.pipe, thg.Plan(6, (0, 2, 3), hare_order=1)):
        assert not torch.equal(case.run(), first)


def test_a_boost_needs_a_pipeline_that_says_that_guidance_is_on() -> None:
    known: Any = thg.shipped_pipeline()
    known.set_progress_bar_config(disable=True)
    pipe = own.build(own.UncondFirst, known)
    channels, size = known.unet.config.in_channels, known.unet.config.sample_size
    noise = torch.randn(1, channels, size, size, generator=torch.Generator().manual_seed(0))
    arguments = (["a pale dress"], 5.0, 4, noise)
    plain = pipe(*arguments)
    with thg.enabled(pipe, thg.Plan(4, (0, 2), boost=1.2), layout=thg.Batched()):
        for _ in range(2):
            assert torch.equal(pipe(*arguments), plain)
            assert "does not say before it whether guidance is on" in thg.summary(pipe).note


# -- guidance that begins late


def late(case: Case, first: int, **arguments: Any) -> Any:
    """A run whose guidance is switched on after some steps."""
    embeds = case.inputs((0,))

    def switch_on(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
        if step == first - 1:
            pipe._guidance_scale = 5.0
            tensors["prompt_embeds"] = torch.cat([embeds["negative_prompt_embeds"], embeds["prompt_embeds"]])
        return tensors

    more = {"callback_on_step_end": switch_on, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    return case.run(guided=False, **more, **arguments)


@pytest.mark.parametrize(("budget", "spent"), [(10, 10), (16, 12), (9, 9)])
def test_a_count_of_evaluations_holds_for_the_whole_run(budget: int, spent: int) -> None:
    """Four of eight steps without guidance are four evaluations; the rest is for the others, as far as they need it."""
    case = sd15()
    with thg.enabled(case.pipe, thg.uniform(nfe=budget)):
        late(case, first=4, steps=8)
        summary = thg.summary(case.pipe)
    assert summary.finished
    assert summary.nfe == spent
    assert summary.evaluations[:5] == (1, 1, 1, 1, 2)


# -- more than one pass over the time steps


class InTwoPasses(diffusers.StableDiffusionPipeline):
    """Sets its time steps twice, the second time to some more; or once for both."""

    @torch.no_grad()
    def __call__(self, embeds: torch.Tensor, steps: int, more: int | None = 1) -> torch.Tensor:
        self._guidance_scale = 5.0
        for part in range(2):
            if part == 0 or more is not None:
                self.scheduler.set_timesteps(steps + part * (more or 0))
            x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
            for t in self.scheduler.timesteps:
                e_u, e_c = self.unet(torch.cat([x, x]), t, encoder_hidden_states=embeds).sample.chunk(2)
                x = self.scheduler.step(e_u + 5.0 * (e_c - e_u), t, x).prev_sample
        return x


def test_a_plan_that_does_not_fit_the_second_pass_says_so() -> None:
    case = sd15()
    pipe = InTwoPasses(**case.pipe.components, requires_safety_checker=False)
    pipe._guidance_rescale, pipe._cross_attention_kwargs = 0.0, None
    embeds = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    with thg.enabled(pipe, thg.Plan(6, (0, 3))):
        with pytest.raises(thg.PlanError, match="for 6 steps, but this run calls the network 7 times"):
            pipe(embeds, 6)
        assert not thg.summary(pipe).finished
        assert thg.summary(pipe).steps == 6


@pytest.mark.parametrize("more", [0, None])
def test_a_second_loop_over_the_time_steps_is_like_the_first(more: int | None) -> None:
    """Also if they are not set again, as in pipelines that make a long video part by part."""
    case = sd15()
    pipe = InTwoPasses(**case.pipe.components, requires_safety_checker=False)
    pipe._guidance_rescale, pipe._cross_attention_kwargs = 0.0, None
    embeds = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    with thg.enabled(pipe, LEAP):
        pipe(embeds, 6, more)
        summary = thg.summary(pipe)
    assert summary.note == ""
    assert summary.finished
    assert (summary.sections, summary.evaluations) == (2, (2, 1, 2, 1, 2, 1) * 2)


@pytest.mark.parametrize("wrong", [thg.Plan, thg.Profile, thg.Batched(), 3])
def test_what_is_not_a_plan_is_refused(wrong: Any) -> None:
    case = sd15()
    with pytest.raises(thg.PlanError, match="expected a plan, a planner such as"):
        thg.enable(case.pipe, wrong)
    thg.enable(case.pipe, LEAP)
    with pytest.raises(thg.PlanError, match="expected a plan, a planner such as"):
        thg.enable(case.pipe, thg.summary(case.pipe))  # type: ignore[arg-type]
    thg.disable(case.pipe)
