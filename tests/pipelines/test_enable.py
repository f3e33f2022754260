"""enable and disable under rough treatment: sharing, swapping, interruption, threads, precision, compilation."""

from __future__ import annotations

import copy
import gc
import weakref

import diffusers
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import thg
from tests.pipelines.families import FAMILIES, Broken, Rows
from tests.pipelines.families.stable_diffusion import sd15

LEAP = thg.uniform(every=2)

DETERMINISTIC = [
    "DDIMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
]
STOCHASTIC = ["DDPMScheduler", "EulerAncestralDiscreteScheduler", "KDPM2AncestralDiscreteScheduler", "LCMScheduler"]


def with_scheduler(name: str, **options: object):
    case = sd15()
    case.pipe.scheduler = getattr(diffusers, name).from_config(case.pipe.scheduler.config, **options)
    return case


# -- the API


def test_enable_twice_replaces_the_plan():
    case = sd15()
    thg.enable(case.pipe, LEAP)
    thg.enable(case.pipe, thg.uniform(every=3))
    case.run()
    assert thg.summary(case.pipe).plan.coarse == (0, 3)


def test_disable_twice_and_before_enable_is_harmless():
    case = sd15()
    before = type(case.pipe.unet)
    thg.disable(case.pipe)
    thg.enable(case.pipe)
    thg.disable(case.pipe)
    thg.disable(case.pipe)
    assert type(case.pipe.unet) is before
    assert type(case.pipe) is diffusers.StableDiffusionPipeline


def test_enabled_is_undone_when_the_block_raises():
    case = sd15()
    before = type(case.pipe.unet)
    with pytest.raises(Broken), Rows(case, stop_at=2), thg.enabled(case.pipe, LEAP):
        case.run()
    assert type(case.pipe.unet) is before


def test_summary_says_what_happened():
    case = sd15()
    with pytest.raises(thg.THGError, match=r"not enabled; write thg.enable\(pipe\)"):
        thg.summary(case.pipe)
    thg.enable(case.pipe, LEAP)
    assert "no run yet" in str(thg.summary(case.pipe))
    case.run()
    report = thg.summary(case.pipe)
    assert (report.steps, report.nfe, report.cfg_nfe, report.finished) == (6, 9, 12, True)
    assert report.evaluations == (2, 1, 2, 1, 2, 1)
    assert report.seconds > 0
    assert "9 network evaluations instead of 12" in str(report)
    case.run(guided=False)
    report = thg.summary(case.pipe)
    assert (report.nfe, report.cfg_nfe, report.plan) == (6, 6, None)
    assert "guidance was off" in str(report)


def test_the_summary_of_a_block_outlives_it():
    case = sd15()
    with thg.enabled(case.pipe, LEAP):
        case.run()
    assert thg.summary(case.pipe).nfe == 9
    case.run()  # plain again, and no run of thg's
    assert thg.summary(case.pipe).nfe == 9
    thg.enable(case.pipe, LEAP)
    assert "no run yet" in str(thg.summary(case.pipe))
    with thg.enabled(case.pipe):
        case.run()
    assert "no run yet" in str(thg.summary(case.pipe))  # of what is enabled
    thg.disable(case.pipe)
    with pytest.raises(thg.THGError, match="not enabled"):
        thg.summary(case.pipe)


def test_a_block_keeps_no_pipeline_alive():
    case = sd15()
    with thg.enabled(case.pipe, LEAP):
        case.run()
    pipe, unet = weakref.ref(case.pipe), weakref.ref(case.pipe.unet)
    del case
    gc.collect()
    assert (pipe(), unet()) == (None, None)


def test_the_default_is_a_tolerance():
    case = sd15()
    thg.enable(case.pipe)
    case.run(steps=20)
    default = thg.summary(case.pipe)
    thg.enable(case.pipe, thg.within(0.01))
    case.run(steps=20)
    assert thg.summary(case.pipe).plan == default.plan
    assert 20 < default.nfe < 40


@pytest.mark.parametrize("count", [4, 7, 9])
def test_a_plan_that_does_not_fit_is_an_error_that_says_both_numbers(count):
    case = sd15()
    thg.enable(case.pipe, thg.Plan(6, (0, 3)))
    with pytest.raises(thg.PlanError, match=f"for 6 steps, but this run calls the network {count} times"):
        case.run(steps=count)
    assert case.run().isfinite().all()


