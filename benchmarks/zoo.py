"""Small networks of many kinds, for choosing defaults and for testing them. Trains those that are missing.

    python -m benchmarks.zoo --out FOLDER        # in the root of the repository; 1 to 3 minutes a network on one core

They differ in what they predict (noise, v, data, flow), in their noise schedule, in their form (U-Net, transformer,
perceptron), in where they work (pixels, the latents of the shipped autoencoder, a few numbers) and in their data
(Fashion-MNIST of Debian's package dataset-fashion-mnist, gratings, coloured blobs, stripes and squares, curves in the
plane). All are class-conditional and know the empty label, so that guidance exists. Exact mixtures of Gaussians stand
beside them.
Those with `kept_out` choose nothing: they test what the others have chosen.

Training is deterministic; weights lie in the folder as safetensors, and a network whose file exists is not trained.
"""

from __future__ import annotations

import argparse
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import diffusers
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save
from torch import Tensor, nn

import thg
from thg.files import write_atomically
from thg.models import GARMENTS, TONES, ShippedName
from thg.models.shipped import about
from thg.ode.mixture import GaussianMixture
from training.data import DEBIAN_FOLDER, load_split
from training.emoji.data import as_floats, load_emoji

SIDE, NUMBERS, CLASSES = 8, 8, 10
NOBODY = CLASSES  # the label of the unconditional branch
BATCH, DROPPED, DECAY = 32, 0.12, 0.99  # training: samples per step, share without label, of the averaged weights
KERNELS, KERNEL = 20, 0.3  # of each class, and their standard deviation
SMOOTH, ROUGH = 0.03, 0.3  # the highest frequency of a network's time
SMOOTH_LEVELS = 11.0  # the same for EDM's time, log(sigma) / 4, from -1.6 to 1.1
SIZE = 0.5  # EDM: the standard deviation of the data
STABLE = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
LINEAR = {"beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear"}
COSINE = {"beta_schedule": "squaredcos_cap_v2"}
Prediction = Literal["epsilon", "v_prediction", "sample", "flow", "edm"]
Data = tuple[Tensor, Tensor]


# -- forms


def frequencies(time: Tensor, highest: float) -> Tensor:
    """highest: in radians per training time step of 1000. diffusers' networks have 1, and learn in long training to be
    smooth all the same; after minutes of training their outputs would be as rough as that."""
    angles = time.float()[:, None] * highest * torch.exp(-math.log(100) * torch.arange(32) / 32)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Perceptron(nn.Module):
    def __init__(self, numbers: int, width: int = 256, highest: float = SMOOTH) -> None:
        super().__init__()
        self.highest = highest
        self.label = nn.Embedding(CLASSES + 1, 64)
        sizes = [numbers + 128, width, width, width]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.SiLU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, numbers))

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        return self.layers(torch.cat([x, frequencies(time, self.highest), self.label(label)], dim=1))


class Transformer(nn.Module):
    """Square patches, modulated by time and label before each block."""

    def __init__(
        self, channels: int, side: int, patch: int, width: int = 48, depth: int = 2, highest: float = SMOOTH
    ) -> None:
        super().__init__()
        self.highest = highest
        self.patch = patch
        self.enter = nn.Linear(channels * patch**2, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2, width))
        self.label = nn.Embedding(CLASSES + 1, width)
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.modulations = nn.ModuleList(nn.Linear(width, 2 * width) for _ in range(depth))
        self.leave = nn.Linear(width, channels * patch**2)

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        patches = F.pixel_unshuffle(x, self.patch)
        tokens = self.enter(patches.flatten(2).transpose(1, 2)) + self.place
        condition = F.silu(self.time(frequencies(time, self.highest)) + self.label(label))
        for block, modulation in zip(self.blocks, self.modulations, strict=True):
            scale, shift = modulation(condition)[:, None].chunk(2, dim=2)
            tokens = block(tokens * (1 + scale) + shift)
        return F.pixel_shuffle(self.leave(tokens).transpose(1, 2).reshape(patches.shape), self.patch)


class Residual(nn.Module):
    def __init__(self, into: int, out: int, condition: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.GroupNorm(8, into), nn.SiLU(), nn.Conv2d(into, out, 3, padding=1))
        self.modulation = nn.Linear(condition, 2 * out)
        self.norm = nn.GroupNorm(8, out)
        self.second = nn.Sequential(nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)
        return self.skip(x) + self.second(self.norm(self.first(x)) * (1 + scale) + shift)


