"""Noise levels as a profile measures them: one bounded number for every kind of model."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from thg.ode.outputs import Node, Prediction, express

Array = NDArray[np.float64]


def noise_share(log_snr: object) -> Array:
    """sigma / (alpha + sigma): in [0, 1] for every model, and the time of a flow model."""
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(np.asarray(log_snr, dtype=np.float64) / 2)))


def state_at(prediction: Prediction, share: float) -> Node:
    """alpha and sigma of the state that the network sees: unit variance, or the straight path of a flow model."""
    share = min(max(float(share), 1e-6), 1 - 1e-6)
    size = 1.0 if prediction == "flow" else math.hypot(share, 1 - share)
    return Node(0.0, share, (1 - share) / size, share / size)


def output_weight(prediction: Prediction, start: float, end: float) -> float:
    """b of the first-order step x_s = a x_t + b output, between two noise levels."""
    target = state_at(prediction, end)
    return express(state_at(prediction, start), prediction, (target.alpha, target.sigma))[1]
