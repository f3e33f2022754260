"""The paper's Algorithm 3, by a guide that observes a plain CFG run without changing it.

`Recorder` evaluates the pair (e_c, d) at the midpoint of each step: Algorithm 3 in its simplified form. For a
solver that extrapolates its last outputs as a constant or a line, the difference between one step and two half steps is
a factor of the schedule times the error of that extrapolation at the midpoint; the factor is the same for the tortoise
and the hare, and for a first-order solver this is exact.

The midpoint state is computed from the network's inputs before and after the step. So it includes the pipeline's own
solver and packing of latents, and nothing about the pipeline's loop has to be known.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from thg.calibration.subjects import NoiseGrid
from thg.errors import NonFiniteError, UnsupportedPipelineError
from thg.ode.curves import content, express
from thg.plans.guide import Evaluate
from thg.plans.run import RunInfo, Term
from thg.profiles.planner import state_at
from thg.profiles.profile import MOMENTS
from thg.rows import Rows

Pair = tuple[Tensor, Tensor]


class Recorder:
    """Measures one run of a batch. `measured` holds one row per sample when the run has ended.

    Of several calls at one time (Heun, PLMS) the last counts.
    """

    plan = None

    def __init__(self, run: RunInfo, grid: NoiseGrid, batch: int) -> None:
        self._run, self._grid, self._batch = run, grid, batch
        self._place = -1  # on the grid of distinct times
        self._input: Any = None  # the network's input at the last time
        self._time: Any = None
        # at the last two places, one row per sample: e_c and d, and the same as `_normalised`
        self._pairs: dict[int, tuple[Pair, Pair]] = {}
        self._norms: dict[str, dict[int, Tensor]] = {name: {} for name in MOMENTS}
        self._times: dict[int, float] = {}

    def evaluates(self, step: int) -> bool:
        return True

    def predict(self, step: int, conditional: Term) -> Term | None:
        raise AssertionError("a recorder evaluates each step")

    def visit(self, step: int, sample: Any, time: Any, evaluate: Evaluate) -> None:
        """Before a network call at a new time: measures at the midpoint between the last time and this one."""
        if step == 0 or self._run.positions[step] != self._run.positions[step - 1]:
            if self._place >= 0:
                p, q = self._grid.midpoint_weights(self._place)
                between = combined(self._input, sample, p, q)
                conditional, term = evaluate(between, halfway(self._time, time))
                self._compare(self._normalised(between, conditional, term, self._grid.middle[self._place]))
            self._place += 1
        self._input, self._time = sample, time

    def observe(self, step: int, conditional: Term, term: Term) -> Term | None:
        place = self._place
        pair = self._rows(conditional, self._input), self._rows(term, self._input)
        normal = self._normalised(self._input, conditional, term, self._grid.noise[place])
        self._pairs[place] = pair, normal
        self._pairs.pop(place - 2, None)
        self._times[place] = self._run.times[step] if self._run.times is not None else float(-step)
        if place > 0:
            apart = abs(self._times[place] - self._times[place - 1]) or 1.0
            for name, now, before in zip(("tortoise_rate", "hare_rate"), pair, self._pairs[place - 1][0], strict=True):
                self._norms[name][place] = (now - before).norm(dim=1) / apart
        return None

    def measured(self) -> Rows:
        """Per sample: the norms of each step but the last, and the time steps."""
        if len(self._times) != self._grid.steps:
            raise UnsupportedPipelineError(
                f"guidance was on at {len(self._times)} of {self._grid.steps} time steps, and Algorithm 3 needs all of "
                "them; set guidance_scale above 1, and no guidance interval or cut-off in the pipeline"
            )
        norms = {name: torch.stack(list(found.values()), dim=1) for name, found in self._norms.items()}
        rows: Rows = {name: values.double().cpu().numpy() for name, values in norms.items()}
        same = {"times": np.array(list(self._times.values())), "middle": self._grid.middle}
        return finite(rows | {name: np.tile(values, (self._batch, 1)) for name, values in same.items()})

    def _compare(self, pair: Pair) -> None:
        """|| e_c(x_m) - its extrapolation || and the same for d; the extrapolation is the solver's."""
        place, slope = self._place, 0.0  # of a first-order solver
        if self._grid.order > 1 and place > 0:
            before, start = self._grid.noise[place - 1 : place + 1]
            slope = float((self._grid.middle[place] - start) / (start - before))
        last, earlier = self._pairs[place][1], self._pairs[max(place - 1, 0)][1]
        for name, value, a, b in zip(("tortoise", "hare"), pair, last, earlier, strict=True):
            self._norms[name][place] = (value - a.lerp(b, -slope)).norm(dim=1)

    def _normalised(self, sample: Any, conditional: Term, term: Term, noise: float) -> Pair:
        """e_c and d as the quantity that the solver holds over a step: velocity for flow models, otherwise eps."""
        e_c, d = self._rows(conditional, sample), self._rows(term, sample)
        if self._grid.prediction in ("epsilon", "flow"):
            return e_c, d
        node = state_at(self._grid.prediction, noise)
        p, q = express(node, self._grid.prediction, content(node, "epsilon"))
        channels = conditional[0].shape[1] if conditional[0].ndim > 2 else None  # without further ones of the input
        state = tuple(sample) if isinstance(sample, list) else (sample[:, :channels] if channels else sample,)
        return q * e_c + p * rows_of(state, sample, self._batch, both=True), q * d

    def _rows(self, term: Term, sample: Any) -> Tensor:
        return rows_of(term, sample, self._batch)


# -- tensors of any pipeline, as one row per sample


def combined(start: Any, end: Any, p: float, q: float) -> Any:
    """p * start + q * end; values that are constant along the run (masks, images to edit) are kept."""
    if isinstance(start, list):
        return [combined(a, b, p, q) for a, b in zip(start, end, strict=True)]
    return torch.where(start == end, start, (p * start.float() + q * end.float()).to(start.dtype))


def halfway(start: Any, end: Any) -> Any:
    """The midpoint of two times, in the network's units and type; an integer where possible."""
    if not isinstance(start, Tensor):
        return (start + end) / 2
    total = start + end
    if total.is_floating_point():
        return total / 2
    return total // 2 if bool((total % 2 == 0).all()) else total / 2


def rows_of(term: Term, sample: Any, batch: int, both: bool = False) -> Tensor:
    """The tensors of a network's output as one row of numbers per sample.

    both: these are inputs that may hold several branches of the same samples; the first is taken.
    """
    if isinstance(sample, list):  # one tensor per sample
        flat = [value.float().flatten() for value in (term[:batch] if both else term)]
        return torch.stack([torch.cat(flat[i::batch]) for i in range(batch)])
    parts = []
    for value in term:
        if value.shape[0] % batch or (not both and value.shape[0] != batch):
            raise unassigned(value.shape[0], batch)
        if value.ndim > 2 and sample.ndim == value.ndim and value.shape[1] == 2 * sample.shape[1]:
            value = value[:, : sample.shape[1]]  # the other half is a learned variance
        parts.append(value[:batch].float().flatten(1))
    return torch.cat(parts, dim=1)


def unassigned(rows: int, batch: int) -> UnsupportedPipelineError:
    return UnsupportedPipelineError(
        f"the network gave {rows} rows for {batch} prompts; thg cannot assign them to samples. Calibrate with "
        "batch_size=1"
    )


def finite(rows: Rows) -> Rows:
    """Rows without NaN."""
    for name, values in rows.items():
        if not np.isfinite(values).all():
            raise NonFiniteError(f"the network's outputs hold NaN or infinity (seen in {name}); nothing was measured")
    return rows
