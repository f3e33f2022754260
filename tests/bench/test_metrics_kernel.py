"""Maximum mean discrepancy against double loops in numpy."""

import numpy as np
import pytest
import torch

from thg.bench.metrics import Batch, MetricError, distribution
from thg.bench.metrics.clip import CMMD
from thg.bench.metrics.distribution import cubic_kernel, gaussian_kernel, mmd
from thg.bench.metrics.inception import KID

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(9, 5)).astype(np.float32)
Y = GENERATOR.normal(size=(7, 5)).astype(np.float32) + np.float32(0.3)


def cubic(a, b):
    return (float(np.dot(a.astype(np.float64), b)) / len(a) + 1) ** 3


def gauss(a, b):
    return np.exp(-np.sum((a.astype(np.float64) - b) ** 2) / (2 * 10**2))


def by_hand(x, y, kernel, biased):
    def mean_within(rows):
        values = [kernel(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if biased or i != j]
        return np.mean(values)

    return mean_within(x) + mean_within(y) - 2 * np.mean([kernel(a, b) for a in x for b in y])


@pytest.mark.parametrize("block", [2, 4, 1024])
def test_mmd_by_hand(block, monkeypatch):
    monkeypatch.setattr(distribution, "BLOCK", block)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    assert mmd(x, y, cubic_kernel, unbiased=True) == pytest.approx(by_hand(X, Y, cubic, biased=False), rel=1e-10)
    assert mmd(x, y, gaussian_kernel(10.0), unbiased=False) == pytest.approx(
        by_hand(X, Y, gauss, biased=True), rel=1e-9
    )


def embed(batch):
    return batch.samples[:, :, 0, 0]


def as_batch(rows):
    """Rows in [0, 1] as the first pixels of byte-free pictures."""
    return Batch(torch.from_numpy(rows)[:, :, None, None].expand(-1, -1, 2, 2))


ROWS_X = GENERATOR.random((8, 3)).astype(np.float32)
ROWS_Y = GENERATOR.random((6, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("metric_class", "kernel", "biased", "factor"), [(KID, cubic, False, 1), (CMMD, gauss, True, 1000)]
)
def test_in_batches_and_from_statistics(metric_class, kernel, biased, factor):
    expected = factor * by_hand(ROWS_X, ROWS_Y, kernel, biased)
    metric = metric_class(embed)
    assert metric.compute() is None
    metric.add_reference(as_batch(ROWS_Y[:2]))
    metric.add_reference(as_batch(ROWS_Y[2:]))
    metric.update(as_batch(ROWS_X[:3]))
    metric.update(as_batch(ROWS_X[3:]))
    assert metric.compute() == pytest.approx(expected, rel=1e-8)

    again = metric_class(embed)
    again.use_statistics({"features": torch.from_numpy(ROWS_Y)})
    again.update(as_batch(ROWS_X))
    assert again.compute() == pytest.approx(expected, rel=1e-8)


def test_statistics_of_the_wrong_kind_and_mixed_networks():
    metric = KID(embed)
    with pytest.raises(MetricError, match="features themselves"):
        metric.use_statistics({"mu": torch.zeros(3), "sigma": torch.eye(3)})
    metric.use_statistics({"features": torch.zeros(3, 4)})
    metric.update(as_batch(ROWS_X))
    with pytest.raises(MetricError, match="another network"):
        metric.compute()