class UNet(nn.Module):
    """Two resolutions."""

    def __init__(self, channels: int, width: int = 16, highest: float = SMOOTH) -> None:
        super().__init__()
        self.highest = highest
        self.label = nn.Embedding(CLASSES + 1, 2 * width)
        self.time = nn.Sequential(nn.Linear(64, 2 * width), nn.SiLU(), nn.Linear(2 * width, 2 * width))
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.down = Residual(width, width, 2 * width)
        self.smaller = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.low = Residual(2 * width, 2 * width, 2 * width)
        self.lower = Residual(2 * width, 2 * width, 2 * width)
        self.up = Residual(3 * width, width, 2 * width)
        self.last = Residual(width, width, 2 * width)
        self.leave = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, channels, 3, padding=1))

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        condition = F.silu(self.time(frequencies(time, self.highest)) + self.label(label))
        high = self.down(self.enter(x), condition)
        low = self.lower(self.low(self.smaller(high), condition), condition)
        joined = torch.cat([high, F.interpolate(low, scale_factor=2.0)], dim=1)
        return self.leave(self.last(self.up(joined, condition), condition))


# -- data: values of about unit size, and labels


def pictures() -> Data:
    x, labels = load_split(DEBIAN_FOLDER, "train", 20_000)
    return F.avg_pool2d(x, 4), labels


def larger_pictures() -> Data:
    x, labels = load_split(DEBIAN_FOLDER, "train", 20_000)
    return F.avg_pool2d(x, 2), labels


def emoji() -> Data:
    """Emoji in colour; a class is one of ten groups of Unicode's list."""
    entries, x = load_emoji("core")
    groups = list(dict.fromkeys(entry.group for entry in entries))
    return F.avg_pool2d(as_floats(x), 4), torch.tensor([groups.index(entry.group) % CLASSES for entry in entries])


def components() -> Data:
    """The first principal components of the pictures, each with a variance of 1."""
    x, labels = pictures()
    centred = x.flatten(1) - x.flatten(1).mean(0)
    directions = torch.linalg.svd(centred[:5000], full_matrices=False).Vh[:NUMBERS]
    numbers = centred @ directions.T
    return numbers / numbers.std(0), labels


@functools.cache
def latents() -> Data:
    """What the shipped autoencoder makes of the pictures."""
    x, labels = load_split(DEBIAN_FOLDER, "train", 2_000)
    autoencoder: Any = thg.shipped_pipeline("eps").vae
    with torch.no_grad():
        parts = [autoencoder.encode(part).latent_dist.mean for part in x.split(500)]
    return torch.cat(parts) * autoencoder.config.scaling_factor, labels


def gratings() -> Data:
    """Waves of ten directions, with any phase, and any contrast and length within a range."""
    count = 20_000
    labels = torch.randint(CLASSES, (count,))
    phase = 2 * math.pi * torch.rand(count)
    length, contrast = 3 + 3 * torch.rand(count), 0.5 + 0.5 * torch.rand(count)
    waves = torch.sin(2 * math.pi * _along(labels) / length[:, None, None] + phase[:, None, None])
    return (contrast[:, None, None] * waves)[:, None], labels


def blobs() -> Data:
    """Two round blobs anywhere on a grey ground, in the two colours of the class."""
    count = 20_000
    labels = torch.randint(CLASSES, (count,))
    colours = torch.rand(CLASSES, 2, 3) * 2 - 1
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    result = torch.zeros(count, 3, SIDE, SIDE)
    for i in range(2):
        centre, size = SIDE * (0.15 + 0.7 * torch.rand(count, 2, 1, 1)), 1 + torch.rand(count, 1, 1)
        inside = torch.sigmoid(2 * (size - ((x - centre[:, 0]) ** 2 + (y - centre[:, 1]) ** 2).sqrt()))[:, None]
        result = result * (1 - inside) + inside * colours[labels, i, :, None, None]
    return result, labels


def stripes() -> Data:
    """Waves with sharp edges in ten directions, in the two colours of the class."""
    count = 20_000
    labels, phase, length = torch.randint(CLASSES, (count,)), torch.rand(count), 3 + 3 * torch.rand(count)
    along = _along(labels) / length[:, None, None] + phase[:, None, None]
    return _two_colours(torch.sigmoid(4 * torch.sin(2 * math.pi * along)), labels, seed=5), labels


