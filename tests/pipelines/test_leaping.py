"""The default on pipelines of every family: at a skipped step no network runs, and the scheduler gets a prediction."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from torch import Tensor

import thg
from tests.pipelines.families import FAMILIES, Case
from tests.pipelines.families.case import Broken, Rows
from tests.pipelines.families.pictures import sd3
from tests.pipelines.families.stable_diffusion import sd15, sd15_plms
from thg.ode.mixture import GaussianMixture

torch.set_num_threads(1)

STEPS = 8
HALF = thg.tapered(0.5)
FEWER = ["SD 1.5", "SD3", "Flux with true CFG", "Wan 2.2", "Z-Image"]  # one call, packed, two calls, two experts, lists


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.fixture(params=FAMILIES)
def case(request) -> Case:
    return FAMILIES[request.param]()


def steps_of(case: Case) -> int:
    return 3 * STEPS if "strength" in case.inputs((0,)) else STEPS


def test_every_family(case):
    """All evaluations give the plain run, half of them about the same; each run is like the first."""
    steps = steps_of(case)
    with Rows(case) as plain_rows:
        plain = case.run(steps=steps)
    thg.enable(case.pipe, thg.tapered(1.0))
    assert torch.equal(case.run(steps=steps), plain)
    thg.enable(case.pipe, HALF)
    with Rows(case) as rows:
        first = case.run(steps=steps)
    summary = thg.summary(case.pipe)
    assert summary.finished
    assert summary.finite
    assert summary.nfe == sum(summary.evaluations)
    assert summary.nfe * plain_rows.rows == summary.cfg_nfe * rows.rows
    assert (0 in summary.evaluations) == ("everything was evaluated" not in summary.note)
    assert torch.equal(case.run(steps=steps), first)
    assert relative(first, plain) < relative(torch.zeros_like(plain), plain)
    thg.disable(case.pipe)
    assert torch.equal(case.run(steps=steps), plain)


def test_without_guidance(case):
    steps = steps_of(case)
    with Rows(case) as plain_rows:
        plain = case.run(steps=steps, guided=False)
    thg.enable(case.pipe, HALF)
    with Rows(case) as rows:
        found = case.run(steps=steps, guided=False)
    summary = thg.summary(case.pipe)
    assert (summary.nfe, summary.cfg_nfe) == (rows.rows, plain_rows.rows)
    assert rows.rows < plain_rows.rows or "everything was evaluated" in summary.note
    assert found.shape == plain.shape


@pytest.mark.parametrize("family", FEWER)
def test_two_prompts_are_those_of_two_runs(family):
    case = FAMILIES[family]()
    thg.enable(case.pipe, HALF)
    together = case.run((0, 1), seeds=(0, 1), steps=STEPS)
    assert len(thg.summary(case.pipe).estimated_error) == 2
    alone = torch.cat([case.run((k,), seeds=(k,), steps=STEPS) for k in (0, 1)])
    assert relative(together, alone) < 1e-4


@pytest.mark.parametrize("family", FEWER)
def test_a_run_that_raises_leaves_nothing_behind(family):
    case = FAMILIES[family]()
    thg.enable(case.pipe, HALF)
    expected = case.run(steps=STEPS)
    with Rows(case, stop_at=4), pytest.raises(Broken):
        case.run(steps=STEPS)
    assert not thg.summary(case.pipe).finished
    assert "step" not in vars(case.pipe.scheduler)
    assert torch.equal(case.run(steps=STEPS), expected)


# -- schedulers

SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    name: getattr(diffusers, name).from_config
    for name in (
        "DDIMScheduler",
        "EulerDiscreteScheduler",
        "DPMSolverMultistepScheduler",
        "DPMSolverSinglestepScheduler",
        "UniPCMultistepScheduler",
        "DEISMultistepScheduler",
        "HeunDiscreteScheduler",
        "LMSDiscreteScheduler",
    )
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_without_noise_are_corrected(name):
    case = sd15()
    case.pipe.scheduler = SCHEDULERS[name](case.pipe.scheduler.config)
    plain = case.run(steps=20)
    errors = []
    for corrector in (0.0, 0.85):
        calls = len(case.pipe.scheduler.timesteps)
        coarse = thg.tapered(0.6).plan(thg.plans.RunInfo.of(calls)).coarse
        thg.enable(case.pipe, thg.Plan(calls, coarse, corrector=corrector, slope=0.8, skips="network"))
        errors.append(relative(case.run(steps=20), plain))
    assert errors[1] < 1.01 * errors[0] < 0.2


@pytest.mark.parametrize(
    ("name", "options"),
    [("EulerAncestralDiscreteScheduler", {}), ("DDIMScheduler", {"eta": 1.0}), ("DDPMScheduler", {})],
)
def test_noise_is_not_predicted(name, options):
    case = sd15()
    case.pipe.scheduler = getattr(diffusers, name).from_config(case.pipe.scheduler.config)
    plain = case.run(steps=STEPS, **options)
    thg.enable(case.pipe, HALF)
    assert torch.equal(case.run(steps=STEPS, **options), plain)
    assert "noise cannot be predicted" in thg.summary(case.pipe).note


def test_what_clips_is_not_predicted():
    case = sd15()
    case.pipe.scheduler = diffusers.DDIMScheduler.from_config(case.pipe.scheduler.config, clip_sample=True)
    plain = case.run(steps=STEPS)
    thg.enable(case.pipe, HALF)
    assert torch.equal(case.run(steps=STEPS), plain)
    assert "clip_sample=False in the scheduler's configuration" in thg.summary(case.pipe).note


# -- changes within a run


def with_callback(
    case: Case, change: Callable[[Any, int, dict[str, Any]], dict[str, Any]], inputs: list[str], guided: bool = True
) -> Tensor:
    return case.run(
        steps=24,
        guided=guided,
        callback_on_step_end=lambda pipe, step, time, values: change(pipe, step, values),
        callback_on_step_end_tensor_inputs=inputs,
    )


class Tokens(diffusers.DiffusionPipeline):
    """Draws eight tokens of four, as AmusedPipeline does."""

    def __init__(self, network: torch.nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(network=network, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, steps: int) -> Tensor:
        self.scheduler.set_timesteps(steps, temperature=(2, 0))
        tokens, noise = torch.full((2, 8), 4), torch.Generator().manual_seed(0)
        for time in self.scheduler.timesteps:
            tokens = self.scheduler.step(self.network(tokens), time, tokens, generator=noise).prev_sample
        return tokens


def test_tokens_are_not_predicted():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Embedding(5, 8), torch.nn.Linear(8, 4))
    pipe = Tokens(network, diffusers.AmusedScheduler(mask_token_id=4))
    plain = pipe(12)
    thg.enable(pipe, HALF)
    assert torch.equal(pipe(12), plain)
    assert thg.summary(pipe).note == "everything was evaluated: AmusedScheduler draws tokens, which cannot be predicted"


def test_steps_from_more_than_outputs_are_not_predicted():
    """RePaint puts known pixels with new noise into each state, and goes back in time."""
    torch.manual_seed(0)
    blocks = {"down_block_types": ("DownBlock2D",), "up_block_types": ("UpBlock2D",), "block_out_channels": (16,)}
    network = diffusers.UNet2DModel(sample_size=8, in_channels=3, out_channels=3, norm_num_groups=4, **blocks)
    pipe = diffusers.RePaintPipeline(network.eval(), diffusers.RePaintScheduler())
    pipe.set_progress_bar_config(disable=True)
    image, mask = torch.zeros(1, 3, 8, 8), torch.ones(1, 1, 8, 8)
    mask[..., :4] = 0

    def run() -> np.ndarray:
        noise = torch.Generator().manual_seed(0)
        times = {"num_inference_steps": 10, "jump_length": 3, "jump_n_sample": 2}
        return pipe(image, mask, eta=0.0, generator=noise, output_type="np", **times).images

    plain = run()
    thg.enable(pipe, HALF)
    assert np.array_equal(run(), plain)
    summary = thg.summary(pipe)
    assert summary.nfe == summary.cfg_nfe > 10
    assert summary.note == (
        "everything was evaluated: RePaintScheduler makes its steps from more than outputs (original_image, mask), so "
        "that they cannot be predicted"
    )


def test_steps_that_are_not_seen_are_evaluated():
    """ParaDiGMS evaluates many times at once, with another method of its scheduler than `step`."""
    known = sd15()
    parts = {**known.pipe.components, "scheduler": diffusers.DDIMParallelScheduler()}
    del parts["image_encoder"]
    pipe = diffusers.StableDiffusionParadigmsPipeline(**parts, requires_safety_checker=False)
    case = Case(pipe, known.inputs, networks=known.networks)
    plain = case.run(parallel=4)
    thg.enable(pipe, HALF)
    with Rows(case) as rows:
        assert torch.equal(case.run(parallel=4), plain)
    summary = thg.summary(pipe)
    assert summary.nfe == summary.cfg_nfe == rows.rows
    assert "everything was evaluated: no step of the pipeline's scheduler was seen" in summary.note


class Own(diffusers.StableDiffusionPipeline):
    """A loop in the style of the community's pipelines."""

    @torch.no_grad()
    def __call__(self, steps: int) -> Tensor:
        self.scheduler.set_timesteps(steps)
        x = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        for time in self.scheduler.timesteps:
            x = self.scheduler.step(self.output(x, time), time, x).prev_sample
        return x

    def output(self, x: Tensor, time: Tensor) -> Tensor:
        return self.unet.forward(x, time, torch.ones(1, 4, 16)).sample


