"""PSNR and SSIM against closed forms and against a window sum written out with scipy."""

import numpy as np
import pytest
import torch
from scipy.ndimage import correlate1d

from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.fidelity import PSNR, SSIM, ssim


def test_psnr_of_a_known_error():
    reference = torch.full((2, 3, 8, 8), 0.5)
    sample = reference + torch.tensor([0.1, 0.01]).view(2, 1, 1, 1)
    metric = PSNR()
    metric.update(Batch(sample, references=reference))
    assert metric.rows().tolist() == pytest.approx([20, 40], abs=1e-4)
    assert metric.compute() == pytest.approx(30, abs=1e-4)


def test_equal_pictures_count_as_100_decibels():
    metric = PSNR()
    metric.update(Batch(torch.zeros(1, 3, 8, 8), references=torch.zeros(1, 3, 8, 8)))
    assert metric.compute() == 100


def scipy_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Wang et al. (2004), equation 13, for one channel: weighted sums by scipy, the border cut off afterwards."""
    weights = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights /= weights.sum()

    def window(values):
        return correlate1d(correlate1d(values, weights, axis=0), weights, axis=1)[5:-5, 5:-5]

    mx, my = window(x), window(y)
    vx, vy, vxy = window(x * x) - mx * mx, window(y * y) - my * my, window(x * y) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    return float(np.mean((2 * mx * my + c1) * (2 * vxy + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))))


def test_ssim_against_scipy():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(3, 3, 24, 31, dtype=torch.float64, generator=generator)
    y = (x + 0.2 * torch.randn(x.shape, dtype=torch.float64, generator=generator)).clamp(0, 1)
    expected = [
        np.mean([scipy_ssim(a, b) for a, b in zip(p, q, strict=True)])
        for p, q in zip(x.numpy(), y.numpy(), strict=True)
    ]
    assert ssim(x, y).tolist() == pytest.approx(expected, abs=1e-12)


def test_ssim_of_two_flat_pictures_by_hand():
    a, b = 0.2, 0.6
    expected = (2 * a * b + 1e-4) / (a * a + b * b + 1e-4)
    metric = SSIM()
    metric.update(Batch(torch.full((1, 1, 12, 12), a), references=torch.full((1, 1, 12, 12), b)))
    assert metric.compute() == pytest.approx(expected, abs=1e-6)


def test_ssim_of_a_picture_with_itself_is_one_and_small_pictures_are_refused():
    picture = torch.rand(1, 3, 16, 16)
    metric = SSIM()
    metric.update(Batch(picture, references=picture))
    assert metric.compute() == pytest.approx(1)
    with pytest.raises(MetricError, match="11x11"):
        metric.update(Batch(picture[..., :10], references=picture[..., :10]))
