"""Pipelines that no table knows, on the shipped model: as a user might write them, each with a layout of its own.

All of them sample as diffusers' StableDiffusionPipeline does; they differ in how they call the network and in what they
make of its outputs before `scheduler.step`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import DiffusionPipeline, StableDiffusionPipeline
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from torch import Tensor


class Factory(DiffusionPipeline):
    """Is not called itself; such pipelines make others of their components."""

    def __init__(self, text_encoder: Any, tokenizer: Any, unet: Any, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(text_encoder=text_encoder, tokenizer=tokenizer, unet=unet, scheduler=scheduler)
        self.set_progress_bar_config(disable=True)


class OwnPipeline(Factory):
    """A loop of its own, without any of the names that diffusers' pipelines share."""

    inspect: Callable[[], Any] = staticmethod(lambda: None)  # what is looked at in the middle of a run
    inspected: Any = None
    begins_at = 0
    takes_every = 1

    @torch.no_grad()
    def __call__(self, words: list[str], strength: float, count: int, noise: Tensor) -> Tensor:
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        self.scheduler.set_timesteps(count)
        state = noise * self.scheduler.init_noise_sigma
        for number, time in enumerate(self.scheduler.timesteps[:: self.takes_every]):
            if number < self.begins_at:
                continue
            out = self.direction(self.scheduler.scale_model_input(state, time), time, wanted, neutral, strength, number)
            self.inspected = self.inspect()
            state = self.scheduler.step(out, time, state).prev_sample
        return state

    def embed(self, words: list[str]) -> Tensor:
        tokens = self.tokenizer(
            words,
            padding="max_length",
            max_length=self.tokenizer.model_max_length,
            truncation=True,
            return_tensors="pt",
        )
        return self.text_encoder(tokens.input_ids.to(self.text_encoder.device))[0]

    def run(self, state: Tensor, time: Tensor, embedding: Tensor) -> Tensor:
        return self.unet(state, time, encoder_hidden_states=embedding).sample

    def direction(self, state: Tensor, time: Tensor, wanted: Tensor, neutral: Tensor, w: float, number: int) -> Tensor:
        raise NotImplementedError


class UncondFirst(OwnPipeline):
    def direction(self, state, time, wanted, neutral, w, number):
        u, c = self.run(torch.cat([state] * 2), time, torch.cat([neutral, wanted])).chunk(2)
        return self.formula(c, u, w)

    def formula(self, c: Tensor, u: Tensor, w: float) -> Tensor:
        return u + w * (c - u)


class CondFirst(OwnPipeline):
    def direction(self, state, time, wanted, neutral, w, number):
        c, u = self.run(torch.cat([state] * 2), time, torch.cat([wanted, neutral])).chunk(2)
        return u + w * (c - u)


class Alternating(OwnPipeline):
    """The branches of each sample side by side."""

    def direction(self, state, time, wanted, neutral, w, number):
        guidance_scale = w  # noqa: F841 - the name by which pipelines tell it
        pairs = torch.stack([neutral, wanted], 1).flatten(0, 1)
        u, c = self.run(state.repeat_interleave(2, 0), time, pairs).unflatten(0, (-1, 2)).unbind(1)
        return u + w * (c - u)


class ChangesItsOrder(UncondFirst):
    """The conditional branch first, at each second step."""

    def direction(self, state, time, wanted, neutral, w, number):
        kind = CondFirst if number % 2 else UncondFirst
        return kind.direction(self, state, time, wanted, neutral, w, number)


class ZeroFirst(UncondFirst):
    """Passes zeros to the scheduler at its first step, as CFG-Zero* does."""

    def direction(self, state, time, wanted, neutral, w, number):
        out = super().direction(state, time, wanted, neutral, w, number)
        return out if number else torch.zeros_like(out)


class TwoCalls(OwnPipeline):
    def direction(self, state, time, wanted, neutral, w, number):
        c = self.run(state, time, wanted)
        u = self.run(state, time, neutral)
        return u + w * (c - u)


class Experts:
    """Another network from the middle of the run on."""

    def run(self, state: Tensor, time: Tensor, embedding: Tensor) -> Tensor:
        expert = self.unet if time > 500 else self.unet_2
        return expert(state, time, encoder_hidden_states=embedding).sample


class ExpertsCondFirst(Experts, TwoCalls):
    pass


class NetworkForEach(OwnPipeline):
    """Another network for the unconditional branch."""

    def direction(self, state, time, wanted, neutral, w, number):
        c = self.run(state, time, wanted)
        u = self.unet_2(state, time, encoder_hidden_states=neutral).sample
        return u + w * (c - u)


