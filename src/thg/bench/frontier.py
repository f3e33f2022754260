"""The frontier: fidelity to plain CFG against network evaluations, one line for each family of methods."""

from __future__ import annotations

import math
import os
from io import BytesIO
from pathlib import Path

from thg.bench.measure import Row
from thg.bench.store import write_whole
from thg.errors import MissingExtraError

TORTOISE, HARE = "#0000CD", "#DC143C"
OURS = {"uniform": HARE, "profile": "#FF8C94", "thg": TORTOISE}
"""Colours of thg's policies: the planners in the hare's, the paper's plan in the tortoise's; rivals are grey."""
GREYS = ("#222222", "#555555", "#777777", "#999999", "#BBBBBB")
MARKERS = "osD^vP*Xh<>"


def draw_frontier(
    rows: list[Row], path: Path, title: str, metric: str = "psnr", label: str = "PSNR to plain CFG, dB"
) -> bool:
    """Writes the plot; False if there are fewer than two points to draw. Needs matplotlib."""
    points = [(row, value) for row in rows if row.nfe and (value := row.metrics.get(metric)) and math.isfinite(value)]
    if len(points) < 2:
        return False
    try:
        os.environ.setdefault("MPLBACKEND", "Agg")
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the frontier plot needs matplotlib: pip install 'thg[plots]'") from error
    families: dict[str, list[tuple[float, float]]] = {}
    for row, value in points:
        assert row.nfe is not None
        families.setdefault(row.policy, []).append((row.nfe, value))
    figure = Figure(figsize=(7.5, 4.8), dpi=120)
    axes = figure.add_subplot()
    greys = iter(GREYS * 3)
    for number, (policy, members) in enumerate(sorted(families.items(), key=lambda item: item[0] not in OURS)):
        xs, ys = zip(*sorted(members), strict=True)
        ours = policy in OURS
        axes.plot(
            xs,
            ys,
            label={"uniform": "thg, uniform grid", "profile": "thg, calibrated grid", "thg": "THG, paper"}.get(
                policy, policy
            ),
            color=OURS.get(policy) or next(greys),
            marker=MARKERS[number % len(MARKERS)],
            linewidth=2.0 if ours else 1.0,
            zorder=3 if ours else 2,
        )
    axes.set_xlabel("network evaluations a sample (NFE)")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    write_whole(path, buffer.getvalue())
    return True
