"""The difference of a run from plain CFG, estimated from its own evaluations at no extra cost.

When a leap ends, the new term shows the error of the leap, like the higher order of an embedded Runge-Kutta pair. The
solver turns it into an error of the state. The corrector removes most of it and the network damps the rest, so the
final error is a fraction of the root of the sum of squares, which `Prior` has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from thg.plans.plan import Plan
from thg.plans.prior import PRIOR
from thg.plans.run import RunInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass
class Estimate:
    """The accumulated error of the leaps of a run. Everything stays on the device.

    share: the fraction of the error that remains at the end of the run, times w - 1.
    """

    share: float
    errors: list[Tensor] = field(default_factory=list)  # the norm per row, of each leap
    ends: list[int] = field(default_factory=list)  # the steps at which the leaps end
    shape: tuple[int, ...] = ()  # of a term

    @classmethod
    def of(cls, plan: Plan, run: RunInfo, factor: float = 1.0) -> Estimate | None:
        """The estimate of a run under this plan. factor: of this network's true errors over the prior's.

        None if it cannot be made: the guidance term leaps with an unknown guidance scale, or under a plan that changes
        the guidance itself (boost, cutoff).
        """
        if plan.skips == "network":
            remaining = PRIOR.remaining
        elif run.guidance_scale is None or plan.boost != 1.0 or plan.end_of_guidance < plan.steps:
            return None
        else:
            remaining, factor = PRIOR.remaining_of_term, factor * abs(run.guidance_scale - 1)
        if run.response is None:
            remaining = PRIOR.remaining_unknown
        elif not plan.corrector:
            remaining = PRIOR.remaining_uncorrected
        return cls(remaining * factor)

    def add(self, missed: tuple[Tensor, ...], end: int) -> None:
        """Adds the error of the state after a leap to this step, up to the factor w - 1."""
        import torch

        norms = [torch.linalg.vector_norm(part.flatten(1), dim=1, dtype=_precision(part)) for part in missed]
        if any(norm.shape != norms[0].shape for norm in norms):  # one tensor per sample, of different sizes
            norms = [torch.linalg.vector_norm(norm).reshape(1) for norm in norms]
        self.errors += norms
        self.ends += [end] * len(norms)
        self.shape = tuple(missed[0].shape)

    def relative_to(self, sample: Tensor | Sequence[Tensor]) -> Tensor | None:
        """The difference from plain CFG's final state relative to its norm, per row; None if there was no leap.

        sample: the last input of the network, which is almost the final state. It may stack several branches, and have
        further channels after those of the state.
        """
        if not self.errors:
            return None
        import torch

        squares = torch.stack(self.errors).square().sum(0)
        parts = [sample] if isinstance(sample, torch.Tensor) else list(sample)
        state = torch.cat([self._state(part).float().flatten(1).square().sum(1) for part in parts])
        if len(state) % len(squares):  # rows that are not samples: take all of them together
            return self.share * (squares.sum() / state.sum()).sqrt().reshape(1)
        return self.share * (squares / state.reshape(-1, len(squares))[-1]).sqrt()

    def shares(self) -> Tensor | None:
        """The share of each leap in the square of the estimate, over all rows; None if there was no leap."""
        if not self.errors:
            return None
        import torch

        squares = torch.stack([errors.square().sum() for errors in self.errors])
        return squares / squares.sum().clamp_min(torch.finfo(squares.dtype).tiny)

    def _state(self, part: Tensor) -> Tensor:
        own = self.shape
        wider = part.ndim == len(own) > 2 and part.shape[1] > own[1] and tuple(part.shape[2:]) == own[2:]
        return part[:, : own[1]] if wider else part


def _precision(part: Tensor) -> torch.dtype:
    """Half precision overflows when squared."""
    import torch

    return torch.promote_types(part.dtype, torch.float32)
