"""Loops of one's own under the default plan, on the shipped model: what they keep from step to step."""

from __future__ import annotations

import copy
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import diffusers
import pytest
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler
from torch import Tensor

import thg
from tests.pipelines import own_pipelines as own

WORDS = ["a dark ankle boot", "a pale dress"]


class Momentum(own.UncondFirst):
    """Adaptive projected guidance, with a momentum."""

    def direction(self, state, time, wanted, neutral, w, number):
        u, c = self.run(torch.cat([state] * 2), time, torch.cat([neutral, wanted])).chunk(2)
        self.average = c - u - (0.5 * self.average if number else 0)
        along = c / c.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        parallel = (self.average * along).flatten(1).sum(1).reshape(-1, 1, 1, 1) * along
        return c + (w - 1) * (self.average - parallel)


class MomentumInPlace(own.UncondFirst):
    """Guidance with a momentum, computed in the network's output."""

    def direction(self, state, time, wanted, neutral, w, number):
        u, c = self.run(torch.cat([state] * 2), time, torch.cat([neutral, wanted])).chunk(2)
        self.average = c.sub_(u) - (0.5 * self.average if number else 0)
        return u.add_(self.average, alpha=w)


class WithoutProperty(own.UncondFirst):
    """Has its guidance scale in an argument alone, as many of diffusers' pipelines."""

    def __call__(self, words: list[str], guidance_scale: float, num_inference_steps: int, noise: Tensor) -> Tensor:
        return super().__call__(words, guidance_scale, num_inference_steps, noise)


class OneBuffer(torch.nn.Module):
    """A network that writes all its outputs to one tensor, as captured graphs do."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet, self.buffer = unet, None

    def forward(self, state: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Any:
        out = self.unet(state, time, encoder_hidden_states=encoder_hidden_states).sample
        self.buffer = out if self.buffer is None else self.buffer.copy_(out)
        return OwnOutput(sample=self.buffer)


class Scaled(torch.nn.Module):
    """A network with a strength among the arguments of its attention, as LoRA adapters have."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, state: Tensor, time: Tensor, embedding: Tensor, cross_attention_kwargs: dict[str, float]) -> Any:
        strength = cross_attention_kwargs["scale"]
        return OwnOutput(sample=self.unet(state, time, encoder_hidden_states=strength * embedding).sample)


class LateStrength(own.UncondFirst):
    """Without its adapter at first."""

    def run(self, state, time, embedding):
        strength = 0.0 if time > 700 else 1.0
        return self.unet(state, time, embedding, cross_attention_kwargs={"scale": strength}).sample


class LateSecondCall(own.OwnPipeline):
    """Guidance begins late, with a call of its own."""

    def direction(self, state, time, wanted, neutral, w, number):
        c = self.run(state, time, wanted)
        return c if time > 700 else c + (w - 1) * (c - self.run(state, time, neutral))


class ReusesTheOther(own.OwnPipeline):
    """Evaluates the unconditional branch at each second step, and keeps it for the next."""

    def direction(self, state, time, wanted, neutral, w, number):
        c = self.run(state, time, wanted)
        if number % 2 == 0:
            self.kept = self.run(state, time, neutral)
        return c + (w - 1) * (c - self.kept)


class LooksOnce(own.UncondFirst):
    """Calls its network once more in a single step."""

    def direction(self, state, time, wanted, neutral, w, number):
        out = super().direction(state, time, wanted, neutral, w, number)
        if number == 9:
            self.run(torch.cat([state] * 2), time, torch.cat([neutral, wanted]))
        return out


class MovesBetweenSteps(own.UncondFirst):
    """Calls its network once more after each step, at the time of the step."""

    def direction(self, state, time, wanted, neutral, w, number):
        if number:
            state = state - 0.01 * super().direction(state, self.last, wanted, neutral, w, number)
        self.last = time
        return super().direction(state, time, wanted, neutral, w, number)


class NewScheduler(own.UncondFirst):
    """Makes a scheduler in each call."""

    def __call__(self, *given: object) -> Tensor:
        self.scheduler = type(self.scheduler).from_config(self.scheduler.config)
        return super().__call__(*given)


class CopiedScheduler(own.UncondFirst):
    def __call__(self, *given: object) -> Tensor:
        self.scheduler = copy.deepcopy(self.scheduler)
        return super().__call__(*given)


class LocalScheduler(own.UncondFirst):
    """Has a scheduler that only its loop knows."""

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        scheduler = DDIMScheduler.from_config(self.scheduler.config)
        scheduler.set_timesteps(count)
        for number, time in enumerate(scheduler.timesteps):
            out = self.direction(noise, time, wanted, neutral, strength, number)
            noise = scheduler.step(out, time, noise).prev_sample
        return noise


class Alternates(own.OwnPipeline):
    """Takes the prompts of its list in turn, one at each step."""

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        both = [self.embed(["", word]) for word in words]
        self.scheduler.set_timesteps(count)
        for number, time in enumerate(self.scheduler.timesteps):
            u, c = self.run(torch.cat([noise] * 2), time, both[number % len(both)]).chunk(2)
            noise = self.scheduler.step(u + strength * (c - u), time, noise).prev_sample
        return noise


