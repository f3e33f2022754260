"""Pipelines that nobody has told thg about: what it learns of them, and what it leaves alone."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from diffusers import KDPM2AncestralDiscreteScheduler, RePaintScheduler, StableDiffusionPipeline
from torch import Tensor

import thg
from tests.adapter import own_pipelines as own
from thg.adapter.call import same_arguments
from thg.adapter.schedule import Schedule
from thg.pipelines import lesson

WORDS = ["a dark ankle boot", "a pale dress"]
STEPS, W = 8, 5.0
LEAP = thg.uniform(every=2)


@pytest.fixture(scope="module")
def known() -> StableDiffusionPipeline:
    pipe = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def noise(known) -> Tensor:
    size = known.unet.config.sample_size
    return torch.randn(2, known.unet.config.in_channels, size, size, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def nothing_known():
    """Each test learns for itself."""
    lesson.forget()


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


LEARNED = {
    own.UncondFirst: "one call, unconditional first, w = 5",
    own.CondFirst: "one call, conditional first, w = 5",
    own.TwoCalls: "two calls, conditional first, w = 5",
    own.Keywords: "two calls, conditional first, w = 5",
    own.TwoCallsUncondFirst: "two calls, unconditional first, w = 5",
    own.TimeFirst: "one call, unconditional first, w = 5",
    own.TimeFirstTwoCalls: "two calls, unconditional first, w = 5",
    own.Packed: "one call, unconditional first, w = 5",
    own.LearnedVariance: "one call, unconditional first, w = 5",
    own.Rescaled: "one call, unconditional first, w = 5, rescaled",
    own.NormKeeping: "one call, unconditional first, w = 5, rescaled",
    own.ThreeBranches: "one call, conditional is number 1 of 3, w = 5",
    own.OffInTheMiddle: "one call, unconditional first, w = 5",
    own.Swapped: "one call, conditional first, w = 5",
}
SAME_AS_KNOWN = {kind: "rescaled" if kind is own.Rescaled else "" for kind in LEARNED} | {
    own.NormKeeping: None,
    own.ThreeBranches: None,
    own.OffInTheMiddle: None,
    own.TwoCallsUncondFirst: None,  # its second step is evaluated, too
    own.TimeFirstTwoCalls: None,
}


@pytest.mark.parametrize("kind", LEARNED, ids=lambda kind: kind.__name__)
def test_learned_in_the_first_run(kind, known, noise, expected):
    pipe = own.build(kind, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, thg.uniform(every=1)):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert thg.summary(pipe).nfe == thg.summary(pipe).cfg_nfe
    lesson.forget()
    with thg.enabled(pipe, LEAP):
        first = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
        assert torch.equal(pipe(WORDS, W, STEPS, noise), first)  # learning has changed nothing
    assert summary.learned == LEARNED[kind]
    assert f"layout learned: {LEARNED[kind]}" in str(summary)
    assert summary.note == ""
    assert summary.nfe < 0.85 * summary.cfg_nfe
    assert own.psnr(first, plain).min() > 20
    if SAME_AS_KNOWN[kind] is not None:  # the same numbers in another order: the same result
        torch.testing.assert_close(first, expected[SAME_AS_KNOWN[kind]], rtol=1e-4, atol=1e-4)
    assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)


def test_guidance_without_effect_at_the_first_step(known, noise):
    pipe = own.build(own.RisingScale, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        found = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
    assert summary.learned == "one call, unconditional first, w = 1.5"
    assert summary.nfe < summary.cfg_nfe
    assert own.psnr(found, plain).min() > 20


def test_what_was_learned_can_be_passed_on(known, noise):
    pipe = own.build(own.CondFirst, known)
    with thg.enabled(pipe, LEAP):
        first = pipe(WORDS, W, STEPS, noise)
        layout = thg.summary(pipe).layout
    assert layout == thg.Batched(branches=("cond", "uncond"), denoisers=("unet",))
    assert eval(repr(layout), vars(thg)) == layout
    lesson.forget()
    with thg.enabled(pipe, LEAP, layout=layout):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), first)
        assert thg.summary(pipe).learned == ""


def test_a_formula_that_is_not_linear_runs_as_plain_cfg(known, noise):
    pipe = own.build(own.NotLinear, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        for _ in range(2):
            assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
            summary = thg.summary(pipe)
            assert summary.note.startswith("this run was plain CFG: no combination of its network outputs")
            assert summary.nfe == summary.cfg_nfe == 2 * STEPS
            assert summary.finished


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (own.LooksFirst, "it also calls its network for something else"),
        (own.LooksFirstTwoCalls, "it also calls its network for something else"),
        (own.PatchesItsNetwork, "mixing is in its network, and may mix branches"),
        (own.MixesRows, "its network gives another output for a branch alone"),
        (own.NewEmbeddings, "the arguments of its conditional call, which comes second, change at each step"),
    ],
)
def test_what_is_more_than_guidance_runs_as_plain_cfg(known, noise, kind, why):
    pipe = own.build(kind, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        for _ in range(2):
            assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
            assert why in thg.summary(pipe).note


def test_a_second_call_with_all_branches_in_a_later_step(known, noise):
    """Nothing is left out any more as soon as it comes; the steps before it have leapt."""
    pipe = own.build(own.LooksFirstLater, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        found = pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).note.startswith("the rest of this run was plain CFG: it calls its network")
        assert "more than once in a step" in thg.summary(pipe).note
    assert own.psnr(found, plain).min() > 20


def test_a_call_with_fewer_rows_may_begin_a_step(known, noise):
    pipe, simple = own.build(own.OneRowFirst, known), own.build(own.UncondFirst, known)
    with thg.enabled(pipe, LEAP), thg.enabled(simple, LEAP):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), simple(WORDS, W, STEPS, noise))
        assert thg.summary(pipe).note == ""
        assert thg.summary(pipe).nfe == thg.summary(simple).nfe + STEPS


def test_the_network_changes_in_the_middle_of_a_run(known, noise):
    """Also where the conditional call comes second, and is made ahead of time."""
    expert = copy.deepcopy(known.unet)
    expert.conv_out.weight.data *= 1.1
    evaluates_two = thg.Plan(STEPS, coarse=(0, 1, 3, 5))  # the first two, as the other order does anyway
    made = []
    for kind in (own.ExpertsCondFirst, own.ExpertsUncondFirst):
        pipe = own.build(kind, known)
        pipe.unet_2 = expert
        with thg.enabled(pipe, evaluates_two):
            made.append(pipe(WORDS, W, STEPS, noise))
            assert thg.summary(pipe).note == ""
            assert thg.summary(pipe).saved > 0.15
    torch.testing.assert_close(*made)


def test_a_pipeline_that_steps_by_itself(known, noise):
    pipe = own.build(own.StepsByItself, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        summary = thg.summary(pipe)
    assert summary.note == (
        "this run was plain CFG: its layout could not be learned, since no step of its scheduler was seen"
    )
    assert summary.nfe == summary.cfg_nfe > 0
    assert summary.finished


def test_a_pipeline_without_a_call_of_its_own_is_refused(known):
    with pytest.raises(thg.UnsupportedPipelineError, match="not called itself"):
        thg.enable(own.build(own.Factory, known))


def test_a_loop_that_skips_time_steps(known, noise):
    """A plan made for all of them would be followed at the wrong times."""
    pipe = own.build(own.UncondFirst, known)
    pipe.takes_every = 2
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "skips time steps of its scheduler" in thg.summary(pipe).note


def test_one_sample_does_not_tell_the_order_of_several(known, noise):
    """Of one sample, alternating branches look like stacked ones."""
    pipe = own.build(own.Alternating, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        first = pipe(WORDS[:1], W, STEPS, noise[:1])
        assert thg.summary(pipe).saved > 0.15
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "no combination of its network outputs" in thg.summary(pipe).note
        assert torch.equal(pipe(WORDS[:1], W, STEPS, noise[:1]), first)


def test_zeros_at_the_first_step(known, noise):
    pipe = own.build(own.ZeroFirst, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        found = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
    assert summary.learned == "one call, unconditional first, w = 5"
    assert summary.saved > 0.1
    assert own.psnr(found, plain).min() > 20


def test_times_that_go_back():
    """RePaint repeats steps: plain CFG from its first step on. Times that are rounded to both sides do not go back."""
    repaint = RePaintScheduler()
    repaint.set_timesteps(20, jump_length=2, jump_n_sample=2)
    rounded = KDPM2AncestralDiscreteScheduler(use_karras_sigmas=True)
    rounded.set_timesteps(50)
    for scheduler, left in ((repaint, True), (rounded, False)):
        times = scheduler.timesteps.tolist()
        assert Schedule(times, scheduler.timesteps).left_at(0, scheduler.timesteps[0]) is left


def test_the_plan_is_made_for_the_measured_scale(known, noise):
    """No name tells it. The plan is that of the pipeline which does, whatever ran before."""
    pipe = own.build(own.UncondFirst, known)
    plans = {}
    with thg.enabled(known):
        for w in (5.0, 12.0):
            known(WORDS, guidance_scale=w, num_inference_steps=20, latents=noise, output_type="latent")
            plans[w] = thg.summary(known).plan
    assert len(plans[12.0].coarse) > len(plans[5.0].coarse)
    with thg.enabled(pipe):
        for w in (5.0, 12.0):
            pipe(WORDS, w, 20, noise)
            summary = thg.summary(pipe)
            assert summary.plan == plans[w]
            assert summary.learned.endswith(f"w = {w:g}")
            assert summary.estimated_error is not None


def test_more_branches_are_judged_in_each_run(known, noise):
    """Whether two prompts are added up depends on the scales."""
    pipe = own.build(own.ThreeBranches, known)
    with thg.enabled(pipe, LEAP):
        leapt = pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).saved > 0
        pipe.pull = 3.0
        pipe(WORDS, W, STEPS, noise)
        assert "adds up several prompts" in thg.summary(pipe).note
        assert thg.summary(pipe).saved == 0
        pipe.pull = own.ThreeBranches.pull
        assert torch.equal(pipe(WORDS, W, STEPS, noise), leapt)


def test_times_on_a_device_are_known_by_their_place():
    """Without a wait for the device."""
    timesteps = torch.arange(8, device="meta")
    for stride, left in ((1, False), (2, True)):
        schedule = Schedule(range(8), timesteps)
        first, second = timesteps[2::stride][:2]
        assert not schedule.left_at(0, first)
        assert schedule.left_at(1, second) is left


def test_a_loop_that_begins_late(known, noise):
    """It leaves out the first steps by itself; the plan is made for those that it takes."""
    pipe = own.build(own.UncondFirst, known)
    pipe.begins_at = 3
    with thg.enabled(pipe, LEAP):
        pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
    assert summary.plan == LEAP.plan(thg.Run.of(STEPS - 3))
    assert summary.finished


def test_the_same_part_of_a_tensor_is_the_same_argument():
    with torch.no_grad():
        text = torch.randn(4, 3)
        assert same_arguments({"text": text[1:2]}, {"text": text[1:2]})
        assert not same_arguments(text[1:2], text[2:3])
        assert not same_arguments(text[1:2], text[1:2].clone())


@pytest.mark.parametrize("learned_before", [False, True])
def test_a_flag_that_lies(known, noise, learned_before):
    """With two samples and one branch the network gets as many rows as with one sample and two branches."""
    pipe = own.build(own.LiesInItsFlag, known)
    with thg.enabled(pipe, LEAP):
        if learned_before:
            pipe.lies = False
            pipe(WORDS, W, STEPS, noise)
            assert thg.summary(pipe).nfe < thg.summary(pipe).cfg_nfe
            pipe.lies = True
        found = pipe(WORDS, W, STEPS, noise)
        summary = thg.summary(pipe)
    assert torch.equal(found, pipe(WORDS, W, STEPS, noise))
    assert "guidance" in summary.note
    assert summary.nfe == STEPS


def test_a_wrong_layout_is_noticed_before_it_does_harm(known, noise):
    pipe = own.build(own.CondFirst, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP, layout=thg.Batched()):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "thg expected one call: uncond, cond, and saw one call, conditional first" in thg.summary(pipe).note


def test_equal_branches_are_learned_in_a_later_run(known, noise):
    pipe = own.build(own.UncondFirst, known)
    with thg.enabled(pipe, LEAP):
        pipe(["", ""], W, STEPS, noise)
        assert "same output" in thg.summary(pipe).note
        pipe(WORDS, W, STEPS, noise)
        assert thg.summary(pipe).learned
        assert thg.summary(pipe).note == ""


def test_one_sample_after_two(known, noise):
    """What was learned holds for other batch sizes, with guidance and without."""
    pipe = own.build(own.UncondFirst, known)
    with thg.enabled(pipe, LEAP):
        pipe(WORDS, W, STEPS, noise)
        both = thg.summary(pipe).evaluations
        pipe(WORDS[:1], W, STEPS, noise[:1])
        assert thg.summary(pipe).evaluations == both


@pytest.mark.parametrize(
    ("kind", "asked"), [(own.ChangesItsFormula, False), (own.ChangesItsFormula, True), (own.ChangesItsOrder, True)]
)
def test_a_formula_that_changes_in_the_middle_is_reported(known, noise, kind, asked):
    pipe = own.build(kind, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        pipe(WORDS, W, STEPS, noise)
        if asked:
            assert "later steps passed something to the scheduler" in thg.summary(pipe).note
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)  # also if nobody has asked
        assert "later steps passed something to the scheduler" in thg.summary(pipe).note


def test_processors_that_look_at_other_branches(known, noise):
    """A branch alone would not give what it gives beside the others."""
    pipe = own.build(own.UncondFirst, known)
    before = pipe.unet.attn_processors
    pipe.unet.set_attn_processor(own.SharedAttention())
    try:
        plain = pipe(WORDS, W, STEPS, noise)
        with thg.enabled(pipe, LEAP):
            assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
            assert "SharedAttention may mix branches" in thg.summary(pipe).note
    finally:
        pipe.unet.set_attn_processor(before)


def test_a_network_that_cannot_run_a_branch_alone(known, noise):
    pipe = own.build(own.NeedsBoth, known)
    plain = pipe(WORDS, W, STEPS, noise)
    with thg.enabled(pipe, LEAP):
        assert torch.equal(pipe(WORDS, W, STEPS, noise), plain)
        assert "does not run with a part of its branches" in thg.summary(pipe).note


@pytest.mark.parametrize("kind", [own.TwoCalls, own.UncondFirst, own.NotLinear], ids=lambda kind: kind.__name__)
def test_the_scheduler_is_left_as_it_was(known, noise, kind):
    pipe = own.build(kind, known)
    before, signature = set(vars(pipe.scheduler)), inspect.signature(pipe.scheduler.step)
    with thg.enabled(pipe, LEAP):
        pipe.inspect = lambda: inspect.signature(pipe.scheduler.step)
        pipe(WORDS, W, STEPS, noise)
        assert pipe.inspected == signature
    assert set(vars(pipe.scheduler)) == before | {"num_inference_steps"}
