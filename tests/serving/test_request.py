"""A request in an engine: the loop is the engine's, the decisions are the plan's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler

import thg
from thg.errors import PlanError
from thg.plans.planners import Planned
from thg.serving.request import ServedRun, ServerSetting, planned, run_of, server_setting

STEPS, SCALE = 20, 4.0
PROMPT = "a dark ankle boot"


@pytest.fixture(scope="module")
def pipe():
    pipe = thg.shipped_pipeline("flow")
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Loop:
    """An engine's loop over the shipped flow model: two network calls a step, then its scheduler's step."""

    def __init__(self, pipe, asked="1%", steps=STEPS, prompt=PROMPT, dtype=torch.float32):
        self.pipe, self.dtype = pipe, dtype
        self.scheduler = FlowMatchEulerDiscreteScheduler.from_config(pipe.scheduler.config)
        self.scheduler.set_timesteps(steps)
        generator = torch.Generator().manual_seed(3)
        self.embeddings = pipe.encode_prompt(prompt, prompt, prompt)
        size = pipe.transformer.config.sample_size
        self.latents = torch.randn(1, pipe.transformer.config.in_channels, size, size, generator=generator)
        self.branches, self.model = 2, pipe.transformer
        self.served = (
            ServedRun(planned(asked), run_of(self.scheduler, self.scheduler.timesteps, branches=2)) if asked else None
        )

    def predict(self, t):
        conditional, unconditional, pooled, unpooled = self.embeddings
        both = ((conditional, pooled), (unconditional, unpooled))
        outputs = [
            self.model(
                hidden_states=self.latents.float(), timestep=t[None], encoder_hidden_states=text, pooled_projections=p
            ).sample
            for text, p in both[: self.branches]
        ]
        guided = outputs[0] if self.branches == 1 else outputs[1] + SCALE * (outputs[0] - outputs[1])
        return guided.to(self.dtype)

    @torch.no_grad()
    def step(self, index):
        t = self.scheduler.timesteps[index]
        if self.served is None:
            output = self.predict(t)
        else:
            output = self.served.step(
                index, lambda: self.predict(t), model=self.model, branches=self.branches, state=self.latents
            )
        assert output.dtype == self.dtype
        self.latents = self.scheduler.step(output, t, self.latents, return_dict=False)[0]

    def run(self):
        for index in range(len(self.scheduler.timesteps)):
            self.step(index)
        return self.latents


def difference(found, plain):
    return float((found - plain).norm() / plain.norm())


def test_it_makes_what_the_pipeline_makes(pipe):
    """The same plan and the same latents as `thg.enable`, in a loop that is not a pipeline's."""
    loop = Loop(pipe)
    noise = loop.latents
    found = loop.run()
    with thg.enabled(pipe, "1%"):
        expected = pipe(
            PROMPT, num_inference_steps=STEPS, guidance_scale=SCALE, latents=noise, output_type="latent"
        ).images
        done = thg.summary(pipe)
    report = loop.served.report()
    assert (report.evaluations, report.plain_evaluations) == (done.nfe, done.cfg_nfe)
    assert report.evaluated == done.strip()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert report.estimated_error == pytest.approx(max(done.estimated_error), rel=1e-2)


def test_it_saves_evaluations_and_keeps_the_picture(pipe):
    plain = Loop(pipe, asked=None).run()
    fast, half = Loop(pipe), Loop(pipe, asked=0.5)
    assert 0 < difference(fast.run(), plain) < 0.02
    assert difference(half.run(), plain) < 0.05
    assert fast.served.report().evaluations < 0.8 * 2 * STEPS
    assert half.served.report().evaluations == STEPS
    report = half.served.report()
    assert report.evaluated.count("●") == report.evaluated.count("○") == STEPS // 2
    assert str(report).startswith(f"20 of 40 network evaluations in 20 steps {report.evaluated}, estimated difference ")


def test_requests_in_flight_share_nothing(pipe):
    alone = [Loop(pipe, prompt=prompt).run() for prompt in (PROMPT, "a light dress")]
    loops = [Loop(pipe, prompt=prompt) for prompt in (PROMPT, "a light dress")]
    for index in range(STEPS):
        for loop in loops:
            loop.step(index)
    for loop, expected in zip(loops, alone, strict=True):
        assert torch.equal(loop.latents, expected)


def test_every_rank_decides_alike(pipe):
    """From the run's inputs alone: other prompts, other latents and half precision give the same plan."""
    reports = []
    for prompt, dtype in ((PROMPT, torch.float32), ("a light dress", torch.bfloat16)):
        loop = Loop(pipe, prompt=prompt, dtype=dtype)
        loop.run()
        reports.append(loop.served.report().evaluated)
    assert reports[0] == reports[1]


def test_a_rank_that_misses_alone_keeps_the_plan():
    """With sequence parallelism each rank has a part of the latents: what it sees there must not change its steps."""
    reports = []
    for size in (1.0, 1000.0):
        served = ServedRun(planned("1%"), run_of(_flow(), _flow().timesteps, branches=2))
        for index in range(STEPS):
            output = torch.full((1, 4), size ** (index % 3))
            served.step(index, lambda output=output: output, model=None, branches=2, state=torch.ones(1, 4))
        reports.append(served.report())
    assert reports[0].evaluated == reports[1].evaluated
    assert "○" in reports[0].evaluated
    assert ["may be wrong" in report.note for report in reports] == [False, True]