class Steered(Own):
    """Steers by the gradient of a loss of what the network puts out."""

    def output(self, x: Tensor, time: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            output = self.unet(x, time, torch.ones(1, 4, 16)).sample
            (gradient,) = torch.autograd.grad(output.square().mean(), x)
        return output.detach() + gradient


@pytest.mark.parametrize(
    ("kind", "why"), [(Own, "sees no network call in a step"), (Steered, "its samples require gradients")]
)
def test_loops_that_cannot_leap_are_evaluated(kind, why, caplog):
    pipe = kind(**sd15().pipe.components, requires_safety_checker=False)
    plain = pipe(12)
    thg.enable(pipe, HALF)
    assert torch.equal(pipe(12), plain)
    summary = thg.summary(pipe)
    assert summary.finished
    assert f"everything was evaluated: {why}" in summary.note or f"everything was evaluated: thg {why}" in summary.note
    assert why in caplog.text


class Conditioned(Own):
    """Calls a network for its text before the loop (Anima's `text_conditioner`)."""

    def __call__(self, steps: int) -> Tensor:
        self.embeds = self.text_conditioner(torch.ones(1, 4, 16))
        return super().__call__(steps)

    def output(self, x: Tensor, time: Tensor) -> Tensor:
        return self.unet(x, time, self.embeds).sample


def test_networks_beside_the_denoiser_are_not_counted():
    pipe = Conditioned(**sd15().pipe.components, requires_safety_checker=False)
    pipe.text_conditioner = torch.nn.Linear(16, 16)
    thg.enable(pipe, HALF)
    pipe(12)
    assert (thg.summary(pipe).nfe, thg.summary(pipe).cfg_nfe) == (6, 12)


def test_a_call_that_ends_at_a_skipped_step_is_counted():
    """Skip layer guidance: one more call in some steps, of one row instead of two."""
    case = sd3()
    layers = {"skip_guidance_layers": [0], "skip_layer_guidance_stop": 0.5}
    with Rows(case) as plain:
        case.run(steps=24, **layers)
    thg.enable(case.pipe, thg.Plan(24, (0, 1, 2, 3, 10, 14, 18, 23), skips="network"))
    with Rows(case) as rows:
        case.run(steps=24, **layers)
    summary = thg.summary(case.pipe)
    assert summary.evaluations[11:13] == (0, 0), "guidance changes within a leap"
    assert (summary.nfe, summary.cfg_nfe) == (rows.rows, plain.rows)


def test_other_prompts_in_the_middle_are_a_break():
    case = sd15()
    other = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(5))

    def change(pipe, step, values):
        return {"prompt_embeds": other[:, : values["prompt_embeds"].shape[1]]} if step == 9 else {}

    plain = with_callback(case, change, ["prompt_embeds"])
    thg.enable(case.pipe, thg.Plan(24, (*range(9), 23), skips="network"))
    found = with_callback(case, change, ["prompt_embeds"])
    assert thg.summary(case.pipe).evaluations == (*[2] * 9, 0, 2, 2, *[0] * 11, 2), "evaluates twice, and leaps again"
    assert relative(found, plain) < 0.3