@pytest.mark.parametrize(
    ("name", "calls", "evaluated"),
    [("DDIMScheduler", 50, 20), ("PNDMScheduler", 51, 21), ("HeunDiscreteScheduler", 99, 39)],
)
@pytest.mark.parametrize("chosen", ["sd15", thg.PRESETS["sd15"]], ids=["name", "preset"])
def test_a_preset_counts_steps_and_not_calls(name, calls, evaluated, chosen):
    options = {"skip_prk_steps": True} if name == "PNDMScheduler" else {}
    case = with_scheduler(name, **options)
    thg.enable(case.pipe, chosen)
    case.run(steps=50)
    report = thg.summary(case.pipe)
    assert (report.steps, report.nfe) == (calls, calls + evaluated)
    assert report.finished


def test_what_is_not_a_pipeline_is_refused():
    with pytest.raises(thg.UnsupportedPipelineError, match=r"takes a diffusers pipeline, not Linear"):
        thg.enable(torch.nn.Linear(1, 1))
    with pytest.raises(thg.UnsupportedPipelineError, match="not int"):
        thg.enable(3)
    for ask in (thg.disable, thg.is_enabled, thg.summary):
        with pytest.raises(thg.UnsupportedPipelineError, match="takes a diffusers pipeline, not None"):
            ask(None)


def test_a_pipeline_that_reads_its_networks_attention_is_refused_with_any_plan():
    """Nothing is stored in a call that is left out."""
    pipe = diffusers.StableDiffusionSAGPipeline(**sd15().pipe.components, requires_safety_checker=False)
    for plan in (None, thg.tapered(0.5), thg.uniform(every=2)):
        with pytest.raises(thg.UnsupportedPipelineError, match="reads attention maps"):
            thg.enable(pipe, plan)
        assert "reads attention maps" in thg.supported(pipe, plan).reason


def test_distilled_and_unguided_classes_are_refused_by_name():
    case = sd15()
    parts = {"unet": case.pipe.unet, "scheduler": diffusers.DDPMScheduler()}
    with pytest.raises(thg.UnsupportedPipelineError, match="DDPMPipeline: it has no classifier-free guidance"):
        thg.enable(diffusers.DDPMPipeline(**parts), LEAP)


def test_a_subclass_has_the_layout_of_its_base():
    """Also with a loop of its own, since the layout is checked in each run."""

    class Same(diffusers.StableDiffusionPipeline):
        pass

    class Other(diffusers.StableDiffusionPipeline):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    case = sd15()
    plain = case.run()
    parts = case.pipe.components
    thg.enable(case.pipe, LEAP)
    leap = case.run()
    thg.disable(case.pipe)
    assert not torch.equal(leap, plain)
    for kind, layout in ((Same, None), (Other, None), (Other, thg.Batched())):
        case.pipe = kind(**parts, requires_safety_checker=False)
        case.pipe.set_progress_bar_config(disable=True)
        thg.enable(case.pipe, LEAP, layout=layout)
        assert torch.equal(case.run(), leap)
        thg.disable(case.pipe)


# -- schedulers


@pytest.mark.parametrize("name", DETERMINISTIC + STOCHASTIC)
def test_every_scheduler(name):
    case = with_scheduler(name)
    plain = case.run(steps=7)
    with thg.enabled(case.pipe, thg.uniform(every=1)):
        assert torch.equal(case.run(steps=7), plain)
    with thg.enabled(case.pipe, LEAP), Rows(case) as counted:
        leap = case.run(steps=7)
        report = thg.summary(case.pipe)
    assert report.finished
    assert counted.rows == report.nfe == report.plan.nfe < report.cfg_nfe
    assert 0 < float((leap - plain).abs().max() / plain.abs().max()) < 1
    assert torch.equal(case.run(steps=7), plain)


def test_heun_gets_a_plan_in_network_calls():
    case = with_scheduler("HeunDiscreteScheduler")
    thg.enable(case.pipe, LEAP)
    case.run(steps=7)
    assert thg.summary(case.pipe).steps == 13


