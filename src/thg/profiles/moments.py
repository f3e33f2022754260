"""Statistics over samples that add up: those of two parts merge to those of the whole."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, sum and sum of squares over samples, for each step."""

    count: int
    total: Array
    squares: Array

    @classmethod
    def of(cls, values: ArrayLike) -> Moments:
        """Moments of an array with one row per sample. Correctly rounded, so the order of samples does not matter."""
        rows = np.asarray(values, dtype=np.float64)
        return cls(len(rows), exact_sum(rows), exact_sum(rows**2))

    @property
    def mean(self) -> Array:
        return self.total / self.count

    @property
    def std(self) -> Array:
        """The standard deviation over samples."""
        return np.asarray(np.sqrt(np.maximum(self.squares / self.count - self.mean**2, 0.0)))

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.count + other.count, self.total + other.total, self.squares + other.squares)


def exact_sum(rows: Array) -> Array:
    """The sum over the first axis, correctly rounded."""
    flat = rows.reshape(len(rows), -1)
    return np.array([math.fsum(column) for column in flat.T], dtype=np.float64).reshape(rows.shape[1:])