@pytest.mark.parametrize(("asked", "steps"), [("1%", STEPS), (0.5, STEPS), ("1%", 50)])
def test_what_ranks_round_differently_grows_hardly_more_than_it_must(asked, steps):
    """Each evaluation's rounding is its own. Whatever the weights of k evaluations in the final state are, their sum is
    that of the plain run, so the norm is no less than with equal weights."""
    run = run_of(_flow(steps), _flow(steps).timesteps, branches=2)
    served = ServedRun(planned(asked), run)
    used = [
        served.step(index, lambda unit=unit: unit, model=None, branches=2, state=None).numpy()
        for index, unit in enumerate(torch.eye(steps).split(1))
    ]
    plain = run.response.matrix[-1]
    weights = plain @ np.concatenate(used)
    least = abs(plain.sum()) / np.sqrt(served.report().evaluations / 2)
    assert weights.sum() == pytest.approx(plain.sum(), rel=1e-4)
    assert np.linalg.norm(plain) < least <= np.linalg.norm(weights) < 10 ** (1.2 / 20) * least


def test_a_broken_result_is_said_and_has_no_estimate():
    """NaN is no number in JSON."""
    served = ServedRun(planned("1%"), run_of(_flow(), _flow().timesteps, branches=2))
    for index in range(STEPS):
        served.step(index, lambda: torch.full((1, 4), torch.nan), model=None, branches=2, state=torch.ones(1, 4))
    assert served.report().estimated_error is None
    assert "this result is broken" in served.report().note


@pytest.mark.parametrize("change", ["model", "branches", "shape"])
def test_another_cause_than_time_starts_anew(pipe, change):
    first = Loop(pipe)
    first.run()
    evaluated = first.served.report().evaluated
    at = evaluated.index("○", 5)
    loop = Loop(pipe)
    for index in range(STEPS):
        if index == at:
            if change == "model":
                loop.model = thg.shipped_pipeline("flow").transformer
            elif change == "branches":
                loop.branches = 1
            else:
                loop.latents = loop.latents[:, :, :4]
        loop.step(index)
    found = loop.served.report().evaluated
    assert found[:at] == evaluated[:at]
    assert found[at : at + 2] == "●●"
    assert "○" in found[at:]


def test_steps_out_of_order_are_evaluated(pipe):
    loop = Loop(pipe)
    for index in (0, 1, 2, *range(5, STEPS)):
        loop.step(index)
    report = loop.served.report()
    assert report.evaluated[3:] == "●" * (STEPS - 5)
    assert "step 5 came where step 3 was expected" in report.note


def test_several_tensors_at_once():
    """Video and sound: an engine may return a tuple, each part in its own precision."""
    run = run_of(_flow(), _flow().timesteps, branches=2)
    served, state = ServedRun(planned("1%"), run), torch.ones(1, 4)
    seen = []
    for index in range(STEPS):
        parts = (torch.full((1, 4), float(index)), torch.full((1, 2), 2.0 * index, dtype=torch.bfloat16))
        seen.append(served.step(index, lambda parts=parts: parts, model=None, branches=2, state=state))
    assert [part.dtype for part in seen[9]] == [torch.float32, torch.bfloat16]
    assert "○" in served.report().evaluated


def test_without_the_latents_there_is_no_estimate():
    """An engine may not show them, or show them with other channels beside."""
    for state in (None, torch.ones(1, 8)):
        served = ServedRun(planned("1%"), run_of(_flow(), _flow().timesteps, branches=2))
        for index in range(STEPS):
            served.step(index, lambda: torch.ones(1, 4), model=None, branches=2, state=state)
        assert "○" in served.report().evaluated
        assert served.report().estimated_error is None


def _flow(steps=STEPS):
    scheduler = FlowMatchEulerDiscreteScheduler()
    scheduler.set_timesteps(steps)
    return scheduler


def test_noise_is_never_predicted():
    scheduler = DDIMScheduler(clip_sample=False)
    scheduler.set_timesteps(STEPS)
    served = ServedRun(planned(0.5), run_of(scheduler, scheduler.timesteps, branches=2, step_arguments={"eta": 1.0}))
    for index in range(STEPS):
        served.step(index, lambda: torch.ones(1, 4), model=None, branches=2, state=torch.ones(1, 4))
    assert served.report().evaluations == 2 * STEPS
    assert "eta above 0" in served.report().note


# -- settings


@pytest.mark.parametrize("value", ["1%", " 3% ", 0.5, "0.5", "0.3 %"])
def test_settings_that_are_understood(value):
    assert isinstance(planned(value), Planned)


@pytest.mark.parametrize("value", ["fast", 7.0, "0%", [1], True, 1, "1", "sd15-ddim", "1.5", "nan", "nan%"])
def test_settings_that_are_not_say_what_to_write(value):
    with pytest.raises(PlanError, match='write "1%"'):
        planned(value)


def test_the_request_decides_before_the_server(monkeypatch):
    for text in ("", "off", "0"):
        monkeypatch.setenv("THG_SERVING", text)
        assert server_setting() is None
    monkeypatch.setenv("THG_SERVING", "on request")
    assert server_setting() == ServerSetting("on request", None)
    monkeypatch.setenv("THG_SERVING", "1%")
    setting = server_setting()
    assert setting.of_request(None) == setting.of_request({"other": 1}) == planned("1%")
    assert setting.of_request({"thg": "3%"}) == planned("3%")
    assert setting.of_request({"thg": "off"}) is setting.of_request({"thg": False}) is None
