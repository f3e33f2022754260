"""A network from scratch, without anything of thg: what the best possible network for a few pictures of two classes
puts out, as a function of the levels of signal and noise. Each test dresses it in a convention of its own."""

import math

import torch

PIXELS = 64
CLASSES = 2
NONE = 2  # the label of no class


def pictures(count=12, seed=0):
    """(CLASSES, count, PIXELS): smooth curves, the classes of different mean."""
    generator = torch.Generator().manual_seed(seed)
    at = torch.linspace(0, 2 * math.pi, PIXELS, dtype=torch.float64)
    waves = torch.stack([torch.sin(k * at) for k in range(1, 6)])
    found = torch.randn(CLASSES, count, 5, dtype=torch.float64, generator=generator) @ waves * 0.5
    return found + torch.tensor([-0.3, 0.4], dtype=torch.float64)[:, None, None]


DATA = pictures()


def denoised(x, alpha, sigma, labels, std=0.15):
    """E[x0 | x] for x = alpha x0 + sigma eps, x0 one of the pictures of its class (NONE: of all) plus some noise."""
    result = torch.empty_like(x, dtype=torch.float64)
    for label in range(CLASSES + 1):
        rows = labels == label
        means = DATA[label] if label < CLASSES else DATA.flatten(0, 1)
        state = x[rows].double()
        variance = alpha**2 * std**2 + sigma**2
        offset = state[:, None] - alpha * means
        share = (-0.5 * offset.square().sum(-1) / variance).softmax(1)
        result[rows] = share @ means + (share[..., None] * offset).sum(1) * (alpha * std**2 / variance)
    return result.to(x.dtype)


def labels(batch):
    return torch.arange(batch) % CLASSES


def noise(batch=6, seed=1):
    return torch.randn(batch, PIXELS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def psnr(found, expected):
    """dB, peak to peak 2 as for pictures from -1 to 1."""
    return 10 * math.log10(4 / float((found - expected).square().mean()))