def squares() -> Data:
    """A square anywhere, of any size within a range, in the two colours of the class."""
    count = 20_000
    labels = torch.randint(CLASSES, (count,))
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    centre, size = SIDE * (0.2 + 0.6 * torch.rand(count, 2, 1, 1)), 1 + 1.5 * torch.rand(count, 1, 1)
    distance = torch.maximum((x - centre[:, 0]).abs(), (y - centre[:, 1]).abs())
    return _two_colours(torch.sigmoid(3 * (size - distance)), labels, seed=6), labels


def _along(labels: Tensor) -> Tensor:
    """The distance of each pixel along the direction of the class."""
    angle = (math.pi * labels / CLASSES)[:, None, None]
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    return angle.cos() * x + angle.sin() * y


def _two_colours(inside: Tensor, labels: Tensor, seed: int) -> Tensor:
    colours = torch.rand(CLASSES, 2, 3, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    first, second = (colours[labels, i, :, None, None] for i in range(2))
    return inside[:, None] * first + (1 - inside[:, None]) * second


def half(data: Callable[[], Data]) -> Data:
    """The same data with the standard deviation of EDM."""
    x, labels = data()
    return SIZE / x.std() * x, labels


def arms() -> Data:
    """Points of the plane on the ten arms of a spiral, an arm to a class."""
    labels = torch.randint(CLASSES, (20_000,))
    radius = 0.3 + 1.5 * torch.rand(len(labels))
    angle = 2 * math.pi * labels / CLASSES + 1.2 * radius
    return torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) + 0.05 * torch.randn(len(labels), 2), labels


def rings() -> Data:
    """Points of the plane on ten rings that overlap, a ring to a class."""
    labels = torch.randint(CLASSES, (20_000,))
    centre, angle = 2 * math.pi * labels / CLASSES, 2 * math.pi * torch.rand(len(labels))
    x = torch.stack([centre.cos() + 0.7 * angle.cos(), centre.sin() + 0.7 * angle.sin()], dim=1)
    return x + 0.05 * torch.randn(len(labels), 2), labels


# -- the zoo


@dataclass(frozen=True)
class Kind:
    """A network to be trained. betas: of its noise schedule; empty for a flow. guidance: its own scale."""

    make: Callable[[], nn.Module]
    data: Callable[[], Data]
    shape: tuple[int, ...]
    prediction: Prediction
    betas: dict[str, Any]
    guidance: float
    iterations: int
    rate: float = 3e-3
    kept_out: bool = False


PIXELS, LATENTS, COLOURS = (1, SIDE, SIDE), (4, 8, 8), (3, SIDE, SIDE)
LARGER_PIXELS, LARGER_COLOURS = (1, 2 * SIDE, 2 * SIDE), (3, 2 * SIDE, 2 * SIDE)

