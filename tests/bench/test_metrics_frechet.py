"""The Frechet distance against closed forms and scipy's matrix root; moments against numpy."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from thg.bench.metrics import Batch, MetricError
from thg.bench.metrics.frechet import FrechetMetric, Gaussian, frechet_distance


def first_pixels(batch):
    return batch.pictures()[:, :, 0, :2].flatten(1)


def gaussian(mean, covariance):
    return Gaussian(torch.tensor(mean, dtype=torch.float64), torch.tensor(covariance, dtype=torch.float64))


def random_gaussian(seed, size, rank):
    generator = np.random.default_rng(seed)
    factor = generator.normal(size=(size, rank))
    return gaussian(generator.normal(size=size), factor @ factor.T)


def test_distance_of_diagonal_gaussians_in_closed_form():
    first = gaussian([0.0, 1.0, 2.0], np.diag([1.0, 4.0, 9.0]))
    second = gaussian([1.0, 1.0, 0.0], np.diag([4.0, 1.0, 16.0]))
    # |mu|^2 + sum (s1 - s2)^2 = (1 + 4) + (1 + 1 + 1)
    assert frechet_distance(first, second) == pytest.approx(8, abs=1e-12)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-12)


def test_distance_against_scipys_matrix_root():
    first, second = random_gaussian(0, 12, 20), random_gaussian(1, 12, 20)
    root = sqrtm((first.covariance @ second.covariance).numpy())
    expected = (
        float((first.mean - second.mean).square().sum())
        + float(first.covariance.trace() + second.covariance.trace())
        - 2 * np.trace(root).real
    )
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(second, first) == pytest.approx(expected, rel=1e-9)


def test_singular_covariances_on_different_subspaces():
    first, second = gaussian([0.0, 0.0], np.diag([1.0, 0.0])), gaussian([0.0, 0.0], np.diag([0.0, 1.0]))
    assert frechet_distance(first, second) == pytest.approx(2, abs=1e-12)
    low, other = random_gaussian(2, 30, 5), random_gaussian(3, 30, 4)
    assert frechet_distance(low, other) == pytest.approx(frechet_distance(other, low), rel=1e-8)


def test_a_gaussian_of_rows_against_numpy():
    rows = torch.randn(101, 6, generator=torch.Generator().manual_seed(0)) + 1000
    mean, covariance = Gaussian.of(rows)
    np.testing.assert_allclose(mean.numpy(), rows.double().numpy().mean(0), rtol=1e-14)
    np.testing.assert_allclose(covariance.numpy(), np.cov(rows.double().numpy(), rowvar=False), rtol=1e-9, atol=1e-12)


def test_a_metric_with_statistics_of_references():
    generator = torch.Generator().manual_seed(0)
    references, samples = torch.rand(40, 3, 4, 4, generator=generator), torch.rand(30, 3, 4, 4, generator=generator)
    metric = FrechetMetric(first_pixels, "pixels")
    assert metric.compute() is None
    x, y = (first_pixels(Batch(t)).double().numpy() for t in (samples, references))
    metric.use_statistics({"mu": torch.from_numpy(y.mean(0)), "sigma": torch.from_numpy(np.cov(y.T))})
    assert metric.compute() is None
    metric.update(Batch(samples[:10]))
    metric.update(Batch(samples[10:]))
    expected = frechet_distance(gaussian(x.mean(0), np.cov(x.T)), gaussian(y.mean(0), np.cov(y.T)))
    assert metric.compute() == pytest.approx(expected, rel=1e-9)


def test_errors():
    metric = FrechetMetric(first_pixels, "pixels")
    with pytest.raises(MetricError, match="mu and sigma"):
        metric.use_statistics({"features": torch.zeros(3, 3)})
    with pytest.raises(MetricError, match="another network"):
        frechet_distance(random_gaussian(0, 3, 3), random_gaussian(0, 4, 4))


def test_frechet_distance_of_shifted_and_stretched_gaussians():
    """For independent coordinates it is the squared shift plus the squared differences of the deviations."""
    points = torch.randn(20_000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = (points - points.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(points.T))).T
    moved = points * torch.tensor([1.0, 2.0, 1.0]) + torch.tensor([0.0, 0.0, 3.0])
    assert frechet_distance(Gaussian.of(points), Gaussian.of(points)) == pytest.approx(0.0, abs=1e-6)
    assert frechet_distance(Gaussian.of(points), Gaussian.of(moved)) == pytest.approx(1.0 + 9.0, rel=1e-6)
