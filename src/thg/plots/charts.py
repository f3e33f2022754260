"""Charts by matplotlib: fidelity against network evaluations, and the paper's figures from a profile."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from thg.distribution import missing
from thg.errors import ProfileError
from thg.files import write_atomically
from thg.plans.plan import Plan
from thg.plots import HARE, TORTOISE
from thg.profiles.profile import Moments, Profile

OURS = {
    "tapered": (HARE, "#8B0000"),
    "uniform": ("#FF7F50", "#B8541F"),
    "profile": ("#8B008B", "#DA70D6"),
    "within": ("#D9820A", "#F0B03F"),
    "thg": (TORTOISE, "#6A8CFF"),
}
"""Colours of thg's policies: the planners in the hare's, the paper's plan in the tortoise's; other methods are grey."""
GREYS = ("#222222", "#555555", "#777777", "#999999", "#BBBBBB")
MARKERS = "osD^vP*Xh<>"


def _figure(what: str, **options: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing(what, "plots") from error
    return Figure(**options)


def _save(figure: Any, path: Path) -> None:
    """The format follows from the name of the file."""
    kind, picture = path.suffix.removeprefix(".").lower(), BytesIO()
    if kind not in figure.canvas.get_supported_filetypes():
        raise ProfileError(f"there is no format {path.suffix!r} for a plot; write {path.with_suffix('.png')}")
    figure.savefig(picture, format=kind)
    write_atomically(path, picture.getvalue())


# -- the frontier: fidelity to plain CFG against evaluations, one line for each family of methods


@dataclass(frozen=True)
class Point:
    """A method: its name, the policy that colours it, its evaluations per sample and its value."""

    name: str
    policy: str
    nfe: float
    value: float


def family(name: str) -> str:
    """What methods with other budgets have in common: "thg uniform 70" is of the family "thg uniform"."""
    return re.sub(r"[\s,]*\d+( steps)?$", "", name) or name


def draw_frontier(points: list[Point], path: Path, title: str) -> bool:
    """Writes the plot; False if there are fewer than two points to draw."""
    if len(points) < 2:
        return False
    figure = _figure("the frontier plot", figsize=(9.0, 4.8), dpi=120, layout="tight")
    families: dict[tuple[bool, str, str], list[tuple[float, float]]] = {}
    for point in points:
        line = (point.policy not in OURS, point.policy, family(point.name))
        families.setdefault(line, []).append((point.nfe, point.value))
    axes, greys, markers = figure.add_subplot(), cycle(GREYS), cycle(MARKERS)
    shades = {policy: cycle(colours) for policy, colours in OURS.items()}
    for (other, policy, name), members in sorted(families.items()):
        look = {"linewidth": 1.0, "zorder": 2} if other else {"linewidth": 2.0, "zorder": 3}
        colour = next(shades.get(policy, greys))
        axes.plot(*zip(*sorted(members), strict=True), label=name, color=colour, marker=next(markers), **look)
    axes.set_xlabel("network evaluations per sample")
    axes.set_ylabel("PSNR to plain CFG, dB")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))  # outside, where it covers no point
    _save(figure, path)
    return True


# -- a profile: derivative norms and error bounds per step, and the grid below them


def plot_profile(profile: Profile, plan: Plan | None, path: str | Path) -> None:
    """Writes the figure; the format follows from the name of the file."""
    figure = _figure("a plot", figsize=(9, 4.2), dpi=150, layout="constrained")
    rates, bounds, *grids = figure.subplots(2, 2, height_ratios=(8, 1)).flat
    about, constants = profile.about, profile.algorithm3
    _band(rates, constants.tortoise_rate, 1.0, TORTOISE, "conditional output $e_c$")
    _band(rates, constants.hare_rate, 1.0, HARE, "guidance term $d$")
    rates.set_title("norm of the time derivative")
    factors = profile.error_factors()
    _band(bounds, constants.tortoise, factors, TORTOISE, "tortoise")
    _band(bounds, constants.hare, factors * (about.guidance_scale - 1), HARE, "hare")
    bounds.set_title("error bound of one step")
    for axes in (rates, bounds):
        axes.set_yscale("log")
        axes.set_xlim(-0.5, profile.steps - 0.5)
        axes.legend(frameon=False)
        axes.grid(alpha=0.2)
    for axes in grids:
        _grid(axes, plan, profile.steps)
    figure.suptitle(
        f"{about.model or about.pipeline}, {about.scheduler}, {about.steps} steps, guidance scale "
        f"{about.guidance_scale:g}, {profile.samples} samples",
        fontsize=10,
    )
    _save(figure, Path(path))


def _band(axes: Any, moments: Moments, factor: Any, colour: str, label: str) -> None:
    """The mean, and the band of two standard deviations."""
    mean, width = factor * moments.mean, 2 * factor * moments.std
    steps, lowest = np.arange(len(mean)), mean.min() / 10  # what a logarithmic axis can show
    axes.plot(steps, mean, color=colour, label=label)
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
