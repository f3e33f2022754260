"""The prediction of an output, or of the guidance term (the hare), from its last evaluations.

Independent of pipelines, schedules and plans.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

EVALUATIONS_KEPT = 2  # evaluations that a prediction of the highest order needs
SAME_POSITION = 0.01  # in steps; closer evaluations count as one: a line through them would magnify their difference


def prediction_weights(
    positions: Sequence[float], position: float, order: int, damping: float = 1.0
) -> tuple[float, ...]:
    """Weights on the last evaluations (oldest first) that predict the term at `position`.

    Order 1 holds the last term: the hare of the paper under a first-order solver. Order 2 extrapolates linearly from
    the last two; with one evaluation it holds as well. damping: the share of that line's slope that is used.
    """
    if order == 1 or len(positions) < 2:
        return (1.0,)
    before, last = positions[-2], positions[-1]
    slope = damping * (position - last) / (last - before)
    return (-slope, 1.0 + slope)


def interpolation_weights(positions: Sequence[float], position: float) -> tuple[float, ...]:
    """Weights of the polynomial through the terms at `positions`, at `position` (Lagrange's form)."""
    return tuple(
        math.prod((position - other) / (own - other) for other in positions if other != own) for own in positions
    )


def predicted(
    positions: Sequence[float], terms: Sequence[Tensor], position: float, order: int, damping: float = 1.0
) -> Tensor:
    """The term at `position` from the evaluations at `positions` (oldest first).

    Allocates only its result; a held term is returned without a copy.
    """
    w = prediction_weights(positions, position, order, damping)
    if len(w) == 1:
        return terms[-1]
    # terms[-1] + slope * (terms[-1] - terms[-2]), as one fused operation on one new tensor
    return terms[-1].lerp(terms[-2], w[0])


class History:
    """The last evaluations of a term (a tuple of tensors), as many as a prediction needs.

    Of several evaluations at one position (Heun calls the network twice at one time) the latest counts.
    """

    def __init__(self) -> None:
        self._positions: deque[float] = deque(maxlen=EVALUATIONS_KEPT)
        self._terms: deque[tuple[Tensor, ...]] = deque(maxlen=EVALUATIONS_KEPT)

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def positions(self) -> tuple[float, ...]:
        """Oldest first."""
        return tuple(self._positions)

    @property
    def terms(self) -> tuple[tuple[Tensor, ...], ...]:
        """Oldest first."""
        return tuple(self._terms)

    def ends_at(self, position: float) -> bool:
        """Is the last evaluation at this position?"""
        return bool(self._positions) and abs(self._positions[-1] - position) < SAME_POSITION

    def add(self, position: float, term: tuple[Tensor, ...]) -> None:
        if self.ends_at(position):
            self._positions.pop()
            self._terms.pop()
        self._positions.append(position)
        self._terms.append(term)

    def clear(self) -> None:
        self._positions.clear()
        self._terms.clear()

    def predict(self, position: float, order: int, damping: float = 1.0) -> tuple[Tensor, ...]:
        """The term at another position."""
        parts = zip(*self._terms, strict=True)
        return tuple(predicted(self.positions, values, position, order, damping) for values in parts)