KINDS = {
    "pixels, noise, U-Net": Kind(lambda: UNet(1), pictures, PIXELS, "epsilon", STABLE, 4.0, 600),
    "pixels, flow, transformer": Kind(lambda: Transformer(1, SIDE, 2), pictures, PIXELS, "flow", {}, 4.0, 600),
    "latents, v, U-Net": Kind(lambda: UNet(4), latents, LATENTS, "v_prediction", STABLE, 4.0, 600),
    "8 numbers, flow, perceptron": Kind(
        lambda: Perceptron(NUMBERS), components, (NUMBERS,), "flow", {}, 3.0, 4000, rate=2e-3
    ),
    "gratings, data, transformer": Kind(lambda: Transformer(1, SIDE, 2), gratings, PIXELS, "sample", LINEAR, 3.0, 600),
    "latents, flow, transformer": Kind(
        lambda: Transformer(4, 8, 2), latents, LATENTS, "flow", {}, 5.0, 600, kept_out=True
    ),
    "spiral, noise, perceptron": Kind(lambda: Perceptron(2), arms, (2,), "epsilon", LINEAR, 2.0, 4000, rate=2e-3),
    "pixels, noise, transformer": Kind(
        lambda: Transformer(1, SIDE, 2, highest=ROUGH), pictures, PIXELS, "epsilon", STABLE, 4.0, 600
    ),
    "blobs, noise, U-Net": Kind(lambda: UNet(3), blobs, COLOURS, "epsilon", LINEAR, 5.0, 600, kept_out=True),
    "gratings, v, U-Net": Kind(lambda: UNet(1), gratings, PIXELS, "v_prediction", COSINE, 4.0, 600, kept_out=True),
    "rings, flow, perceptron": Kind(
        lambda: Perceptron(2), rings, (2,), "flow", {}, 2.0, 4000, rate=2e-3, kept_out=True
    ),
    "blobs, flow, U-Net": Kind(lambda: UNet(3), blobs, COLOURS, "flow", {}, 5.0, 600),
    "stripes, noise, U-Net": Kind(lambda: UNet(3), stripes, COLOURS, "epsilon", LINEAR, 5.0, 600),
    "squares, noise, U-Net": Kind(lambda: UNet(3), squares, COLOURS, "epsilon", LINEAR, 5.0, 600),
    "squares, noise, transformer": Kind(lambda: Transformer(3, SIDE, 2), squares, COLOURS, "epsilon", COSINE, 4.0, 600),
    # larger and trained for longer
    "larger pixels, noise, U-Net": Kind(
        lambda: UNet(1, 24), larger_pictures, LARGER_PIXELS, "epsilon", LINEAR, 4.0, 2500, rate=2e-3
    ),
    "larger pixels, data, U-Net": Kind(
        lambda: UNet(1, 24), larger_pictures, LARGER_PIXELS, "sample", COSINE, 3.0, 2000, rate=2e-3
    ),
    "emoji, flow, transformer": Kind(
        lambda: Transformer(3, 2 * SIDE, 2, width=64, depth=3), emoji, LARGER_COLOURS, "flow", {}, 4.0, 2500, rate=2e-3
    ),
    "emoji, v, U-Net": Kind(lambda: UNet(3, 24), emoji, LARGER_COLOURS, "v_prediction", STABLE, 6.0, 2500, rate=2e-3),
    "larger pixels, v, transformer": Kind(
        lambda: Transformer(1, 2 * SIDE, 2, width=64, depth=3),
        larger_pictures,
        LARGER_PIXELS,
        "v_prediction",
        STABLE,
        5.0,
        2500,
        rate=2e-3,
        kept_out=True,
    ),
    "emoji, noise, U-Net": Kind(
        lambda: UNet(3, 24), emoji, LARGER_COLOURS, "epsilon", LINEAR, 5.0, 2500, rate=2e-3, kept_out=True
    ),
    "emoji, data, transformer": Kind(
        lambda: Transformer(3, 2 * SIDE, 2, width=64, depth=3),
        emoji,
        LARGER_COLOURS,
        "sample",
        LINEAR,
        3.0,
        2500,
        rate=2e-3,
        kept_out=True,
    ),
    "larger pixels, flow, U-Net": Kind(
        lambda: UNet(1, 24), larger_pictures, LARGER_PIXELS, "flow", {}, 4.0, 2500, rate=2e-3, kept_out=True
    ),
    "latents, noise, U-Net": Kind(
        lambda: UNet(4, 24), latents, LATENTS, "epsilon", STABLE, 5.0, 3000, rate=2e-3, kept_out=True
    ),
    # preconditioned as in EDM
    "pixels, EDM, U-Net": Kind(
        lambda: UNet(1, highest=SMOOTH_LEVELS), lambda: half(pictures), PIXELS, "edm", {}, 4.0, 1500
    ),
    "spiral, EDM, perceptron": Kind(
        lambda: Perceptron(2, highest=SMOOTH_LEVELS), lambda: half(arms), (2,), "edm", {}, 2.0, 4000, rate=2e-3
    ),
    "squares, EDM, transformer": Kind(
        lambda: Transformer(3, SIDE, 2, highest=SMOOTH_LEVELS), lambda: half(squares), COLOURS, "edm", {}, 4.0, 1500
    ),
    "larger pixels, EDM, U-Net": Kind(
        lambda: UNet(1, 24, highest=SMOOTH_LEVELS),
        lambda: half(larger_pictures),
        LARGER_PIXELS,
        "edm",
        {},
        4.0,
        2500,
        rate=2e-3,
        kept_out=True,
    ),
}


