"""Similarity to plain CFG's result with the same prompt and seed: PSNR and SSIM of pictures, SNR and more of sounds."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.signal.windows import gaussian

from thg.bench.metrics.base import Batch, Direction, MeanMetric, MetricError
from thg.media import CAP, psnr, snr
from thg.models.sounds import LOG_DEVIATION, log_mel


class Fidelity(MeanMetric):
    """A metric that compares with plain CFG."""

    direction: Direction = "higher"
    needs = frozenset({"pairs"})


class PSNR(Fidelity):
    """Peak signal-to-noise ratio in decibels, 10 log10(1 / MSE), averaged over pictures.

    Floats are compared as floats, before they become bytes. A picture equal to its reference counts as 100 dB.
    """

    name = "psnr"

    def score(self, batch: Batch) -> torch.Tensor:
        pairs = zip(batch.pictures().cpu().numpy(), batch.reference_pictures().cpu().numpy(), strict=True)
        return torch.tensor([min(psnr(sample, reference), CAP) for sample, reference in pairs], dtype=torch.float64)


class SSIM(Fidelity):
    """Structural similarity of Wang et al. (2004), averaged over positions, channels and pictures."""

    name = "ssim"

    def score(self, batch: Batch) -> torch.Tensor:
        return ssim(batch.pictures().double(), batch.reference_pictures().double())


class SNR(Fidelity):
    """Signal-to-noise ratio in decibels, plain CFG's sound being the signal; an equal one counts as 100 dB."""

    name = "snr"
    hears = True

    def score(self, batch: Batch) -> torch.Tensor:
        pairs = zip(batch.sounds().cpu().numpy(), batch.reference_sounds().cpu().numpy(), strict=True)
        return torch.tensor([min(snr(sample, reference), CAP) for sample, reference in pairs], dtype=torch.float64)


class LogMelDistance(Fidelity):
    """Mean absolute difference of the logarithmic mel spectrograms from plain CFG's, in decibels."""

    name = "log_mel"
    direction = "lower"
    hears = True

    def score(self, batch: Batch) -> torch.Tensor:
        difference = (log_mel(batch.sounds()) - log_mel(batch.reference_sounds())).abs().mean((1, 2))
        return difference.double() * LOG_DEVIATION * 20 / torch.log(torch.tensor(10.0))


WINDOW = 11
SIGMA = 1.5
K1, K2 = 0.01, 0.03


def ssim(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One number per picture; pixels in [0, 1]. Equation 13 of the paper at each position where the window fits."""
    if min(x.shape[-2:]) < WINDOW:
        raise MetricError(
            f"SSIM looks through an {WINDOW}x{WINDOW} window; pictures of {tuple(x.shape[-2:])} are smaller"
        )
    mean_x, mean_y = _blur(x), _blur(y)
    variance_x = _blur(x * x) - mean_x**2
    variance_y = _blur(y * y) - mean_y**2
    covariance = _blur(x * y) - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    similarity = ((2 * mean_x * mean_y + c1) * (2 * covariance + c2)) / (
        (mean_x**2 + mean_y**2 + c1) * (variance_x + variance_y + c2)
    )
    return similarity.flatten(1).mean(1)


def _blur(x: torch.Tensor) -> torch.Tensor:
    """Gaussian window with weights of sum one, no padding, columns then rows."""
    weights = gaussian(WINDOW, std=SIGMA, dtype=x.dtype, device=x.device)
    weights = weights / weights.sum()
    channels = x.shape[1]
    down = weights.view(1, 1, -1, 1).expand(channels, 1, -1, 1)
    across = weights.view(1, 1, 1, -1).expand(channels, 1, 1, -1)
    return F.conv2d(F.conv2d(x, down, groups=channels), across, groups=channels)