def test_a_guidance_scale_that_jumps_is_a_break():
    case = sd15()

    def change(pipe, step, values):
        pipe._guidance_scale = 2.0 if step >= 9 else pipe._guidance_scale
        return {}

    with_callback(case, change, ["latents"])
    thg.enable(case.pipe, thg.Plan(24, (*range(9), 23), skips="network"))
    with_callback(case, change, ["latents"])
    assert thg.summary(case.pipe).evaluations == (*[2] * 9, 0, 2, 2, *[0] * 11, 2)


def test_each_jump_of_a_guidance_scale_is_a_break():
    case = sd15()

    def change(pipe, step, values):
        pipe._guidance_scale = 5.0 if step < 9 else 3.0 if step < 15 else 1.5
        return {}

    with_callback(case, change, ["latents"])
    thg.enable(case.pipe, thg.Plan(24, (*range(9), 23), skips="network"))
    with_callback(case, change, ["latents"])
    assert thg.summary(case.pipe).evaluations == (*[2] * 9, 0, 2, 2, *[0] * 4, 2, 2, *[0] * 5, 2)


@pytest.mark.parametrize("family", ["SD ControlNet", "SD with two ControlNets"])
def test_a_control_that_ends_is_a_break(family):
    """A number that was constant is a condition, like a tensor that was."""
    case = FAMILIES[family]()
    end = {"control_guidance_end": 0.5 if family == "SD ControlNet" else [0.5, 0.5]}
    plain = case.run(steps=24, **end)
    thg.enable(case.pipe, thg.Plan(24, (*range(9), 16, 23), skips="network"))
    case.run(steps=24)
    assert thg.summary(case.pipe).evaluations == (*[2] * 9, *[0] * 7, 2, *[0] * 6, 2)
    found = case.run(steps=24, **end)
    assert thg.summary(case.pipe).evaluations == (*[2] * 9, 0, 0, 0, 2, 2, 0, 0, 2, *[0] * 6, 2)
    assert relative(found, plain) < 0.02  # across the break 0.041 and 0.030


