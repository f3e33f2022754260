"""Pipelines that no table knows, with a given layout: it is checked in each run; plain CFG is the fallback."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, StableDiffusionPipeline
from torch import Tensor

import thg
from tests.pipelines import own_pipelines as own

WORDS = ["a dark ankle boot", "a pale dress"]
STEPS, W = 8, 5.0
LEAP = thg.uniform(every=2)
UNCOND_FIRST, COND_FIRST = thg.Batched(), thg.Batched(("cond", "uncond"))
CALLS = thg.Sequential()
THREE = thg.Batched(("cond", "other", "uncond"), ("other", "uncond"))


@pytest.fixture(scope="module")
def known() -> StableDiffusionPipeline:
    pipe = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def noise(known) -> Tensor:
    size = known.unet.config.sample_size
    return torch.randn(2, known.unet.config.in_channels, size, size, generator=torch.Generator().manual_seed(1))


def picture(pipe: StableDiffusionPipeline, noise: Tensor, **arguments: float) -> Tensor:
    """The known pipeline with the same numbers."""
    return pipe(
        WORDS, guidance_scale=W, num_inference_steps=STEPS, latents=noise, output_type="latent", **arguments
    ).images


@pytest.fixture(scope="module")
def expected(known, noise) -> dict[str, Tensor]:
    """What thg makes of the known pipeline, plain and rescaled."""
    with thg.enabled(known, LEAP):
        return {"": picture(known, noise), "rescaled": picture(known, noise, guidance_rescale=0.7)}


# the layout, what the check shows, and the picture of the known pipeline that it equals
CHECKED = {
    own.UncondFirst: (UNCOND_FIRST, "one call: uncond, cond, w = 5", ""),
    own.CondFirst: (COND_FIRST, "one call: cond, uncond, w = 5", ""),
    own.TwoCalls: (CALLS, "a call for each: cond, uncond, w = 5", ""),
    own.Keywords: (CALLS, "a call for each: cond, uncond, w = 5", ""),
    own.TimeFirst: (UNCOND_FIRST, "one call: uncond, cond, w = 5", ""),
    own.Packed: (UNCOND_FIRST, "one call: uncond, cond, w = 5", ""),
    own.LearnedVariance: (UNCOND_FIRST, "one call: uncond, cond, w = 5", ""),
    own.Rescaled: (UNCOND_FIRST, "one call: uncond, cond, w = 5, rescaled", "rescaled"),
    own.NormKeeping: (UNCOND_FIRST, "one call: uncond, cond, w = 5, rescaled", None),
    own.ThreeBranches: (THREE, "one call: cond, other, uncond, w = 5", None),
    own.OffInTheMiddle: (UNCOND_FIRST, "one call: uncond, cond, w = 5", None),
    own.Swapped: (COND_FIRST, "one call: cond, uncond, w = 5", ""),
}


@pytest.mark.parametrize("kind", CHECKED, ids=lambda kind: kind.__name__)
def test_a_given_layout_is_checked_and_followed(kind, known, noise, expected):
    pipe, (layout, words, same_as) = own.build(kind, known), CHECKED[kind]
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, thg.uniform(every=1), layout=layout):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert thg.summary(pipe).nfe == thg.summary(pipe).cfg_nfe
    with thg.enabled(pipe, LEAP, layout=layout):
        first = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
        assert torch.equal(pipe(WORDS, W, STEPS, noise), first)
    assert summary.checked == words
    assert f"layout: {words}" in str(summary)
    assert summary.note == ""
    assert summary.nfe < 0.85 * summary.cfg_nfe
    assert own.psnr(first, plain).min() > 20
    if same_as is not None:  # the same numbers in another order: the same result
        torch.testing.assert_close(first, expected[same_as], rtol=1e-4, atol=1e-4)
    assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)


def test_a_class_in_no_table_is_told_what_to_write(known):
    with pytest.raises(thg.UnsupportedPipelineError, match=r"does not know .* layout=thg.Batched\(\)") as error:
        thg.enable(own.build(own.UncondFirst, known), LEAP)
    assert "thg.within(0.01)), needs no layout" in str(error.value)


@pytest.mark.parametrize("given", ["batched", thg.Batched, ("uncond", "cond")])
def test_what_is_not_a_layout_is_refused(known, given):
    with pytest.raises(thg.UnsupportedPipelineError, match=r"layout must be thg.Batched\(\) or thg.Seq"):
        thg.enable(known, LEAP, layout=given)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: thg.Batched(predicted=("uncod",)), "'uncod' is not a branch that a leap can skip; these are 'uncond'"),
        (lambda: thg.Batched(predicted=("cond",)), "'cond' is not a branch that a leap can skip"),
        (lambda: thg.Batched(("uncond", "text")), "one of them 'cond'"),
        (lambda: thg.Batched(("cond", "cond")), "each branch of the batch once"),
        (lambda: thg.Batched(predicted=()), "predicted of thg.Batched must be a tuple of names"),
        (lambda: thg.Batched("cond"), "branches of thg.Batched must be a tuple of names, not 'cond'"),
        (lambda: thg.Sequential(branches=("uncond", "cond")), "the conditional output is needed first"),
        (lambda: thg.Sequential("transformer"), "denoisers of thg.Sequential must be a tuple of names"),
    ],
)
def test_a_layout_that_makes_no_sense_is_refused_at_once(make, why):
    with pytest.raises(thg.UnsupportedPipelineError, match=why):
        make()


def test_a_wrong_layout_is_noticed_before_it_does_harm(known, noise):
    pipe = own.build(own.CondFirst, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "everything was evaluated: branch 1 of 2 is its conditional one (w = 5)" in thg.summary(pipe).note
        assert thg.summary(pipe).nfe == thg.summary(pipe).cfg_nfe == 2 * STEPS


@pytest.mark.parametrize(
    ("kind", "layout", "why"),
    [
        (own.NotLinear, UNCOND_FIRST, "no combination of its network outputs"),
        (own.LooksFirst, UNCOND_FIRST, "more than once between two steps of its scheduler"),
        (own.LooksFirstTwoCalls, CALLS, "branch 2 of 3 is its conditional one"),
        (own.Alternating, UNCOND_FIRST, "no combination of its network outputs"),
        (own.NeedsBoth, UNCOND_FIRST, "does not run with a part of its branches"),
        (own.StepsByItself, UNCOND_FIRST, "more than once between two steps of its scheduler"),
    ],
)
def test_what_is_more_than_guidance_runs_as_plain_cfg(known, noise, kind, layout, why):
    pipe = own.build(kind, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=layout):
        for _ in range(2):
            assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
            summary = thg.summary(pipe)
            assert why in summary.note
            assert summary.finished
            assert summary.nfe == summary.cfg_nfe


def test_a_second_call_with_all_branches_in_a_later_step(known, noise):
    """Nothing is left out any more as soon as it comes; the steps before it have leapt."""
    pipe = own.build(own.LooksFirstLater, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        found = pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).note.startswith("the rest was evaluated: it calls its network")
    assert own.psnr(found, plain).min() > 20


@pytest.mark.parametrize(("kind", "first"), [(own.RisingScale, "1.5"), (own.ZeroFirst, "5")])
def test_guidance_without_effect_at_the_first_step(known, noise, kind, first):
    pipe = own.build(kind, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        found = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
        assert torch.equal(pipe(WORDS, W, STEPS, noise), found)
    assert summary.checked.endswith(f"w = {first}")
    assert summary.saved > 0.1
    assert own.psnr(found, plain).min() > 20


def test_a_scale_that_changes_is_reported(known, noise):
    pipe = own.build(own.RisingScale, known)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        pipe(WORDS, W, STEPS, noise)
        assert "the guidance scale changed during the run, from 1.5 to 4.5" in thg.summary(pipe).note

    def stronger(pipe, step, time, tensors):
        pipe._guidance_scale = W + step
        return tensors

    with thg.enabled(known, LEAP):
        picture(known, noise, callback_on_step_end=stronger)
        assert "the guidance scale changed during the run, from 5 to 10" in thg.summary(known).note
        picture(known, noise)
        assert thg.summary(known).note == ""


@pytest.mark.parametrize("kind", [own.ChangesItsFormula, own.ChangesItsOrder])
def test_a_formula_that_changes_in_the_middle_is_reported(known, noise, kind):
    pipe = own.build(kind, known)
    with thg.enabled(pipe, thg.uniform(every=3), layout=UNCOND_FIRST):
        pipe(WORDS, W, STEPS, noise)
        note = thg.summary(pipe).note
    assert "later steps passed something to the scheduler" in note or "guidance scale changed" in note


def test_the_network_changes_in_the_middle_of_a_run(known, noise):
    expert = copy.deepcopy(known.unet)
    expert.conv_out.weight.data *= 1.1
    pipe = own.build(own.ExpertsCondFirst, known)
    pipe.unet_2 = expert
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, thg.Plan(STEPS, coarse=(0, 1, 3, 5)), layout=thg.Sequential(("unet", "unet_2"))):
        found = pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).note == ""
        assert thg.summary(pipe).saved > 0.15
    assert own.psnr(found, plain).min() > 20


def test_branches_in_other_calls_than_the_layout_says(known, noise):
    """A loop of its own with two calls, and a layout with one: no call has all branches, as without guidance."""
    pipe = own.build(own.ExpertsCondFirst, known)
    pipe.unet_2 = copy.deepcopy(known.unet)
    arguments = (WORDS[:1], W, STEPS, noise[:1])
    plain = pipe(*arguments)
    with thg.enabled(pipe, LEAP, layout=thg.Batched(denoisers=("unet", "unet_2"))):
        assert torch.equal(pipe(*arguments), plain)
        assert "its branches do not come as the layout says (one call: uncond, cond)" in thg.summary(pipe).note


def test_a_network_for_each_branch(known, noise):
    pipe = own.build(own.NetworkForEach, known)
    pipe.unet, pipe.unet_2 = copy.deepcopy(known.unet), copy.deepcopy(known.unet)
    plain = pipe(WORDS, W, STEPS, noise)
    calls: list[object] = []
    for network in (pipe.unet, pipe.unet_2):
        network.register_forward_pre_hook(lambda network, _: calls.append(network))
    for plan, counts in ((LEAP, (STEPS, STEPS // 2)), (thg.tapered(0.75), (6, 6))):
        with thg.enabled(pipe, plan, layout=thg.Sequential(("unet",), unconditional="unet_2")):
            calls.clear()
            found = pipe(WORDS, W, STEPS, noise)
            assert (calls.count(pipe.unet), calls.count(pipe.unet_2)) == counts
            assert thg.summary(pipe).nfe == sum(counts)
            assert torch.equal(pipe(WORDS, W, STEPS, noise), found)
        assert own.psnr(found, plain).min() > 15


def test_guidance_of_four_passes_needs_no_layout(known, noise):
    pipe = own.build(own.FourPasses, known)
    plain = pipe(WORDS, W, 20, noise)
    with thg.enabled(pipe, thg.tapered(1.0)):
        assert torch.equal(pipe(WORDS, W, 20, noise), plain)
    with thg.enabled(pipe, thg.tapered(0.6)):
        found = pipe(WORDS, W, 20, noise)
        assert (thg.summary(pipe).nfe, thg.summary(pipe).cfg_nfe) == (48, 80)
        assert torch.equal(pipe(WORDS, W, 20, noise), found)
    assert own.psnr(found, plain).min() > 20


def test_a_pipeline_without_a_call_of_its_own_is_refused(known):
    with pytest.raises(thg.UnsupportedPipelineError, match="not called itself"):
        thg.enable(own.build(own.Factory, known), LEAP)


def test_a_loop_that_skips_time_steps(known, noise):
    """A plan made for all of them would be followed at the wrong times."""
    pipe = own.build(own.UncondFirst, known)
    pipe.takes_every = 2
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "skips time steps of its scheduler" in thg.summary(pipe).note


def test_a_time_that_rises_from_zero(known, noise):
    pipe = own.build(own.FromZero, known)
    pipe.scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0, invert_sigmas=True)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).note == ""
        assert thg.summary(pipe).nfe == STEPS + STEPS // 2


def test_a_loop_that_begins_late(known, noise):
    """It leaves out the first steps by itself; the plan is made for those that it takes."""
    pipe = own.build(own.UncondFirst, known)
    pipe.begins_at = 3
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
    assert summary.plan == LEAP.plan(thg.plans.RunInfo.of(STEPS - 3))
    assert summary.finished


def test_the_estimate_is_made_for_the_measured_scale(known, noise):
    """No name tells it; it is that of the pipeline which does."""
    pipe = own.build(own.UncondFirst, known)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST), thg.enabled(known, LEAP):
        for w in (2.0, 7.5):
            known(WORDS, guidance_scale=w, num_inference_steps=STEPS, latents=noise, output_type="latent")
            pipe(WORDS, w, STEPS, noise)
            expected = thg.summary(known).estimated_error
            assert thg.summary(pipe).estimated_error == pytest.approx(expected, rel=1e-3)


def test_more_branches_are_judged_in_each_run(known, noise):
    """Whether two prompts are added up depends on the scales."""
    pipe = own.build(own.ThreeBranches, known)
    with thg.enabled(pipe, LEAP, layout=THREE):
        leapt = pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).saved > 0
        pipe.pull = 3.0
        pipe(WORDS, W, STEPS, noise)
        assert "adds up several prompts" in thg.summary(pipe).note
        assert thg.summary(pipe).saved == 0
        pipe.pull = own.ThreeBranches.pull
        assert torch.equal(pipe(WORDS, W, STEPS, noise), leapt)


def test_a_flag_that_lies(known, noise):
    """With two samples and one branch the network gets as many rows as with one sample and two branches."""
    pipe = own.build(own.LiesInItsFlag, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "guidance was off" in thg.summary(pipe).note
        assert thg.summary(pipe).nfe == thg.summary(pipe).cfg_nfe == STEPS


def test_equal_branches_leave_nothing_to_check(known, noise):
    pipe = own.build(own.UncondFirst, known)
    with thg.enabled(pipe, LEAP, layout=UNCOND_FIRST):
        pipe(["", ""], W, STEPS, noise)
        assert thg.summary(pipe).checked == ""
        both = thg.summary(pipe).evaluations
        pipe(WORDS[:1], W, STEPS, noise[:1])
        assert thg.summary(pipe).checked
        assert thg.summary(pipe).evaluations == both


@pytest.mark.parametrize(("kind", "layout"), [(own.TwoCalls, CALLS), (own.UncondFirst, UNCOND_FIRST)])
def test_the_scheduler_is_left_as_it_was(known, noise, kind, layout):
    pipe = own.build(kind, known)
    before, signature = set(vars(pipe.scheduler)), inspect.signature(pipe.scheduler.step)
    with thg.enabled(pipe, LEAP, layout=layout):
        pipe.inspect = lambda: inspect.signature(pipe.scheduler.step)
        pipe(WORDS, W, STEPS, noise)
        assert pipe.inspected == signature
    assert set(vars(pipe.scheduler)) == before | {"num_inference_steps"}