class OverwritesItsPrompt(own.OwnPipeline):
    """Writes another prompt into its embeddings in the middle of the run."""

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        both = self.embed(["", words[0]])
        self.scheduler.set_timesteps(count)
        for number, time in enumerate(self.scheduler.timesteps):
            if number == count // 2:
                both[1:] = self.embed([words[1]])
            u, c = self.run(torch.cat([noise] * 2), time, both).chunk(2)
            noise = self.scheduler.step(u + strength * (c - u), time, noise).prev_sample
        return noise


class Forks(own.OwnPipeline):
    """Goes on with two states from the middle."""

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        self.scheduler.set_timesteps(count)
        state = noise[:1]
        for number, time in enumerate(self.scheduler.timesteps):
            if number == count // 2:
                state = torch.cat([state, state + 0.05 * noise[1:]])
            size = len(state)
            u, c = self.run(torch.cat([state] * 2), time, torch.cat([neutral[:size], wanted[:size]])).chunk(2)
            state = self.scheduler.step(u + strength * (c - u), time, state).prev_sample
        return state


class AddsNoise(own.OwnPipeline):
    """Goes to the data and adds new noise, by itself: its scheduler knows nothing of it."""

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        self.scheduler.set_timesteps(count)
        random = torch.Generator().manual_seed(2)
        for number, time in enumerate(times := self.scheduler.timesteps):
            u, c = self.run(torch.cat([noise] * 2), time, torch.cat([neutral, wanted])).chunk(2)
            noise = self.scheduler.step(u + strength * (c - u), time, noise).pred_original_sample
            if number + 1 < count:
                new = torch.randn(noise.shape, generator=random)
                noise = self.scheduler.add_noise(noise, new, times[number + 1 : number + 2])
        return noise


class OwnOutput(NamedTuple):
    sample: Tensor


