"""The paper's two figures from a profile: derivative norms and error bounds per step, and the grid below them."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from thg.distribution import missing
from thg.errors import ProfileError
from thg.files import write_atomically
from thg.plans.plan import Plan
from thg.plots.colours import HARE, TORTOISE
from thg.profiles.noise import output_weight
from thg.profiles.profile import Moments, Profile


def plot_profile(profile: Profile, plan: Plan | None, path: str | Path) -> None:
    """Writes the figure; the format follows from the name of the file."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("a plot", "plots") from error
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    rates, bounds, grid_a, grid_b = figure.subplots(2, 2, height_ratios=(8, 1)).flat
    steps = np.arange(profile.steps - 1)
    about, constants = profile.about, profile.algorithm3
    _band(rates, steps, constants.tortoise_rate, 1.0, TORTOISE, "conditional output $e_c$")
    _band(rates, steps, constants.hare_rate, 1.0, HARE, "guidance term $d$")
    rates.set_title("norm of the time derivative")
    factor = _error_factors(profile)
    _band(bounds, steps, constants.tortoise, factor, TORTOISE, "tortoise")
    _band(bounds, steps, constants.hare, factor * (about.guidance_scale - 1), HARE, "hare")
    bounds.set_title("error bound of one step")
    for axes in (rates, bounds):
        axes.set_yscale("log")
        axes.set_xlim(-0.5, profile.steps - 0.5)
        axes.legend(frameon=False)
        axes.grid(alpha=0.2)
    for axes in (grid_a, grid_b):
        _grid(axes, plan, profile.steps)
    figure.suptitle(
        f"{about.model or about.pipeline}, {about.scheduler}, {about.steps} steps, guidance scale "
        f"{about.guidance_scale:g}, {profile.samples} samples",
        fontsize=10,
    )
    path, picture = Path(path), BytesIO()
    kind = path.suffix.removeprefix(".").lower()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ProfileError(f"there is no format {path.suffix!r} for a plot; write {path.with_suffix('.png')}")
    figure.savefig(picture, dpi=150, format=kind)
    write_atomically(path, picture.getvalue())


def _error_factors(profile: Profile) -> Any:
    """|B2| / (1 - 2^-p): from the norm at the midpoint to the local error of the step."""
    kind, middle = profile.about.prediction, profile.algorithm3.middle
    weights = [abs(output_weight(kind, m, e)) for m, e in zip(middle, profile.noise[1:-1], strict=True)]
    return np.array(weights) / (1 - 2.0**-profile.about.order)


def _band(axes: Any, steps: Any, moments: Moments, factor: Any, colour: str, label: str) -> None:
    """The mean, and the band of two standard deviations."""
    mean, width = factor * moments.mean, 2 * factor * moments.std
    axes.plot(steps, mean, color=colour, label=label)
    lowest = mean.min() / 10  # what a logarithmic axis can show
    axes.fill_between(steps, np.maximum(mean - width, lowest), mean + width, color=colour, alpha=0.2, linewidth=0)


def _grid(axes: Any, plan: Plan | None, steps: int) -> None:
    axes.set_xlim(-0.5, steps - 0.5)
    axes.set_yticks([])
    axes.set_xlabel("step")
    if plan is None:
        return
    scale = steps / plan.steps
    evaluated = [i * scale for i in range(plan.steps) if plan.evaluates(i)]
    guided = [i * scale for i in range(plan.steps) if plan.guides(i)]
    axes.plot(guided, [0] * len(guided), "|", color=TORTOISE)
    axes.plot(evaluated, [0] * len(evaluated), "o", color=HARE, markersize=3.5)
    axes.set_title(f"{plan.nfe} of {plan.cfg_nfe} evaluations", fontsize=8, pad=2)