@dataclass(frozen=True)
class Mixture:
    """An exact network, without training: a random mixture, or one of kernels around samples of `data`."""

    shape: tuple[int, ...]
    prediction: Prediction
    betas: dict[str, Any]
    guidance: float
    seed: int = 0
    data: Callable[[], Data] | None = None
    kept_out: bool = False

    def density(self) -> GaussianMixture:
        if self.data is None:
            return GaussianMixture.random(CLASSES, 2, math.prod(self.shape), self.seed)
        torch.manual_seed(self.seed)
        x, labels = self.data()
        rows = torch.cat([(labels == name).nonzero()[:KERNELS, 0] for name in range(CLASSES)])
        ones = torch.ones(len(rows), dtype=torch.float64)
        return GaussianMixture(x[rows].flatten(1).double(), KERNEL * ones, ones, labels[rows])


MIXTURES = {
    "mixture, noise": Mixture((12,), "epsilon", STABLE, 4.0, seed=1),
    "mixture, flow": Mixture((6,), "flow", {}, 4.0, seed=2, kept_out=True),
    "kernels on pixels, noise": Mixture(PIXELS, "epsilon", STABLE, 3.0, data=pictures),
    "kernels on components, flow": Mixture((NUMBERS,), "flow", {}, 3.0, data=components),
    "kernels on gratings, v": Mixture(PIXELS, "v_prediction", COSINE, 3.0, data=gratings),
    "kernels on blobs, data": Mixture(COLOURS, "sample", LINEAR, 3.0, data=blobs, kept_out=True),
    "kernels on latents, noise": Mixture(LATENTS, "epsilon", STABLE, 4.0, data=latents, kept_out=True),
}


def kept(betas: dict[str, Any]) -> Tensor:
    """alphas_cumprod of a noise schedule, by diffusers."""
    return diffusers.DDPMScheduler(num_train_timesteps=1000, **betas).alphas_cumprod.double()


class Exact(nn.Module):
    def __init__(self, kind: Mixture) -> None:
        super().__init__()
        self.kind = kind
        self.mixture = kind.density()
        self.squares = self.mixture.means.square().sum(1)
        self.log_ratio = None if kind.prediction == "flow" else (1 / kept(kind.betas) - 1).log() / 2

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        """Posterior means of data and noise as in `GaussianMixture`, for all labels at once."""
        alpha, sigma = self._levels(float(time[0]))
        own, state = self.mixture, x.flatten(1).double()
        variance = alpha**2 * own.stds**2 + sigma**2
        distance = state.square().sum(1, keepdim=True) - 2 * alpha * state @ own.means.T + alpha**2 * self.squares
        log_density = own.weights.log() - 0.5 * state.shape[1] * variance.log() - 0.5 * distance / variance
        foreign = (label[:, None] != NOBODY) & (label[:, None] != own.labels)
        share = log_density.masked_fill(foreign, -math.inf).softmax(dim=1)
        pull = share / variance
        offset = pull.sum(1, keepdim=True) * state - alpha * pull @ own.means
        eps = sigma * offset
        spread = pull * own.stds**2
        x0 = share @ own.means + alpha * (spread.sum(1, keepdim=True) * state - alpha * spread @ own.means)
        outputs = {"epsilon": eps, "sample": x0, "v_prediction": alpha * eps - sigma * x0, "flow": eps - x0}
        return outputs[self.kind.prediction].reshape(x.shape).to(x.dtype)

    def _levels(self, time: float) -> tuple[float, float]:
        if self.log_ratio is None:
            sigma = min(max(time / 1000, 1e-4), 1 - 1e-4)
            return 1 - sigma, sigma
        before = min(int(time), len(self.log_ratio) - 2)
        ratio = float(torch.lerp(self.log_ratio[before], self.log_ratio[before + 1], time - before).exp())
        return 1 / math.hypot(1, ratio), ratio / math.hypot(1, ratio)


@dataclass(frozen=True)
class Shipped:
    """A shipped model on its own; a label is a garment."""

    name: ShippedName
    prediction: Prediction
    betas: dict[str, Any]
    guidance: float
    shape: tuple[int, ...] = LATENTS


SHIPPED = {
    "shipped, noise": Shipped("eps", "epsilon", STABLE, about("eps").guidance_scale),
    "shipped, flow": Shipped("flow", "flow", {}, about("flow").guidance_scale),
}