@pytest.mark.parametrize("run_first", [False, True])
def test_a_scheduler_put_in_after_enable_is_followed(run_first):
    reference = with_scheduler("EulerDiscreteScheduler")
    thg.enable(reference.pipe, LEAP)
    case = sd15()
    thg.enable(case.pipe, LEAP)
    if run_first:
        case.run()
    case.pipe.scheduler = diffusers.EulerDiscreteScheduler.from_config(case.pipe.scheduler.config)
    for _ in range(2):
        assert torch.equal(case.run(), reference.run())
        assert thg.summary(case.pipe).nfe == 9


def test_the_scheduler_is_left_alone():
    case = sd15()
    before = set(vars(case.pipe.scheduler))
    thg.enable(case.pipe)
    case.run()
    assert type(case.pipe.scheduler) is diffusers.DDIMScheduler
    assert set(vars(case.pipe.scheduler)) == before


# -- what users do in the middle of a run


def test_guidance_switched_off_in_a_callback():
    def off_at_2(pipe, step, time, tensors):
        if step == 2:
            pipe._guidance_scale = 1.0
            tensors["prompt_embeds"] = tensors["prompt_embeds"].chunk(2)[-1]
        return tensors

    case = sd15()
    more = {"callback_on_step_end": off_at_2, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    plain = case.run(**more)
    with thg.enabled(case.pipe, thg.uniform(every=1)):
        assert torch.equal(case.run(**more), plain)
    with thg.enabled(case.pipe, LEAP):
        assert case.run(**more).isfinite().all()
        report = thg.summary(case.pipe)
    assert report.evaluations == (2, 1, 2, 1, 1, 1)
    assert (report.nfe, report.cfg_nfe) == (8, 9)


def test_guidance_scale_changed_in_a_callback():
    def stronger(pipe, step, time, tensors):
        pipe._guidance_scale = 5.0 + step
        return tensors

    case = sd15()
    plain = case.run(callback_on_step_end=stronger)
    with thg.enabled(case.pipe, thg.uniform(every=1)):
        assert torch.equal(case.run(callback_on_step_end=stronger), plain)


@pytest.mark.parametrize("family", ["SD 1.5", "Wan 2.1"])
def test_an_interrupted_run_leaves_nothing_behind(family):
    case = FAMILIES[family]()
    thg.enable(case.pipe, LEAP)
    before = case.run()
    for call in range(1, 7):
        with pytest.raises(Broken), Rows(case, stop_at=call):
            case.run(seeds=(1,))
        assert not thg.summary(case.pipe).finished
        assert torch.equal(case.run(), before)


# -- sharing


def from_components(pipe):
    return diffusers.StableDiffusionPipeline(**pipe.components, requires_safety_checker=False)


@pytest.mark.parametrize("made_from", [from_components, diffusers.StableDiffusionPipeline.from_pipe])
def test_a_pipeline_made_from_an_enabled_one_is_plain(made_from):
    case = sd15()
    plain = case.run()
    thg.enable(case.pipe, LEAP)
    other = sd15()
    other.pipe = made_from(case.pipe)
    other.pipe.set_progress_bar_config(disable=True)
    leap = case.run()
    assert torch.equal(other.run(), plain)
    assert torch.equal(case.run(), leap)
    thg.enable(other.pipe, thg.uniform(every=3))
    third = other.run()
    assert torch.equal(case.run(), leap)
    assert torch.equal(other.run(), third)
    thg.disable(case.pipe)
    assert torch.equal(case.run(), plain)
    assert torch.equal(other.run(), third)


# -- precision, copies, compilation, offloading


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    case = sd15()
    case.pipe.to(dtype)
    inputs = case.inputs
    case.inputs = lambda prompts: {
        name: value.to(dtype) if isinstance(value, torch.Tensor) else value for name, value in inputs(prompts).items()
    }
    plain = case.run()
    thg.enable(case.pipe, LEAP)
    leap = case.run()
    assert leap.dtype == plain.dtype == dtype
    assert leap.isfinite().all()


def test_the_term_is_computed_in_float32():
    from thg.pipelines.calls import difference, unconditional

    conditional, other = (
        (torch.tensor([1.0], dtype=torch.bfloat16),),
        (torch.tensor([0.0078125], dtype=torch.bfloat16),),
    )
    (term,) = difference(conditional, other)
    assert term.dtype == torch.float32
    assert term.item() == 1.0 - 0.0078125  # not a bfloat16
    (back,) = unconditional(conditional, (term,))
    assert torch.equal(back, other[0])


def test_a_deep_copy_and_a_saved_copy_are_plain_pipelines(tmp_path):
    case = sd15()
    plain = case.run()
    thg.enable(case.pipe, LEAP)
    leap = case.run()
    original = case.pipe
    case.pipe = copy.deepcopy(original)
    assert torch.equal(case.run(), plain)
    original.save_pretrained(tmp_path)
    left_out = {name: None for name, part in original.components.items() if part is None}
    case.pipe = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path, **left_out)
    case.pipe.set_progress_bar_config(disable=True)
    assert torch.equal(case.run(), plain)
    case.pipe = original
    assert torch.equal(case.run(), leap)


