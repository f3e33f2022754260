"""A loop that is no pipeline of diffusers, as in the repositories of new models: two calls model(x, t, context)."""

from __future__ import annotations

import torch
from diffusers import UniPCMultistepScheduler
from torch import Tensor, nn

import thg

STEPS, W = 30, 4.0


class Native(nn.Module):
    """Takes and returns lists, as Wan's own network does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 4))
        self.calls = 0

    def forward(self, x: list[Tensor], t: Tensor, context: list[Tensor]) -> list[Tensor]:
        self.calls += 1
        time = (t / 1000).reshape(1).expand(len(x[0]), 1)
        return [
            self.inner(torch.cat([each, c.expand(len(each), 1), time], 1)) for each, c in zip(x, context, strict=True)
        ]


class Loop:
    """All that thg needs of a loop: its networks and its scheduler as attributes, and a call."""

    def __init__(self, model: nn.Module, scheduler: UniPCMultistepScheduler) -> None:
        self.model, self.scheduler = model, scheduler
        self.components = {"model": model, "scheduler": scheduler}

    @torch.no_grad()
    def __call__(self, seed: int) -> Tensor:
        self.scheduler.set_timesteps(STEPS)
        latent = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed))
        text, empty = [torch.tensor([1.0])], [torch.tensor([0.0])]
        for t in self.scheduler.timesteps:
            cond = self.model([latent], t=t, context=text)[0]
            uncond = self.model([latent], t=t, context=empty)[0]
            latent = self.scheduler.step(uncond + W * (cond - uncond), t, latent, return_dict=False)[0]
        return latent


def test_a_native_loop_is_enabled_like_a_pipeline() -> None:
    torch.manual_seed(0)
    flow = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    loop = Loop(Native(), flow)
    plain = loop(0)
    assert loop.model.calls == 2 * STEPS
    with thg.enabled(loop):
        found = loop(0)
        summary = thg.summary(loop)
        assert torch.equal(loop(0), found)
    assert summary.cfg_nfe == 2 * STEPS
    assert summary.nfe < 1.3 * STEPS
    assert (found - plain).norm() < 0.02 * plain.norm()
    assert torch.equal(loop(0), plain)
