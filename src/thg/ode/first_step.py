"""A check of the first output of a network: does it match the schedule's conventions?

At the start of a run the state is nearly pure noise, x = sigma eps, and no network can know the data in it. So the
coefficient of the noise in its output, <output, x> / <x, x>, is known in advance: 1/sigma for eps and for the velocity
eps - x0, with the opposite sign for x0 - eps, and about 0 for x0 and for v. A network whose velocity has the opposite
sign would run to the end and give a wrong picture.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

from thg.errors import ScheduleError
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
    own, across, other = torch.stack([(a * a).sum(), (a * b).sum(), (b * b).sum()]).tolist()
    if not own:
        return
    _examine_state(node, math.sqrt(own / count))
    unit = 1 / node.sigma
    expected = schedule.output_content(node)[1] * unit
    share = across / own
    uncertain = STANDARD_ERRORS * math.sqrt(max(other / own - share**2, 0.0) / count)
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
