"""The border to the network: every evaluation of the core passes here.

It hands the network its input in its own scale and precision, checks what comes back, counts the evaluation, and turns
the output into the one kind that the core computes with. It knows nothing of guidance or solvers.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from thg.errors import NonFiniteError, PlanError
from thg.ode.outputs import Node
from thg.ode.schedule import Schedule


class Denoiser(Protocol):
    """A network, as a function of the latents (B, ...), the time, and whether it is conditional.

    The time is a float, as `Schedule` gives it. The result has the shape of the latents and is of the schedule's
    prediction kind. For example, with a diffusers UNet and prompt embeddings:

        def denoiser(x, t, conditional):
            return unet(x, t, encoder_hidden_states=prompt if conditional else empty_prompt).sample
    """

    def __call__(self, x: Tensor, t: float, conditional: bool, /) -> Tensor: ...


class Network:
    """A denoiser on a schedule; `evaluations` says how often it has run."""

    def __init__(self, denoiser: Denoiser, schedule: Schedule, x: Tensor) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 1:
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise PlanError(f"x must be a floating-point tensor of latents, batch first, not {given}")
        self.evaluations = 0
        self._denoiser = denoiser
        self._schedule = schedule
        self._dtype = x.dtype
        self._shape = x.shape

    def state(self, x: Tensor) -> Tensor:
        """The latents in the precision of the solver: at least float32."""
        return x.to(torch.promote_types(x.dtype, torch.float32))

    def __call__(self, x: Tensor, node: Node, conditional: bool) -> Tensor:
        """The normalised output at a node."""
        branch = "conditional" if conditional else "unconditional"
        if conditional:  # the unconditional branch sees the same state
            require_finite(x, node, "latents")
        seen = self._schedule.network_input(x, node).to(self._dtype)
        output = self._denoiser(seen, node.time, conditional)
        self.evaluations += 1
        if output.shape != self._shape:
            raise PlanError(
                f"the {branch} network output at step {node.position:g} has shape {tuple(output.shape)}, the latents "
                f"have {tuple(self._shape)}; return the prediction only (no learned variance), one row per latent"
            )
        output = output.to(x.dtype)
        require_finite(output, node, f"{branch} network output")
        return self._schedule.normalise(x, output, node)


def require_finite(values: Tensor, node: Node, what: str) -> None:
    """An error that names the place, if there is a NaN or an infinity in `values`."""
    if math.isfinite(float(values.sum())) or bool(torch.isfinite(values).all()):  # one quick look, then a sure one
        return
    bad = int((~torch.isfinite(values)).sum())
    raise NonFiniteError(
        f"NaN or infinity in the {what} at step {node.position:g} (time {node.time:g}): {bad} of {values.numel()} "
        "values; a half-precision overflow or a broken input is the usual cause: try float32"
    )
