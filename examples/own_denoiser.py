"""Without diffusers: a network of your own, sampled, accelerated and calibrated.

python examples/own_denoiser.py

The network here is the exact solution for points around six centres in two dimensions, of three classes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import thg

STEPS, NO_CLASS = 50, 3
PLACES = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))  # class, place, coordinate
SPREAD = 0.3


def network(x: Tensor, t: float, labels: Tensor) -> Tensor:
    """The velocity eps - x0 of the state (1 - t) x0 + t eps: time is 1 at noise and 0 at data."""
    places = torch.stack([PLACES.flatten(0, 1) if k == NO_CLASS else PLACES[k].repeat(3, 1) for k in labels.tolist()])
    offset = x[:, None] - (1 - t) * places
    variance = ((1 - t) * SPREAD) ** 2 + t**2
    share = (-0.5 * offset.square().sum(-1) / variance).softmax(1)[..., None]
    return (share * (offset * (t - (1 - t) * SPREAD**2) / variance - places)).sum(1)


schedule = thg.Schedule.flow(STEPS, time=(1, 0))  # the network's times at noise and at data
noise = torch.randn(256, 2, generator=torch.Generator().manual_seed(1))
labels = torch.arange(256) % 3


def run(plan: Any) -> Tensor:
    done = thg.sample(
        network, noise, plan, schedule, guidance_scale=4.0, condition=labels, unconditional=NO_CLASS, batched=True
    )
    print(done.summary)
    return done.x


full = run(thg.uniform(every=1))  # plain guidance
fewer = run(None)  # the default
print(f"largest difference: {float((full - fewer).abs().max()):.1e}\n")

profile = thg.calibrate(
    network, labels[:64], x=noise[:64], schedule=schedule, guidance_scale=4.0, unconditional=NO_CLASS, progress=False
)
profile.save("own_denoiser.json", force=True)
best = run(thg.Profile.load("own_denoiser.json").planner(nfe=0.65))
print(f"largest difference: {float((full - best).abs().max()):.1e}")
