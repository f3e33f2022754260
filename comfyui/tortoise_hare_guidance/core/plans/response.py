# A copy of src/thg/plans/response.py, made by comfyui/make_core.py: change it there.
"""The response of a solver: how the states of a run depend on the network's outputs, and what repairs a leap.

A leap used predicted outputs; a new evaluation shows what was missing at each of its steps, `amount_k * direction`.
With these amounts, a linear solver would have added `sum_k R[n, k] amount_k * direction` to the state after call n. The
same states are reached by adding multiples c_j, c_(j+1), ... of the direction to the outputs of the following calls,
one after the other: `R[n, n] c_n = missing_n - sum_(m<n) R[n, m] c_m`. If the guidance term leaps, the factor w - 1 is
on both sides and cancels. A one-step solver needs c_j alone, sum_k W_k amount_k / W_j; a solver with memory a few more,
because an output acts on several of its states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGE = 100.0  # far larger than any network output
LINEAR = 1e-3  # deviation from its response up to which a solver counts as linear
FORGOTTEN = 0.01  # share of an output's effect at the end of a run, below which nothing can be inferred
REMEMBERED = 0.05  # share of an output's effect that changes in later calls, above which a solver has a memory
ADDS_NOISE = "adds noise"  # why a solver has no response
CLIPS = "is not linear with this configuration (it clips or thresholds)"
BROKEN = "gives NaN or infinity with this configuration"
UNSETTLED = 0.1  # share of an output's final effect up to which it still changes
HIGHEST_ORDER = 3
NEGLIGIBLE = 0.05  # share of the missing states below which no further calls are corrected
WEAK = 0.1  # share of the next call's effect below which a call carries no correction, which would be a large multiple


@dataclass(frozen=True, eq=False)
class Response:
    """matrix[n, k] = R[n, k]: the response of the state after call n to the output of call k.

    scales: factor on the state in the network's input at each call (1 unless the scheduler scales the input).
    """

    matrix: Array
    scales: Array | None = None

    @classmethod
    def one_step(cls, weights: Sequence[float]) -> Response:
        """That of a one-step solver that adds weights[k] times the output of call k to the state."""
        return cls(np.tril(np.broadcast_to(np.asarray(weights, dtype=np.float64), (len(weights),) * 2)))

    @classmethod
    def measured(cls, states: Array, scales: Array | None = None) -> Response | str:
        """From the states after each call (rows) of a solver started at zero with outputs `probe`; or the reason why
        not."""
        matrix, large, zero = states[:, :-2], states[:, -2], states[:, -1]
        if not np.isfinite(states).all():
            return BROKEN
        if zero.any():
            return ADDS_NOISE
        expected = matrix @ probe(len(matrix))[:, -2]
        if not np.allclose(large, expected, rtol=LINEAR, atol=LINEAR * np.abs(expected).max(initial=0.0)):
            return CLIPS
        return cls(matrix, scales)

    @property
    def final(self) -> tuple[float, ...]:
        """W_k: the response of the final state to the output of each call."""
        return tuple(self.matrix[-1].tolist())

    @property
    def total(self) -> float:
        """The response of the final state to outputs of one size and any sign."""
        return float(np.abs(self.matrix[-1]).sum())

    def times(self, factors: Sequence[float] | Array) -> Response:
        """The response if the output of each call has this factor."""
        return Response(self.matrix * np.asarray(factors), self.scales)

    def part(self, start: int, end: int) -> Response:
        """The response restricted to the calls from `start` to `end`."""
        scales = None if self.scales is None else self.scales[start:end]
        return Response(self.matrix[start:end, start:end], scales)

    def with_feedback(self, gains: Array) -> Array:
        """The matrix if the output of each call also holds gains[k] times the state in its input, as networks' do."""
        fed_back = np.zeros_like(self.matrix)
        fed_back[:, :-1] = self.matrix[:, 1:] * gains[1:]
        return np.asarray(np.linalg.solve(np.eye(len(self.matrix)) - fed_back, self.matrix))

    def input_error(self, first: int, amounts: Array) -> Array:
        """The error in the network's next input after these amounts were missing at the calls from `first` on.

        amounts: a row for each call, a column for each missing direction.
        """
        j = first + len(amounts)
        scale = 1.0 if self.scales is None else self.scales[j]
        return np.asarray(scale * (self._settled(j - 1, first) @ amounts))

    def _settled(self, n: int, first: int) -> Array:
        """The response of the state after call n to the outputs from `first` on, once a solver with memory has used
        each of them for the last time.

        A multistep solver takes back a part of an output's effect in its next steps. What remains at the end of the run
        is scaled to this state by the response to the first output, which has settled. A solver that forgets its state
        (for a network that predicts the data) has no such scale.
        """
        now, final = float(self.matrix[n, 0]), float(self.matrix[-1, 0])
        if not abs(final) > FORGOTTEN * abs(now) > 0:
            return self.matrix[n, first : n + 1]
        return np.asarray(self.matrix[-1, first : n + 1] * (now / final))

    def order(self) -> int:
        """Of the solver: 1 without a memory, else the calls in which the effect of an output changes, in the median.

        Two at least: a method of several stages remembers every other output.
        """
        size = len(self.matrix)
        kept = self.matrix[:, :1] / self.matrix[-1, 0] if self.matrix[-1, 0] else np.zeros((size, 1))
        settled = kept * self.matrix[-1]  # the effect that remains, scaled to the state after each call
        changes = np.tril(np.abs(self.matrix - settled))
        if changes.diagonal().max() <= REMEMBERED * np.abs(self.matrix.diagonal()).max():
            return 1
        calls = 1 + (changes > UNSETTLED * np.abs(settled)).sum(axis=0)
        return int(np.clip(np.median(calls), 2, HIGHEST_ORDER))

    def corrections(self, first: int, amounts: Array) -> Array:
        """c_j, c_(j+1), ... (rows) for the amounts that were missing at the calls from `first` to j - 1."""
        j = first + len(amounts)
        diagonal = np.diagonal(self.matrix)[j:]
        carries = np.abs(diagonal) > WEAK * np.abs(np.append(diagonal[1:], 0.0))
        final = self.matrix[-1, j:]
        missing = self.matrix[j:, first:j] @ amounts
        tolerance = NEGLIGIBLE * np.abs(missing).max(initial=0.0)
        corrections: list[Array] = []
        for n in range(len(missing)):
            c = missing[n] / diagonal[n] if carries[n] else np.zeros_like(missing[n])
            missing -= np.outer(self.matrix[j:, j + n], c)
            corrections.append(c)
            if np.abs(missing[n + 1 :]).max(initial=0.0) <= tolerance:
                if abs(final[n]) > 0.1 * abs(diagonal[n]):  # the last one makes the final state exact
                    corrections[-1] = c + missing[-1] / final[n]
                break
        return np.array(corrections)


def probe(count: int) -> Array:
    """Outputs that reveal a solver's response: for each call (row) a unit vector, large random values, and zero.

    A solver that clips or thresholds does not respond linearly to the large values; one that adds noise has a non-zero
    state for zero outputs.
    """
    large = LARGE * np.random.default_rng(0).standard_normal((count, 1))
    return np.concatenate([np.eye(count), large, np.zeros((count, 1))], axis=1)
