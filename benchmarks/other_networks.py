"""Does the default hold on networks that did not choose it? Trains small ones of other kinds, and runs thg on them.

    python -m benchmarks.other_networks        # in the root of the repository

Three class-conditional networks on Fashion-MNIST (Debian's package dataset-fashion-mnist), each trained for about a
minute: transformers on pictures of 16 by 16 pixels that predict a flow and the noise, and a perceptron that predicts
the flow of eight numbers, the principal components of the pictures. For each scheduler and number of steps: the share
of plain CFG's evaluations; the relative difference of the final states from plain CFG's in dB (40 dB is 1 %), mean /
worst 5 %, with the default and with as many evenly spread evaluations; and how many error estimates are right within a
factor of 2. Weights are kept in the folder, so the script can run again without training.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

import thg
from thg.adapter.describe import describe
from thg.files import write_atomically
from thg.plans.fidelity import CORRECTOR, SLOPE, even
from thg.plans.guide import HareGuide
from thg.plans.run import Run
from training.data import DEBIAN_FOLDER, load_split

SIDE, NUMBERS, CLASSES = 16, 8, 10
NOBODY = CLASSES  # the label of the unconditional branch
BATCH, DROPPED, DECAY = 64, 0.12, 0.998  # training: samples per step, share without label, of the averaged weights
BETAS = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "num_train_timesteps": 1000}
STEPS = (20, 28, 50)


def frequencies(time: Tensor) -> Tensor:
    angles = time.float()[:, None] * torch.exp(-math.log(10_000) * torch.arange(32) / 32)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Perceptron(nn.Module):
    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.label = nn.Embedding(CLASSES + 1, 64)
        sizes = [NUMBERS + 128, width, width, width]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, NUMBERS))

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        return self.layers(torch.cat([x, frequencies(time), self.label(label)], dim=1))


class Transformer(nn.Module):
    """Patches of 4 by 4 pixels, modulated by time and label before each block."""

    def __init__(self, width: int = 96, depth: int = 4, patch: int = 4) -> None:
        super().__init__()
        self.patch, self.across = patch, SIDE // patch
        self.enter = nn.Linear(patch**2, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, self.across**2, width))
        self.label = nn.Embedding(CLASSES + 1, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.modulations = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.leave = nn.Linear(width, patch**2)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        p, n = self.patch, self.across
        tokens = x.reshape(-1, n, p, n, p).transpose(2, 3).reshape(-1, n * n, p * p)
        tokens = self.enter(tokens) + self.place
        condition = F.silu(self.time(frequencies(time)) + self.label(label))
        for block, modulation in zip(self.blocks, self.modulations, strict=True):
            scale, shift = modulation(condition)[:, None].chunk(2, dim=2)
            tokens = block(tokens * (1 + scale) + shift)
        return self.leave(tokens).reshape(-1, n, n, p, p).transpose(2, 3).reshape(-1, 1, SIDE, SIDE)


def pictures() -> tuple[Tensor, Tensor]:
    x, labels = load_split(DEBIAN_FOLDER, "train", 20_000)
    return F.avg_pool2d(x, 2), labels


def components() -> tuple[Tensor, Tensor]:
    """The first principal components of the pictures, each with a variance of 1."""
    x, labels = pictures()
    centred = x.flatten(1) - x.flatten(1).mean(0)
    directions = torch.linalg.svd(centred[:5000], full_matrices=False).Vh[:NUMBERS]
    numbers = centred @ directions.T
    return numbers / numbers.std(0), labels


@dataclass(frozen=True)
class Kind:
    make: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    shape: tuple[int, ...]
    flow: bool
    iterations: int
    rate: float


KINDS = {
    "transformer, flow": Kind(Transformer, pictures, (1, SIDE, SIDE), True, 2500, 1.2e-3),
    "transformer, noise": Kind(Transformer, pictures, (1, SIDE, SIDE), False, 2500, 1.2e-3),
    "perceptron, flow": Kind(Perceptron, components, (NUMBERS,), True, 3000, 2e-3),
}


def trained(name: str, kind: Kind, folder: Path) -> nn.Module:
    """The network with averaged weights, from its file or from training."""
    torch.manual_seed(0)
    network, path = kind.make(), folder / f"{name.replace(', ', '-')}.safetensors"
    if not path.exists():
        write_atomically(path, save(train(name, network, kind)))
    network.load_state_dict(load_file(path))
    return network.eval().requires_grad_(False)


def train(name: str, network: nn.Module, kind: Kind) -> dict[str, Tensor]:
    data, labels = kind.data()
    kept = torch.linspace(BETAS["beta_start"] ** 0.5, BETAS["beta_end"] ** 0.5, 1000).square()  # type: ignore[operator]
    kept = torch.cumprod(1 - kept, 0)
    optimiser = torch.optim.AdamW(network.parameters(), kind.rate)
    average = {key: value.clone() for key, value in network.state_dict().items()}
    for i in range(kind.iterations):
        optimiser.param_groups[0]["lr"] = kind.rate * min(1, i / 100) * (1 - 0.9 * i / kind.iterations)
        chosen = torch.randint(len(data), (BATCH,))
        x0, noise = data[chosen], torch.randn(BATCH, *kind.shape)
        label = torch.where(torch.rand(BATCH) < DROPPED, NOBODY, labels[chosen])
        level = torch.rand(BATCH) if i % 2 else torch.randn(BATCH).sigmoid()
        share = level.reshape(-1, *(1 for _ in kind.shape))
        if kind.flow:
            time, x, target = 1000 * level, (1 - share) * x0 + share * noise, noise - x0
        else:
            time = torch.randint(1000, (BATCH,))
            alpha = kept[time].reshape(share.shape)
            x, target = alpha.sqrt() * x0 + (1 - alpha).sqrt() * noise, noise
        loss = F.mse_loss(network(x, time, label), target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for key, value in network.state_dict().items():
                average[key].lerp_(value, 1 - min(DECAY, i / (i + 50)))
        if i % 500 == 0:
            print(f"{name}: {i} of {kind.iterations}, loss {loss.item():.3f}", flush=True)
    return average


def schedulers(flow: bool) -> dict[str, Callable[[], Any]]:
    if flow:
        of_flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
        return {
            "Euler": lambda: diffusers.FlowMatchEulerDiscreteScheduler(),
            "Euler, shift 3": lambda: diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
            "DPM++ 2M": lambda: diffusers.DPMSolverMultistepScheduler(**of_flow),
        }
    return {
        "DDIM": lambda: diffusers.DDIMScheduler(**BETAS, clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        "DPM++ 2M": lambda: diffusers.DPMSolverMultistepScheduler(**BETAS),
        "UniPC": lambda: diffusers.UniPCMultistepScheduler(**BETAS),
    }


@dataclass(frozen=True)
class Even:
    """Evenly spread evaluations, as many as the default would use."""

    def plan(self, run: Run) -> thg.Plan:
        count = thg.within().plan(run).evaluations
        return thg.Plan(run.steps, even(run.steps, count), corrector=CORRECTOR, slope=SLOPE)


@torch.no_grad()
def sample(
    network: nn.Module, scheduler: Any, noise: Tensor, steps: int, w: float, planner: Any = None
) -> tuple[Tensor, Tensor | None, float]:
    """Final states, their estimated errors, and the share of plain CFG's evaluations. planner: None is plain CFG."""
    scheduler.set_timesteps(steps)
    run = replace(describe(scheduler, scheduler.timesteps), guidance_scale=w)
    plan = thg.Plan(run.steps, tuple(range(run.steps))) if planner is None else planner.plan(run)
    guide = HareGuide(plan, run)
    labels = torch.arange(len(noise)) % CLASSES
    both = torch.cat([labels, torch.full_like(labels, NOBODY)])
    x = last = noise * scheduler.init_noise_sigma if hasattr(scheduler, "init_noise_sigma") else noise
    for i, time in enumerate(scheduler.timesteps):
        last = x
        times = time.expand(2 * len(x))
        if guide.evaluates(i):
            e_c, e_u = network(torch.cat([x, x]), times, both).chunk(2)
            term = (guide.observe(i, (e_c,), (e_c - e_u,)) or (e_c - e_u,))[0]
        else:
            e_c = network(x, times[: len(x)], labels)
            term = (guide.predict(i, (e_c,)) or (torch.zeros_like(e_c),))[0]
        x = scheduler.step(e_c + (w - 1) * term, time, x, return_dict=False)[0]
    return x, guide.estimated_error(last), plan.nfe / plan.cfg_nfe