ONE_BLOCK = {  # less to compile
    "block_out_channels": (16,),
    "down_block_types": ("CrossAttnDownBlock2D",),
    "up_block_types": ("CrossAttnUpBlock2D",),
    "mid_block_type": None,
}


@pytest.mark.parametrize("compiled", ["wrapped before", "in place before", "wrapped after", "in place after"])
def test_compiled_networks_are_not_recompiled_from_step_to_step(compiled):
    from torch._dynamo.utils import counters

    reference = sd15(**ONE_BLOCK)
    thg.enable(reference.pipe, LEAP)
    expected = reference.run()
    torch._dynamo.reset()
    counters.clear()
    case = sd15(**ONE_BLOCK)
    if "after" in compiled:
        thg.enable(case.pipe, LEAP)
    if "wrapped" in compiled:
        case.pipe.unet = torch.compile(case.pipe.unet, backend="eager")
    else:
        case.pipe.unet.compile(backend="eager")
    if "before" in compiled:
        thg.enable(case.pipe, LEAP)
    torch.testing.assert_close(case.run(), expected)
    graphs = counters["stats"]["unique_graphs"]
    case.run()
    case.run(steps=9)
    assert counters["stats"]["unique_graphs"] == graphs == 2  # one for each batch size
    assert thg.summary(case.pipe).plan.steps == 9


def test_offload_hooks_put_on_before_and_after():
    from accelerate import cpu_offload

    reference = sd15()
    thg.enable(reference.pipe, LEAP)
    expected = reference.run()
    for enable_first in (True, False):
        case = sd15()
        if enable_first:
            thg.enable(case.pipe, LEAP)
        cpu_offload(case.pipe.unet, execution_device=torch.device("cpu"))
        if not enable_first:
            thg.enable(case.pipe, LEAP)
        for _ in range(2):
            assert torch.equal(case.run(), expected)
            assert thg.summary(case.pipe).nfe == 9


def test_lora_weights_do_not_matter():
    peft = pytest.importorskip("peft")
    case = sd15()
    config = peft.LoraConfig(r=2, target_modules=["to_q"], init_lora_weights=False)
    case.pipe.unet.add_adapter(config)
    plain = case.run()
    with thg.enabled(case.pipe, thg.uniform(every=1)):
        assert torch.equal(case.run(), plain)


# -- anything in any order


class Lifecycle(RuleBasedStateMachine):
    """enable, run, break off, disable, in any order and with any number of steps: always as on a fresh pipeline."""

    @initialize()
    def start(self):
        self.case = sd15()
        self.plan = None

    @rule(every=st.integers(1, 4))
    def enable(self, every):
        self.plan = thg.uniform(every=every)
        thg.enable(self.case.pipe, self.plan)

    @rule()
    def disable(self):
        self.plan = None
        thg.disable(self.case.pipe)

    @rule(call=st.integers(1, 4))
    def break_off(self, call):
        with pytest.raises(Broken), Rows(self.case, stop_at=call):
            self.case.run(steps=5)

    @rule(steps=st.integers(1, 6), samples=st.integers(1, 2), guided=st.booleans())
    def run(self, steps, samples, guided):
        arguments = {"prompts": range(samples), "seeds": range(samples), "steps": steps, "guided": guided}
        fresh = sd15()
        if self.plan is not None:
            thg.enable(fresh.pipe, self.plan)
        assert torch.equal(self.case.run(**arguments), fresh.run(**arguments))


Lifecycle.TestCase.settings = settings(max_examples=12, stateful_step_count=8, deadline=None)
TestLifecycle = Lifecycle.TestCase
