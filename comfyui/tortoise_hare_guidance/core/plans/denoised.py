# A copy of src/thg/plans/denoised.py, made by comfyui/make_core.py: change it there.
"""A guide for denoisers: their outputs are denoised latents (x0), but the hare is predicted in the network's own space.

The difference of two denoised latents shrinks with the noise level for any network; in the network's space (noise,
velocity) it is smooth, and its prediction 3 to 10 dB better.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..plans.guide import Guide, HareGuide


class DenoisedGuide:
    """Provides a denoiser's unconditional output at each call, with the help of a guide.

    units: d(denoised latents) / d(network output) at each call (see `Calls`).
    """

    def __init__(self, guide: Guide, units: Sequence[float]) -> None:
        self.guide = guide
        self._units = units

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