@pytest.mark.parametrize("step", [4, 5, 7, 8])
@pytest.mark.parametrize("change", [thg.disable, thg.enable])
def test_disabled_and_enabled_anew_in_the_middle(step, change):
    """No network call of the run is seen from there on, so that nothing may be predicted."""
    case = sd15()
    plain = case.run(steps=24)

    def at_step(pipe, number, values):
        if number == step:
            change(pipe)
        return {}

    thg.enable(case.pipe, HALF)
    assert relative(with_callback(case, at_step, ["latents"]), plain) < 0.05  # predicted from there on, up to 0.7
    thg.disable(case.pipe)
    assert torch.equal(case.run(steps=24), plain)


def test_guidance_that_is_switched_off_is_a_break():
    case = sd15()

    def change(pipe, step, values):
        if step != 9:
            return {}
        pipe._guidance_scale = 0.0
        return {"prompt_embeds": values["prompt_embeds"].chunk(2)[-1]}

    with_callback(case, change, ["prompt_embeds"])
    thg.enable(case.pipe, thg.Plan(24, (*range(9), 23), skips="network"))
    with_callback(case, change, ["prompt_embeds"])
    summary = thg.summary(case.pipe)
    assert summary.evaluations == (*[2] * 9, 0, 1, 1, *[0] * 11, 1)
    assert summary.cfg_nfe == 10 * 2 + 14