class Wrapped(torch.nn.Module):
    """A network that returns its output in an object of its own."""

    def __init__(self, unet: torch.nn.Module, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.unet, self.kind = unet, kind

    def forward(self, state: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Any:
        return self.kind(sample=self.unet(state, time, encoder_hidden_states=encoder_hidden_states).sample)


@pytest.fixture(scope="module")
def known() -> diffusers.StableDiffusionPipeline:
    return thg.shipped_pipeline()


@pytest.fixture(scope="module")
def noise(known) -> Tensor:
    size = known.unet.config.sample_size
    return torch.randn(2, known.unet.config.in_channels, size, size, generator=torch.Generator().manual_seed(1))


def made(kind, known, scheduler=DDIMScheduler):
    pipe = own.build(kind, known)
    pipe.scheduler = scheduler.from_config(pipe.scheduler.config)
    return pipe


def farthest(found: Tensor, plain: Tensor) -> float:
    return float(((found - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)).max())


@pytest.mark.parametrize(
    ("kind", "scheduler", "steps", "most"),
    [(Momentum, DDIMScheduler, 50, 0.01), (LateSecondCall, DPMSolverMultistepScheduler, 20, 0.025)],
)
def test_what_a_loop_keeps_of_answers_is_of_this_time(kind, scheduler, steps, most, known, noise):
    """The network's last output in its place would be of an earlier one."""
    pipe = made(kind, known, scheduler)
    plain = pipe(WORDS, 5.0, steps, noise)
    thg.enable(pipe)
    found = pipe(WORDS, 5.0, steps, noise)
    assert thg.summary(pipe).saved > 0.2
    assert farthest(found, plain) < most


@pytest.mark.parametrize("buffered", [False, True])
def test_outputs_may_be_overwritten(buffered, known, noise):
    """By the pipeline, which computes in them, or by the network."""
    pipe = made(Momentum if buffered else MomentumInPlace, known)
    if buffered:
        pipe.unet = OneBuffer(known.unet)
    plain = pipe(WORDS, 5.0, 50, noise)
    thg.enable(pipe)
    found = pipe(WORDS, 5.0, 50, noise)
    assert thg.summary(pipe).saved > 0.5
    assert farthest(found, plain) < 0.01


@pytest.mark.parametrize("kind", [OwnOutput, types.SimpleNamespace])
def test_outputs_of_any_class_are_counted(kind, known, noise):
    pipe, usual = made(own.UncondFirst, known), made(own.UncondFirst, known)
    pipe.unet = Wrapped(known.unet, kind)
    thg.enable(pipe)
    thg.enable(usual)
    assert torch.equal(pipe(WORDS, 5.0, 20, noise), usual(WORDS, 5.0, 20, noise))
    assert thg.summary(pipe).nfe == thg.summary(usual).nfe == 26


def test_a_number_of_calls_that_changes_from_step_to_step_is_not_predicted(known, noise):
    pipe = made(ReusesTheOther, known)
    plain = pipe(WORDS, 5.0, 20, noise)
    thg.enable(pipe)
    assert torch.equal(pipe(WORDS, 5.0, 20, noise), plain)
    summary = thg.summary(pipe)
    assert summary.nfe == summary.cfg_nfe == 30
    assert summary.note == ("everything was evaluated: the number of its network calls changes from step to step")


def test_a_call_in_a_single_step_ends_nothing(known, noise):
    pipe = made(LooksOnce, known)
    thg.enable(pipe)
    pipe(WORDS, 5.0, 20, noise)
    summary = thg.summary(pipe)
    assert 0 in summary.evaluations[12:]
    assert not summary.note


def test_calls_that_differ_in_each_step_are_a_reason(known, noise):
    pipe = made(MovesBetweenSteps, known)
    plain = pipe(WORDS, 5.0, 20, noise)
    thg.enable(pipe)
    assert torch.equal(pipe(WORDS, 5.0, 20, noise), plain)
    assert "everything was evaluated: its networks, their calls" in thg.summary(pipe).note


@pytest.mark.parametrize("words", [WORDS, [*WORDS, "a coat"]])
def test_prompts_in_turn_are_not_predicted(words, known, noise):
    pipe = made(Alternates, known)
    plain = pipe(words, 4.0, 24, noise[:1])
    thg.enable(pipe)
    assert torch.equal(pipe(words, 4.0, 24, noise[:1]), plain)  # up to 0.9 off, if steps are predicted
    assert "everything was evaluated: its networks, their calls, their conditions" in thg.summary(pipe).note


def test_a_condition_that_is_overwritten_is_a_break(known, noise):
    pipe = made(OverwritesItsPrompt, known)
    plain = pipe(WORDS, 4.0, 24, noise[:1])
    thg.enable(pipe)
    found = pipe(WORDS, 4.0, 24, noise[:1])
    assert thg.summary(pipe).saved > 0.2
    assert farthest(found, plain) < 0.01  # across the change 0.030


def test_an_estimate_far_above_the_tolerance_is_remarked(known, noise):
    pipe = made(AddsNoise, known)
    plain = pipe(WORDS, 4.0, 24, noise)
    thg.enable(pipe)
    found = pipe(WORDS, 4.0, 24, noise)
    summary = thg.summary(pipe)
    assert max(summary.estimated_error) > 0.05
    assert farthest(found, plain) > 0.05
    assert "the estimate is far above the tolerance of 1.0%" in summary.note


def test_a_strength_by_name_that_changes_is_a_break(known, noise):
    pipe = made(LateStrength, known)
    pipe.unet = Scaled(known.unet)
    plain = pipe(WORDS, 4.0, 24, noise)
    thg.enable(pipe)
    found = pipe(WORDS, 4.0, 24, noise)
    assert thg.summary(pipe).saved > 0.2
    assert farthest(found, plain) < 0.01  # across the break 0.396


@pytest.mark.parametrize("scale", [5.0, 7.5])
def test_the_guidance_scale_is_also_read_from_the_call(scale, known, noise):
    pipe = thg.enable(made(WithoutProperty, known))
    pipe(WORDS, guidance_scale=scale, num_inference_steps=20, noise=noise)
    assert thg.summary(pipe).plan == thg.preview(pipe, steps=20, guidance_scale=scale)


def test_the_number_of_samples_may_change(known, noise):
    pipe = made(Forks, known)
    plain = pipe(WORDS, 4.0, 24, noise)
    thg.enable(pipe)
    found = pipe(WORDS, 4.0, 24, noise)
    summary = thg.summary(pipe)
    assert summary.saved > 0.2
    assert farthest(found, plain) < 0.02
    assert len(summary.estimated_error) == 1


def test_a_run_of_one_step_has_another_reason(known, noise):
    pipe = thg.enable(made(own.FourPasses, known))
    pipe(WORDS, 5.0, 1, noise)
    assert "one step is too few" in thg.summary(pipe).note


@pytest.mark.parametrize("kind", [NewScheduler, CopiedScheduler])
def test_a_scheduler_made_within_the_call_is_followed(kind, known, noise):
    pipe, usual = made(kind, known), made(own.UncondFirst, known)
    thg.enable(usual)
    expected = usual(WORDS, 5.0, 20, noise)
    thg.enable(pipe)
    schedulers = []
    for _ in range(4):
        assert torch.equal(pipe(WORDS, 5.0, 20, noise), expected)
        assert thg.summary(pipe).nfe == thg.summary(usual).nfe == 26
        assert "step" not in vars(pipe.scheduler)
        schedulers.append(weakref.ref(pipe.scheduler))
    gc.collect()
    assert [scheduler() is None for scheduler in schedulers] == [True, True, True, False]


def test_a_scheduler_that_is_not_the_pipelines_is_named(known, noise):
    pipe = made(LocalScheduler, known)
    plain = pipe(WORDS, 5.0, 20, noise)
    thg.enable(pipe)
    assert torch.equal(pipe(WORDS, 5.0, 20, noise), plain)
    assert "in an attribute of the pipeline, as pipe.scheduler is" in thg.summary(pipe).note