class Prompted(nn.Module):
    def __init__(self, name: ShippedName) -> None:
        super().__init__()
        pipe: Any = thg.shipped_pipeline(name)
        prompts = [f"a {TONES[i % len(TONES)]} {garment}" for i, garment in enumerate(GARMENTS)] + [""]
        self.own: Any = pipe.unet if name == "eps" else pipe.transformer
        with torch.no_grad():
            if name == "eps":
                self.embeds: tuple[Tensor, ...] = (pipe.encode_prompt(prompts, "cpu", 1, False)[0],)
            else:
                encoded = pipe.encode_prompt(prompts, None, None, max_sequence_length=1, device="cpu")
                self.embeds = (encoded[0], encoded[2])

    def forward(self, x: Tensor, time: Tensor, label: Tensor) -> Tensor:
        names = ("encoder_hidden_states", "pooled_projections")
        embeds = {name: embed[label] for name, embed in zip(names, self.embeds, strict=False)}
        return self.own(x, timestep=time, **embeds, return_dict=False)[0]


Member = Kind | Mixture | Shipped
MEMBERS: dict[str, Member] = {**KINDS, **MIXTURES, **SHIPPED}
CHOOSING = tuple(name for name, kind in {**KINDS, **MIXTURES}.items() if not kind.kept_out)  # type: ignore[attr-defined]
KEPT_OUT = tuple(name for name, kind in {**KINDS, **MIXTURES}.items() if kind.kept_out)  # type: ignore[attr-defined]


# -- training


def network(name: str, folder: Path) -> nn.Module:
    """A network of the zoo, with averaged weights from its file or from training."""
    if name in MIXTURES:
        return Exact(MIXTURES[name])
    if name in SHIPPED:
        return Prompted(SHIPPED[name].name).eval().requires_grad_(False)
    torch.manual_seed(0)
    kind = KINDS[name]
    made, path = kind.make(), folder / f"{name.replace(', ', '-').replace(' ', '_')}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, save(train(name, made, kind)))
    made.load_state_dict(load_file(path))
    return made.eval().requires_grad_(False)


@torch.enable_grad()  # a bench may ask for a network where no gradients are recorded
def train(name: str, made: nn.Module, kind: Kind) -> dict[str, Tensor]:
    data, labels = kind.data()
    alphas = None if kind.prediction in ("flow", "edm") else kept(kind.betas).float()
    optimiser = torch.optim.AdamW(made.parameters(), kind.rate)
    average = {key: value.clone() for key, value in made.state_dict().items()}
    for i in range(kind.iterations):
        optimiser.param_groups[0]["lr"] = kind.rate * min(1, i / 100) * (1 - 0.9 * i / kind.iterations)
        chosen = torch.randint(len(data), (BATCH,))
        label = torch.where(torch.rand(BATCH) < DROPPED, NOBODY, labels[chosen])
        x, time, target = noised(kind.prediction, alphas, data[chosen], level_at_rest=bool(i % 2))
        loss = F.mse_loss(made(x, time, label), target)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimiser.step()
        with torch.no_grad():
            for key, value in made.state_dict().items():
                average[key].lerp_(value, 1 - min(DECAY, i / (i + 50)))
        if i % 500 == 0:
            print(f"{name}: {i} of {kind.iterations}, loss {loss.item():.3f}", flush=True)
    return average


def noised(
    prediction: Prediction, alphas: Tensor | None, x0: Tensor, level_at_rest: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The network's input, its time and its target. level_at_rest: levels of a flow are uniform, not in the middle."""
    noise, wide = torch.randn_like(x0), (len(x0), *(1 for _ in x0.shape[1:]))
    if prediction == "edm":
        sigma = (1.2 * torch.randn(len(x0)) - 1.2).exp()
        x, size = x0 + sigma.reshape(wide) * noise, (sigma**2 + SIZE**2).sqrt().reshape(wide)
        target = (x0 - SIZE**2 / size**2 * x) * size / (SIZE * sigma.reshape(wide))
        return x / size, sigma.log() / 4, target
    if alphas is None:
        level = torch.rand(len(x0)) if level_at_rest else torch.randn(len(x0)).sigmoid()
        share = level.reshape(wide)
        return (1 - share) * x0 + share * noise, 1000 * level, noise - x0
    time = torch.randint(1000, (len(x0),))
    alpha, sigma = alphas[time].sqrt().reshape(wide), (1 - alphas[time]).sqrt().reshape(wide)
    targets = {"epsilon": noise, "sample": x0, "v_prediction": alpha * noise - sigma * x0}
    return alpha * x0 + sigma * noise, time, targets[prediction]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/zoo"))
    options = parser.parse_args()
    for name in KINDS:
        network(name, options.out)


if __name__ == "__main__":
    main()
