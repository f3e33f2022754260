"""The frontier: fidelity to plain CFG against network evaluations, one line for each family of methods."""

from __future__ import annotations

import re
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from pathlib import Path

from thg.distribution import missing
from thg.files import write_atomically
from thg.plots.colours import HARE, TORTOISE

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


def draw_frontier(points: list[Point], path: Path, title: str, label: str = "PSNR to plain CFG, dB") -> bool:
    """Writes the plot; False if there are fewer than two points to draw. Needs matplotlib."""
    if len(points) < 2:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing("the frontier plot", "plots") from error
    families: dict[tuple[bool, str, str], list[tuple[float, float]]] = {}
    for point in points:
        line = (point.policy not in OURS, point.policy, family(point.name))
        families.setdefault(line, []).append((point.nfe, point.value))
    figure = Figure(figsize=(9.0, 4.8), dpi=120)
    axes = figure.add_subplot()
    greys = cycle(GREYS)
    shades = {policy: cycle(colours) for policy, colours in OURS.items()}
    markers = cycle(MARKERS)
    for (other, policy, label_of_line), members in sorted(families.items()):
        xs, ys = zip(*sorted(members), strict=True)
        axes.plot(
            xs,
            ys,
            label=label_of_line,
            color=next(shades.get(policy, greys)),
            marker=next(markers),
            linewidth=1.0 if other else 2.0,
            zorder=2 if other else 3,
        )
    axes.set_xlabel("network evaluations per sample (NFE)")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0))  # outside, where it covers no point
    figure.tight_layout()
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())
    return True