class FourPasses(TwoCalls):
    """Guided by two perturbed passes as well, as video models with sound are."""

    def direction(self, state, time, wanted, neutral, w, number):
        c, u = self.run(state, time, wanted), self.run(state, time, neutral)
        blurred, still = self.run(state, time, 0.5 * wanted), self.run(state, time, wanted.roll(1, 1))
        return u + w * (c - u) + 0.5 * (c - blurred) + 0.25 * (c - still)


class RisingScale(UncondFirst):
    """Without effect at the first step."""

    def direction(self, state, time, wanted, neutral, w, number):
        return super().direction(state, time, wanted, neutral, 1 + (w - 1) * number / 8, number)


class ThreeBranches(OwnPipeline):
    """Led away from the neutral prompt and, a little, from another one."""

    pull = -0.5

    def direction(self, state, time, wanted, neutral, w, number):
        other = self.embed(["a pale sandal"] * len(state))
        c, o, u = self.run(torch.cat([state] * 3), time, torch.cat([wanted, other, neutral])).chunk(3)
        return u + w * (c - u) + self.pull * (o - u)


class Rescaled(UncondFirst):
    def formula(self, c, u, w):
        out = u + w * (c - u)
        dims = tuple(range(1, out.ndim))
        return 0.7 * out * (c.std(dims, keepdim=True) / out.std(dims, keepdim=True)) + 0.3 * out


class NormKeeping(UncondFirst):
    """Each pixel keeps the norm of its conditional output."""

    def formula(self, c, u, w):
        out = u + w * (c - u)
        return out * (c.norm(dim=1, keepdim=True) / out.norm(dim=1, keepdim=True))


class NotLinear(UncondFirst):
    def formula(self, c, u, w):
        return 2 * torch.tanh((u + w * (c - u)) / 2)


class OffInTheMiddle(UncondFirst):
    """Guidance for the first two thirds of the steps, then the conditional branch alone."""

    def direction(self, state, time, wanted, neutral, w, number):
        if number >= len(self.scheduler.timesteps) * 2 // 3:
            return self.run(state, time, wanted)
        return super().direction(state, time, wanted, neutral, w, number)


class LiesInItsFlag(UncondFirst):
    """Says that guidance is on, and sends one branch."""

    do_classifier_free_guidance = True
    lies = True

    def direction(self, state, time, wanted, neutral, w, number):
        if self.lies:
            return self.run(state, time, wanted)
        return super().direction(state, time, wanted, neutral, w, number)


class LooksFirst(UncondFirst):
    """Calls its network for something else first, in the same way, as pipelines that collect features do."""

    def direction(self, state, time, wanted, neutral, w, number):
        self.run(torch.cat([state.roll(1, -1)] * 2), time, torch.cat([neutral, neutral]))
        return super().direction(state, time, wanted, neutral, w, number)


class LooksFirstLater(LooksFirst):
    """The same from the fourth step on."""

    def direction(self, state, time, wanted, neutral, w, number):
        steps = LooksFirst if number > 2 else UncondFirst
        return steps.direction(self, state, time, wanted, neutral, w, number)


class LooksFirstTwoCalls(TwoCalls):
    def direction(self, state, time, wanted, neutral, w, number):
        self.run(state.roll(1, -1), time, neutral)
        return super().direction(state, time, wanted, neutral, w, number)


class StepsByItself(UncondFirst):
    """Has a scheduler for its times alone."""

    @torch.no_grad()
    def __call__(self, words, strength, count, noise):
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        self.scheduler.set_timesteps(count)
        for number, time in enumerate(self.scheduler.timesteps):
            noise = noise - 0.1 * self.direction(noise, time, wanted, neutral, strength, number)
        return noise


class FromZero(UncondFirst):
    """Its time rises from 0, and its network gets it as a share of the schedule."""

    @torch.no_grad()
    def __call__(self, words, strength, count, noise):
        wanted, neutral = self.embed(words), self.embed([""] * len(words))
        self.scheduler.set_timesteps(sigmas=[1 - k / count for k in range(count)])
        for number, time in enumerate(self.scheduler.timesteps):
            out = self.direction(noise, time / 1000, wanted, neutral, strength, number)
            noise = self.scheduler.step(out, time, noise).prev_sample
        return noise


