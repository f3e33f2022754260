"""Leaps and guides for denoisers: their outputs are denoised latents (x0), but predictions are made in another space.

Denoised latents, and the difference of two of them, shrink with the noise level for any network; in the space of the
network's outputs (noise, velocity) they are smooth, and predictions 3 to 10 dB better. units: d(denoised latents) /
d(network output) at each call (see `Calls`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from thg.plans.guide import Guide, HareGuide
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan


class DenoisedLeaps:
    """The denoised latents at each call of a run in which the whole network leaps."""

    def __init__(self, leaps: Leaps, units: Sequence[float]) -> None:
        self._leaps, self._units = leaps, units

    @property
    def plan(self) -> Plan:
        return self._leaps.plan

    def evaluates(self, call: int) -> bool:
        """Must the denoiser run at this call?"""
        return self._leaps.evaluates(call)

    def observe(self, call: int, x: Tensor, denoised: Tensor) -> Tensor:
        """The denoised latents to use after the denoiser has run at the state x."""
        output = ((denoised - x) / self._units[call],)
        used = self._leaps.observe(call, output)
        return denoised if used is output else (x + self._units[call] * used[0]).to(denoised.dtype)

    def predict(self, call: int, x: Tensor) -> Tensor:
        """The denoised latents to use at the state x if the denoiser does not run."""
        return (x + self._units[call] * self._leaps.predict(call)[0]).to(x.dtype)

    def forget(self) -> None:
        """Starts anew: the conditions have changed."""
        self._leaps.forget()

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of the plain run, per row."""
        return self._leaps.estimated_error(final)


class DenoisedGuide:
    """Provides a denoiser's unconditional output at each call, with the help of a guide."""

    def __init__(self, guide: Guide, units: Sequence[float]) -> None:
        self.guide = guide
        self._units = units

    @property
    def plan(self) -> Plan | None:
        return self.guide.plan

    def evaluates(self, call: int) -> bool:
        """Must the unconditional branch run at this call?"""
        return self.guide.evaluates(call)

    def observe(self, call: int, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """The unconditional output to use after both branches have run."""
        unit = self._units[call]
        used = self.guide.observe(call, (conditional,), ((conditional - unconditional) / unit,))
        return unconditional if used is None else conditional - unit * used[0]

    def predict(self, call: int, conditional: Tensor) -> Tensor:
        """The unconditional output to use after the conditional branch alone has run."""
        term = self.guide.predict(call, (conditional,))
        return conditional if term is None else conditional - self._units[call] * term[0]

    def estimated_error(self, final: Tensor) -> Tensor | None:
        """How far the final latents are from those of plain guidance, per row; None if it cannot be estimated."""
        return self.guide.estimated_error(final) if isinstance(self.guide, HareGuide) else None