@pytest.mark.parametrize("plan", [thg.Plan(24, (*range(9), 23), skips="network"), thg.tapered(14)])
def test_guidance_that_begins_late_is_a_break(plan):
    case = sd15()
    given = case.inputs((0,))

    def change(pipe, step, values):
        if step != 9:
            return {}
        pipe._guidance_scale = 5.0
        return {"prompt_embeds": torch.cat([given["negative_prompt_embeds"], given["prompt_embeds"]])}

    plain = with_callback(case, change, ["prompt_embeds"], guided=False)
    thg.enable(case.pipe, plan)
    found = with_callback(case, change, ["prompt_embeds"], guided=False)
    summary = thg.summary(case.pipe)
    assert summary.cfg_nfe == 10 + 14 * 2
    assert summary.evaluations[10:12] == (2, 2), "evaluates twice, and leaps again"
    assert 0 in summary.evaluations[12:]
    assert set(summary.evaluations[:10]) == {0, 1}
    assert relative(found, plain) < 0.3


def test_a_copy_of_the_scheduler_has_a_history_of_its_own():
    """As in pipelines that step pictures and sounds with two schedulers."""
    case = sd3()
    scheduler = case.pipe.scheduler

    class TwoStates(type(case.pipe)):
        def __call__(self, steps: int) -> tuple[Tensor, Tensor]:
            second = copy.deepcopy(self.scheduler)
            states = [torch.ones(1, 4, 2, 2), torch.ones(1, 4, 3, 3)]
            for made in (self.scheduler, second):
                made.set_timesteps(steps)
            embeds = {"encoder_hidden_states": torch.ones(1, 3, self.transformer.config.joint_attention_dim)}
            pooled = torch.ones(1, self.transformer.config.pooled_projection_dim)
            for t in self.scheduler.timesteps:
                grid = torch.zeros(1, self.transformer.config.in_channels, 8, 8)
                grid[..., :2, :2] = states[0].mean() * t / 1000
                with torch.no_grad():
                    out = self.transformer(grid, timestep=t[None], pooled_projections=pooled, **embeds).sample
                outputs = [out[:, :4, :2, :2], out[:, :4, 2:5, 2:5]]
                states = [
                    made.step(output, t, state).prev_sample
                    for made, output, state in zip((self.scheduler, second), outputs, states, strict=True)
                ]
            return states[0], states[1]

    pipe = TwoStates(**{**case.pipe.components, "scheduler": scheduler})
    plain = pipe(16)
    thg.enable(pipe, thg.tapered(0.6))
    found = pipe(16)
    summary = thg.summary(pipe)
    assert summary.evaluations.count(0) == 6
    for mine, expected in zip(found, plain, strict=True):
        assert mine.shape == expected.shape
        assert 0 < relative(mine, expected) < 0.2


def test_several_steps_at_one_time_are_evaluated():
    case = sd15()

    class Tiles(type(case.pipe)):
        def __call__(self, steps: int) -> Tensor:
            self.scheduler.set_timesteps(steps)
            tiles = [torch.full((1, 4, 8, 8), float(k)) for k in (1, 2)]
            for t in self.scheduler.timesteps:
                for k in range(2):
                    with torch.no_grad():
                        output = self.unet(tiles[k], t, torch.ones(1, 4, 16)).sample
                    tiles[k] = self.scheduler.step(output, t, tiles[k]).prev_sample
            return torch.cat(tiles)

    pipe = Tiles(**case.pipe.components, requires_safety_checker=False)
    plain = pipe(12)
    thg.enable(pipe, HALF)
    assert torch.equal(pipe(12), plain)
    assert "several steps of its scheduler at one time" in thg.summary(pipe).note


# -- the door


def test_enabled_gives_back_what_was_before():
    case = sd15()
    plain = case.run(steps=STEPS)
    assert not thg.is_enabled(case.pipe)
    assert thg.enable(case.pipe, HALF) is case.pipe
    half = case.run(steps=STEPS)
    with thg.enabled(case.pipe, thg.tapered(1.0)):
        assert torch.equal(case.run(steps=STEPS), plain)
    assert thg.is_enabled(case.pipe)
    assert torch.equal(case.run(steps=STEPS), half)
    with pytest.raises(thg.PlanError):
        thg.enable(case.pipe, "nothing")
    assert torch.equal(case.run(steps=STEPS), half)
    thg.disable(case.pipe)
    assert torch.equal(case.run(steps=STEPS), plain)