class ChangesItsFormula(UncondFirst):
    """Clips what it passes to the scheduler from the third step on."""

    def direction(self, state, time, wanted, neutral, w, number):
        out = super().direction(state, time, wanted, neutral, w, number)
        return out if number < 2 else out.clamp(-0.5, 0.5)


class BothUNet(torch.nn.Module):
    """A U-Net that takes an even number of rows, half of them conditional."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, state: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Transformer2DModelOutput:
        if len(state) < 4:
            raise ValueError("both branches of two samples, please")
        return self.unet(state, time, encoder_hidden_states=encoder_hidden_states)


class NeedsBoth(UncondFirst):
    pass


class KeywordUNet(torch.nn.Module):
    """A U-Net with names of its own for its arguments, the sample not the first of them."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, ids: Tensor, moment: Tensor, tokens: list[Tensor], text: Tensor) -> Transformer2DModelOutput:
        return self.unet(tokens[0], moment, encoder_hidden_states=text)


class Keywords(TwoCalls):
    def run(self, state, time, embedding):
        return self.unet(ids=torch.arange(3), moment=time, tokens=[state], text=embedding).sample


class TimeFirstUNet(torch.nn.Module):
    """A U-Net that takes its time first, one for each row."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, moments: Tensor, state: Tensor, text: Tensor) -> Transformer2DModelOutput:
        return self.unet(state, moments, encoder_hidden_states=text)


class TimeFirst(UncondFirst):
    def run(self, state, time, embedding):
        return self.unet(time.expand(len(state)), state, embedding).sample


class PackingUNet(torch.nn.Module):
    """A U-Net whose output comes as tokens of 2x2 patches."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, state: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Transformer2DModelOutput:
        out = self.unet(state, time, encoder_hidden_states=encoder_hidden_states).sample
        b, c, h, w = out.shape
        out = out.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, h * w // 4, c * 4)
        return Transformer2DModelOutput(sample=out)


class Packed(UncondFirst):
    def formula(self, c, u, w):
        out = u + w * (c - u)
        size = int(out.shape[1] ** 0.5)
        out = out.reshape(len(out), size, size, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return out.reshape(len(out), -1, size * 2, size * 2)


class VarianceUNet(torch.nn.Module):
    """A U-Net that also predicts a variance."""

    def __init__(self, unet: torch.nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, state: Tensor, time: Tensor, encoder_hidden_states: Tensor) -> Transformer2DModelOutput:
        out = self.unet(state, time, encoder_hidden_states=encoder_hidden_states).sample
        return Transformer2DModelOutput(sample=torch.cat([out, out.square()], 1))


class LearnedVariance(UncondFirst):
    def formula(self, c, u, w):
        c, u = c.chunk(2, 1)[0], u.chunk(2, 1)[0]
        return u + w * (c - u)


class Swapped(StableDiffusionPipeline):
    """A copy of StableDiffusionPipeline with a loop of its own, the conditional branch first."""

    @torch.no_grad()
    def __call__(self, prompt: list[str], guidance_scale: float, num_inference_steps: int, latents: Tensor) -> Tensor:
        self._guidance_scale, self._interrupt = guidance_scale, False
        wanted, neutral = self.encode_prompt(prompt, self.device, 1, True)
        self.scheduler.set_timesteps(num_inference_steps)
        for time in self.scheduler.timesteps:
            both = self.scheduler.scale_model_input(torch.cat([latents] * 2), time)
            out = self.unet(both, time, encoder_hidden_states=torch.cat([wanted, neutral])).sample
            c, u = out.chunk(2)
            latents = self.scheduler.step(u + guidance_scale * (c - u), time, latents).prev_sample
        return latents


NETWORKS = {
    Packed: PackingUNet,
    LearnedVariance: VarianceUNet,
    NeedsBoth: BothUNet,
    Keywords: KeywordUNet,
    TimeFirst: TimeFirstUNet,
}


def build(kind: type[DiffusionPipeline], known: StableDiffusionPipeline) -> DiffusionPipeline:
    """A pipeline of this kind on the components of a known one."""
    parts = known.components
    if issubclass(kind, StableDiffusionPipeline):
        return kind(**parts, requires_safety_checker=False)
    unet = NETWORKS.get(kind, lambda unet: unet)(parts["unet"])
    return kind(
        parts["text_encoder"], parts["tokenizer"], unet, type(parts["scheduler"]).from_config(parts["scheduler"].config)
    )


def psnr(a: Tensor, b: Tensor) -> Tensor:
    """Of each sample, in dB; latents have about unit variance, and span about 4."""
    return 10 * torch.log10(16 / (a - b).square().flatten(1).mean(1))
