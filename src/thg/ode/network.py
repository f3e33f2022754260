"""The interface to the network: every evaluation of the core passes here.

It converts the input to the network's own scale, time and precision, counts the evaluation, and converts the output to
the one kind that the core computes with. It is independent of guidance and solvers. Whether all values are finite is
checked once, at the end of a run, so that a run never waits for the device in between.

The first output is compared with the schedule's conventions (`examine`). At the start of a run the state is nearly pure
noise, x = sigma eps, and no network can know the data in it. So the coefficient of the noise in its output,
<output, x> / <x, x>, is known in advance: 1/sigma for eps and for the velocity eps - x0, with the opposite sign for
x0 - eps, and about 0 for x0 and for v. A network whose velocity has the opposite sign would run to the end and give a
wrong picture.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from thg.errors import NonFiniteError, PlanError, ScheduleError
from thg.ode.outputs import Node
from thg.ode.schedule import Schedule

FEWEST_VALUES = 64  # values; with fewer the coefficient is too uncertain
MOST_DATA = 0.25  # alpha / sigma up to which a state counts as noise
STANDARD_ERRORS = 6.0  # standard errors

OUTPUT_NAMES = {
    "epsilon": "the noise eps",
    "sample": "the data x0",
    "v_prediction": "v = alpha eps - sigma x0",
    "flow": "the velocity",
}


def examine(schedule: Schedule, node: Node, x: Tensor, output: Tensor) -> None:
    """Raises an error or warns if the state or the output does not match the schedule.

    Does nothing if that cannot be decided: few values, or little noise. Waits for the device once.
    """
    count = x.numel()
    if count < FEWEST_VALUES or node.alpha > MOST_DATA * node.sigma:
        return
    a, b = x.detach().float(), output.detach().float()
    xx, xy, yy = torch.stack([(a * a).sum(), (a * b).sum(), (b * b).sum()]).tolist()
    if not xx:
        return
    _examine_state(node, math.sqrt(xx / count))
    unit = 1 / node.sigma
    expected = schedule.output_content(node)[1] * unit
    share = xy / xx
    uncertain = STANDARD_ERRORS * math.sqrt(max(yy / xx - share**2, 0.0) / count)
    if not math.isfinite(share + uncertain) or abs(share - expected) < uncertain + 0.5 * unit:
        return
    _complain(schedule, share / unit, expected / unit)


def _examine_state(node: Node, size: float) -> None:
    if not 0.5 < size / node.sigma < 2:
        raise ScheduleError(
            f"the start states have a root mean square of {size:.3g}, but the schedule starts with noise of standard "
            f"deviation {node.sigma:.3g}; write x = {node.sigma:.4g} * torch.randn(...)"
        )


def _complain(schedule: Schedule, share: float, expected: float) -> None:
    """share, expected: the coefficient of the noise in the output, in units of eps."""
    kind = OUTPUT_NAMES[schedule.prediction]
    observed = f"the first output of the network contains {share:.2g} of the noise"
    if schedule.prediction == "flow" and share * expected < -0.25:
        other = "data-noise" if schedule.velocity == "noise-data" else "noise-data"
        raise ScheduleError(
            f"{observed}, and a velocity of sign {schedule.velocity!r} contains {expected:g}: the sign is reversed. "
            f"Write Schedule.flow(..., velocity={other!r}), and check the direction of time"
        )
    if schedule.prediction == "epsilon" and share < -0.25:
        raise ScheduleError(
            f"{observed}, and {kind} contains 1: the sign is wrong. A score is -eps / sigma: return -sigma * score"
        )
    warnings.warn(
        f"{observed}, and {kind} contains about {expected:.2g}. If the network is trained, it does not predict "
        f"{schedule.prediction!r} (prediction=), or its time differs from the schedule's, which is "
        f"{schedule.nodes[0].time:g} at noise. check=False disables this check",
        stacklevel=2,
    )


class Denoiser(Protocol):
    """A network, as a function of the latents (B, ...), the time, and the condition.

    The time is a number, as `Schedule` gives it. The condition is True for the conditional branch and False for the
    unconditional one, or the `condition` and `unconditional` of `thg.sample`. The result has the shape of
    the latents and is of the schedule's prediction kind. For example, with a diffusers UNet and prompt embeddings:

        def denoiser(x, t, conditional):
            return unet(x, t, encoder_hidden_states=prompt if conditional else empty_prompt).sample
    """

    def __call__(self, x: Tensor, t: float, condition: Any, /) -> Tensor: ...


# -- the two branches


def _expanded(condition: Any, unconditional: Any) -> Any:
    """The unconditional condition, with a row for each one of the other if that is a tensor."""
    if isinstance(condition, Tensor) and condition.ndim:
        if isinstance(unconditional, int | float) and not isinstance(unconditional, bool):  # the number of no class
            return torch.full_like(condition, unconditional)
        if isinstance(unconditional, Tensor) and unconditional.ndim and len(unconditional) == 1:
            return unconditional.expand(len(condition), *unconditional.shape[1:])
    return unconditional


def joined(first: Any, second: Any, rows: int) -> Any:
    """Two conditions as one, batch first: tensors, and tuples, lists and dictionaries of them."""
    if isinstance(first, Tensor) and isinstance(second, Tensor) and first.ndim and second.ndim:
        return torch.cat([value.expand(rows, *value.shape[1:]) for value in (first, second)])
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        return {name: joined(first[name], second[name], rows) for name in first}
    if isinstance(first, tuple | list) and isinstance(second, tuple | list) and len(first) == len(second):
        return type(first)(joined(a, b, rows) for a, b in zip(first, second, strict=True))
    if first is None and second is None:
        return None
    raise PlanError(
        "batched=True joins the rows of both conditions, so condition and unconditional must be tensors (or equal "
        f"tuples or dictionaries of tensors), not {type(first).__name__} and {type(second).__name__}; without "
        "batched the branches run in two calls"
    )


# -- evaluations


class Network:
    """A denoiser on a schedule; `evaluations` counts how often it has run, per sample."""

    def __init__(
        self,
        denoiser: Denoiser,
        schedule: Schedule,
        x: Tensor,
        condition: Any,
        unconditional: Any,
        *,
        batched: bool,
        check: bool = False,
    ) -> None:
        """batched: the denoiser takes both branches in one call. check: compare its first output with the schedule."""
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 1 or not x.numel():
            given = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise PlanError(f"x must be a floating-point tensor of latents, batch first, not {given}")
        self.evaluations = 0
        self._denoiser = denoiser
        self._schedule = schedule
        if batched and condition is True and unconditional is False:  # then a flag for each row
            condition = torch.ones(len(x), dtype=torch.bool, device=x.device)
            unconditional = ~condition
        self._condition, self._unconditional = condition, _expanded(condition, unconditional)
        self._both = joined(condition, self._unconditional, len(x)) if batched else None
        self._check = check
        self._dtype = x.dtype
        self._ranges: list[tuple[str, Node, Sequence[Tensor]]] = []  # what, where, its smallest and its largest value

    def state(self, x: Tensor) -> Tensor:
        """The latents in the precision of the solver: at least float32."""
        state = x.to(torch.promote_types(x.dtype, torch.float32))
        self.watch(state, self._schedule.nodes[0], "latents")
        return state

    def __call__(self, x: Tensor, node: Node, conditional: bool) -> Tensor:
        """The normalised output of one branch at a node."""
        branch = "conditional" if conditional else "unconditional"
        condition = self._condition if conditional else self._unconditional
        output = self._run(x, node, condition, f"{branch} network output")
        self.evaluations += 1
        return self._schedule.normalise(x, output, node)

    def terms(self, x: Tensor, node: Node) -> tuple[Tensor, Tensor]:
        """e_c and d = e_c - e_u: in one call if the denoiser takes both branches, else in two."""
        if self._both is None:
            e_c, e_u = self(x, node, True), self(x, node, False)
        else:
            outputs = self._run(torch.cat([x, x]), node, self._both, "network output of both branches")
            self.evaluations += 2
            e_c, e_u = (self._schedule.normalise(x, output, node) for output in outputs.chunk(2))
        return e_c, e_c - e_u

    def _run(self, x: Tensor, node: Node, condition: Any, what: str) -> Tensor:
        seen = self._schedule.network_input(x, node).to(self._dtype)
        time = int(node.time) if self._schedule.integer_times else node.time
        output = self._denoiser(seen, time, condition)
        if not isinstance(output, Tensor) or output.shape != x.shape:
            returned = (
                f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"the type {type(output).__name__}"
            )
            raise PlanError(
                f"the {what} at step {node.position:g} has {returned}, the latents have {tuple(x.shape)}; return the "
                "prediction only (no learned variance), one row per latent"
            )
        output = output.to(x.dtype, copy=True)  # the network may write its next output there
        self.watch(output, node, what)
        if not self.evaluations:  # wrong conventions usually show at the first call
            self.require_finite()
            if self._check:
                examine(self._schedule, node, x, output)
        return output

    # -- values that are not finite

    def watch(self, values: Tensor, node: Node, what: str) -> None:
        """Records the range of these values, which reveals NaN and infinity, without waiting for the device."""
        self._ranges.append((what, node, torch.aminmax(values.detach())))

    def require_finite(self) -> None:
        """Raises an error that names the first occurrence of NaN or infinity."""
        seen, self._ranges = self._ranges, []
        found = torch.stack([value for *_, values in seen for value in values]).tolist() if seen else []
        for (what, node, _), low, high in zip(seen, found[::2], found[1::2], strict=True):
            if not (math.isfinite(low) and math.isfinite(high)):
                raise NonFiniteError(
                    f"NaN or infinity in the {what} at step {node.position:g} (time {node.time:g}); "
                    f"{_usual_cause(what, node)}"
                )


def _usual_cause(what: str, node: Node) -> str:
    if node.position == 0 and what != "latents":
        return (
            f"the time passed to the network was {node.time:g}: if it uses another range, set it in the schedule, "
            "Schedule.flow(steps, time=(1, 0)); otherwise a half-precision overflow is the usual cause: try float32"
        )
    return "a half-precision overflow or a broken input is the usual cause: try float32"