def row(network: nn.Module, make: Callable[[], Any], noise: Tensor, steps: int, w: float) -> str:
    plain, _, _ = sample(network, make(), noise, steps, w)

    def error(x: Tensor) -> Tensor:
        return (x - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)

    def decibels(x: Tensor) -> str:
        found = -20 * error(x).clamp(min=1e-6).log10().numpy()
        return f"{found.mean():.1f} / {np.quantile(found, 0.05):.1f}"

    own, estimated, share = sample(network, make(), noise, steps, w, thg.within())
    spread, _, _ = sample(network, make(), noise, steps, w, Even())
    right = "–" if estimated is None else f"{((estimated / error(own)).log2().abs() <= 1).float().mean():.0%}"
    return f"{share:.0%} | {decibels(own)} | {right} | {decibels(spread)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--guidance-scale", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path("results/other_networks"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    networks = {name: trained(name, kind, options.out) for name, kind in KINDS.items()}
    print("| network | scheduler | steps | share | default | estimate | evenly spread |\n|---|---|---|---|---|---|---|")
    for name, kind in KINDS.items():
        noise = torch.randn(options.samples, *kind.shape, generator=torch.Generator().manual_seed(7))
        for label, make in schedulers(kind.flow).items():
            for steps in STEPS:
                cells = row(networks[name], make, noise, steps, options.guidance_scale)
                print(f"| {name} | {label} | {steps} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