def test_a_calibration_leaves_an_enabled_pipeline_as_it_was():
    pipe: Any = thg.shipped_pipeline()
    pipe.set_progress_bar_config(disable=True)
    thg.enable(pipe, HALF)
    thg.calibrate(pipe, ["a dark ankle boot"], steps=4, sensitivity=0, progress=False)
    assert thg.preview(pipe, steps=20) == thg.preview(pipe, HALF, steps=20) != thg.preview(pipe, 0.7, steps=20)


def test_the_preview_of_a_pipeline_that_runs_others():
    class Both(diffusers.KandinskyV22CombinedPipeline):
        def __init__(self, part: Any) -> None:
            self.prior_pipe = self.decoder_pipe = part

    case = sd15()
    thg.enable(case.pipe, HALF)
    assert thg.preview(Both(case.pipe), steps=20) == thg.preview(case.pipe, HALF, steps=20)


def test_short_forms():
    case = sd15()
    thg.enable(case.pipe, 0.5)
    half = case.run(steps=STEPS)
    thg.enable(case.pipe, HALF)
    assert torch.equal(case.run(steps=STEPS), half)
    thg.enable(case.pipe, "3%")
    case.run(steps=20)
    assert thg.summary(case.pipe).plan == thg.within(0.03).plan(_run_of(case, 20))


def _run_of(case: Case, steps: int) -> thg.plans.RunInfo:
    from thg.pipelines.describe import known_run

    return known_run(copy.deepcopy(case.pipe.scheduler), steps)


def test_a_run_that_saves_nothing_for_its_solvers_order_names_others():
    case = sd15_plms()
    thg.enable(case.pipe)
    case.run(steps=10)
    assert (
        "too few to leave one out at this tolerance with a solver of order 4 (DPM++ 2M" in thg.summary(case.pipe).note
    )


@pytest.mark.parametrize("wrong", [thg.Summary("x", 0, 0, 0, (), 0.0), thg.Profile, thg.within, 7])
def test_what_is_no_plan_is_refused(wrong):
    with pytest.raises(thg.PlanError, match=r"expected a plan, a planner such as thg.within"):
        thg.enable(sd15().pipe, wrong)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (70, "a count of evaluations is thg.tapered(70)"),
        (0.01, 'a tolerance is written "1%", and this budget thg.tapered(0.01)'),
        (
            "best",
            "'best' is not a tolerance such as \"1%\", a share of the evaluations such as 0.5, or a preset (audio",
        ),
    ],
)
def test_short_forms_that_mean_something_else_get_a_sentence(wrong, sentence):
    with pytest.raises(thg.PlanError, match=re.escape(sentence)):
        thg.enable(sd15().pipe, wrong)


def test_a_class_and_steps_that_are_none_get_a_sentence():
    pipe = sd15().pipe
    with pytest.raises(thg.UnsupportedPipelineError, match="not its class: StableDiffusionPipeline"):
        thg.enable(type(pipe))
    for wrong in (0, "twenty"):
        with pytest.raises(thg.PlanError, match=f"the number of steps of a run, such as 30, not {wrong!r}"):
            thg.preview(pipe, steps=wrong)


def test_a_layout_that_is_none_is_refused():
    with pytest.raises(thg.UnsupportedPipelineError, match=r"thg.Batched\(\) or thg.Sequential\(\), not 'batched'"):
        thg.enable(sd15().pipe, thg.uniform(every=2), layout="batched")


def test_memory_of_a_run():
    """Two evaluated outputs and what is to be corrected, whatever the number of steps."""
    case = sd15()
    held: list[int] = []

    def count(pipe, step, time, values):
        tensors = (item for item in gc.get_objects() if isinstance(item, Tensor))
        held.append(sum(tensor.shape == values["latents"].shape for tensor in tensors))
        return {}

    def most(**plan: Any) -> int:
        held.clear()
        case.run(steps=20, callback_on_step_end=count)
        return int(np.max(held))

    plain = most()
    thg.enable(case.pipe, HALF)
    assert most() - plain <= 5


