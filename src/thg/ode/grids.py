"""The grid points of a run, as numbers: training steps, sigmas, the two ends of time."""

from __future__ import annotations

import math
import operator
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from thg.errors import ScheduleError
from thg.ode.curves import Array
from thg.ode.outputs import Prediction

Spacing = Literal["leading", "trailing", "linspace"]
Times = tuple[float, float]
"""The network's times at noise and at data: (1, 0), (0, 1), (999, 0)."""

SMALLEST = 2.0**-24  # of alpha squared; in place of 0 at zero terminal SNR, as in diffusers


def whole(steps: Any) -> int:
    """A number of steps as an int, from Python, numpy or torch."""
    try:
        count = operator.index(steps)
    except TypeError:
        raise ScheduleError(f"steps must be a whole number, not {steps!r}") from None
    if count < 1:
        raise ScheduleError(f"a schedule needs at least 1 step, not {count}")
    return count


def ends(time: Any) -> Times:
    """Validates the network's times at noise and at data."""
    try:
        at_noise, at_data = (float(value) for value in time)
    except (TypeError, ValueError):
        at_noise = at_data = math.nan
    if not (math.isfinite(at_noise) and math.isfinite(at_data) and at_noise != at_data):
        raise ScheduleError(
            "time must be the network's times at noise and at data, two different numbers such as time=(1, 0) or "
            f"time=(999, 0), not {time!r}"
        )
    return at_noise, at_data


def training_alphas(betas: ArrayLike, prediction: Prediction) -> Array:
    """alpha squared at each training step. The last may be 0 (zero terminal SNR) if the output still determines x0."""
    values = np.asarray(betas, dtype=np.float64)
    ends_in_noise = values.ndim == 1 and len(values) > 1 and values[-1] == 1
    if values.ndim != 1 or not len(values) or not np.all(((values > 0) & (values < 1))[: len(values) - ends_in_noise]):
        raise ScheduleError(f"betas must be a sequence of numbers between 0 and 1, not of shape {values.shape}")
    alphas_cumprod = np.cumprod(1 - values)
    if ends_in_noise and prediction in ("v_prediction", "sample"):
        alphas_cumprod[-1] = min(SMALLEST, alphas_cumprod[-2] / 2)
    return np.asarray(alphas_cumprod, dtype=np.float64)


def training_steps(spacing: Spacing, total: int, steps: int, offset: int) -> Array:
    """The training steps that a run visits, from noise to data; spacing and offset as in diffusers."""
    if steps > total:
        raise ScheduleError(f"steps must lie between 1 and the {total} training steps, not {steps}")
    if spacing == "leading":
        return np.asarray(np.arange(steps)[::-1] * (total // steps) + float(offset))
    if spacing == "trailing":
        return np.asarray(np.round(total - np.arange(steps) * (total / steps)) - 1.0)
    if spacing == "linspace":
        return np.linspace(total - 1, 0, steps)
    raise ScheduleError(f"spacing must be one of {', '.join(get_args(Spacing))}, not {spacing!r}")


def karras_sigmas(steps: int, sigma_max: float, sigma_min: float, rho: float) -> Array:
    """The grid of Karras et al. (EDM), and 0 at its end."""
    if not 0 < sigma_min < sigma_max:
        raise ScheduleError(f"sigma_min must lie above 0 and below sigma_max, not {sigma_min:g} and {sigma_max:g}")
    share = np.arange(steps) / max(steps - 1, 1)
    high, low = sigma_max ** (1 / rho), sigma_min ** (1 / rho)
    return np.append((high + share * (low - high)) ** rho, 0.0)
