# A copy of src/thg/plans/estimate.py, made by comfyui/make_core.py: change it there.
"""How far a run has ended from plain CFG, estimated from what its own evaluations say: it costs none.

When a leap ends, the fresh term shows what the leap has missed, as the higher order of an embedded Runge-Kutta pair
does. What the solver makes of that is an error of the state. The corrector takes most of it back and the network passes
on a part of the rest, so the final error is a share of the root of the sum of squares: a constant, fitted on shipped
models (benchmarks/fidelity.py tells how well it holds there) and on mixtures of Gaussians.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CORRECTED = 0.4  # the share that is left at the end of a run whose leaps are corrected,
UNCORRECTED = 0.9  # of one whose leaps are not,
UNKNOWN = 0.5  # and where the response of the solver is not known


@dataclass
class Estimate:
    """What the leaps of a run have missed. All of it stays on the device.

    share: of the missed states that is left at the end of the run, times w - 1.
    """

    share: float
    squares: Tensor | None = None  # per row
    shape: tuple[int, ...] = ()  # of a term

    def add(self, missed: tuple[Tensor, ...]) -> None:
        """A leap has ended with this error of the state, up to the factor w - 1."""
        parts = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=_precision(part)).square() for part in missed]
        if any(part.shape != parts[0].shape for part in parts):  # one tensor per sample, of different sizes
            parts = [part.sum().reshape(1) for part in parts]
        new, self.shape = torch.stack(parts).sum(0), tuple(missed[0].shape)
        self.squares = new if self.squares is None else self.squares + new

    def relative_to(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The difference to plain CFG's final state over its norm, per row; None if no leap was seen.

        sample: the state that the network is given last, which is almost the final one. Branches may be stacked in it,
        and other things than the state behind it in its channels.
        """
        if self.squares is None:
            return None
        parts = [sample] if isinstance(sample, Tensor) else list(sample)
        state = torch.cat([self._state(part).float().flatten(1).square().sum(1) for part in parts])
        if len(state) % len(self.squares):  # rows that are no samples: over all of them
            return self.share * (self.squares.sum() / state.sum()).sqrt().reshape(1)
        return self.share * (self.squares / state.reshape(-1, len(self.squares))[-1]).sqrt()

    def _state(self, part: Tensor) -> Tensor:
        own = self.shape
        wider = part.ndim == len(own) > 2 and part.shape[1] > own[1] and tuple(part.shape[2:]) == own[2:]
        return part[:, : own[1]] if wider else part


def _precision(part: Tensor) -> torch.dtype:
    """Half precision overflows when squared."""
    return torch.promote_types(part.dtype, torch.float32)