@pytest.mark.parametrize("plan", [None, thg.tapered(0.4), thg.uniform(every=2)])
def test_the_preview_is_the_plan_of_the_run(plan):
    case = sd15()
    assert thg.supported(case.pipe, plan)
    seen = thg.preview(case.pipe, plan, steps=20, guidance_scale=5.0)
    thg.enable(case.pipe, plan)
    assert thg.preview(case.pipe, steps=20, guidance_scale=5.0) == seen
    case.run(steps=20)
    assert thg.summary(case.pipe).plan == seen


def test_what_is_not_supported_has_a_reason():
    support = thg.supported(sd15().pipe.unet)
    assert not support
    assert "takes a diffusers pipeline" in support.reason


def test_each_run_is_logged(caplog):
    case = sd15()
    thg.enable(case.pipe, HALF)
    with caplog.at_level("INFO", logger="thg"):
        case.run(steps=STEPS)
        case.pipe.scheduler = diffusers.EulerAncestralDiscreteScheduler.from_config(case.pipe.scheduler.config)
        case.run(steps=STEPS)
        thg.enable(case.pipe, "sd15")
        with pytest.raises(thg.PlanError):
            case.run(steps=STEPS)
    saved, plain, failed = caplog.records
    assert (saved.levelname, plain.levelname, failed.levelname) == ("INFO", "WARNING", "INFO")
    assert failed.getMessage() == "StableDiffusionPipeline: stopped after 0 network evaluations"
    assert saved.getMessage() == "StableDiffusionPipeline: 8 network evaluations instead of 16"
    assert "noise cannot be predicted" in plain.getMessage()


class Exact(torch.nn.Module):
    """The exact network of a mixture of Gaussians, which predicts the data."""

    def __init__(self, alphas: Tensor) -> None:
        super().__init__()
        self.mixture = GaussianMixture.random(dimension=8)
        self.alphas = alphas.double()

    def forward(self, x: Tensor, time: Tensor, label: int | None) -> Tensor:
        kept = self.alphas[int(time)]
        alpha, sigma = float(kept.sqrt()), float((1 - kept).sqrt())
        noise = -sigma * self.mixture.score(x.double(), alpha, sigma, label)
        return ((x - sigma * noise) / alpha).to(x.dtype)


class DataPipeline(diffusers.DiffusionPipeline):
    def __init__(self, network: torch.nn.Module, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(network=network, scheduler=scheduler)

    @torch.no_grad()
    def __call__(self, steps: int, guidance_scale: float = 3.0) -> Tensor:
        self.scheduler.set_timesteps(steps)
        x = torch.randn(6, 8, generator=torch.Generator().manual_seed(3)) * self.scheduler.init_noise_sigma
        for time in self.scheduler.timesteps:
            given = self.scheduler.scale_model_input(x, time)
            e_c, e_u = self.network(given, time, 1), self.network(given, time, None)
            x = self.scheduler.step(e_u + guidance_scale * (e_c - e_u), time, x, return_dict=False)[0]
        return x


@pytest.mark.parametrize("name", ["DPMSolverMultistep", "UniPCMultistep", "EulerDiscrete"])
def test_a_network_that_predicts_the_data_leaps_in_its_velocity(name):
    """A scheduler forgets the data at its next step: without velocities, nothing of a leap could be corrected."""
    scheduler = getattr(diffusers, f"{name}Scheduler")(prediction_type="sample", use_karras_sigmas=True)
    pipe = DataPipeline(Exact(scheduler.alphas_cumprod), scheduler)
    plain = pipe(50)
    thg.enable(pipe, 1.0)
    assert torch.equal(pipe(50), plain)
    thg.enable(pipe, 0.3)
    found = pipe(50)
    summary = thg.summary(pipe)
    assert summary.nfe == 30
    assert "not corrected" not in summary.note
    assert relative(found, plain) < 0.015  # without velocities from 0.022
    assert summary.plan == thg.preview(pipe, steps=50, guidance_scale=3.0)
