"""The table of a benchmark, in Markdown: best in bold, a dash for a missing number, the paper's numbers next to
ours."""

from __future__ import annotations

import math

from thg.bench.report.measure import Measured, Row

TITLES = {
    "psnr": "PSNR dB",
    "ssim": "SSIM",
    "lpips": "LPIPS",
    "fid": "FID",
    "kid": "KID",
    "cmmd": "CMMD",
    "clip_score": "CLIP score",
    "image_reward": "ImageReward",
    "fad": "FAD",
    "clap_score": "CLAP score",
    "judge_accuracy": "judge accuracy",
    "tone_accuracy": "tone accuracy",
    "judge_frechet": "judge Frechet",
}
ARROWS = {"higher": "↑", "lower": "↓"}
DIGITS = {"psnr": 2, "fid": 3, "kid": 5, "cmmd": 5, "clip_score": 3, "image_reward": 5, "judge_frechet": 3}
DASH = "–"


def speedups(rows: list[Row]) -> dict[str, tuple[float | None, float | None]]:
    """Measured and ideal speed-up of each method over the reference."""
    reference = next(row for row in rows if row.is_reference)

    def ratio(whole: float | None, part: float | None) -> float | None:
        return whole / part if whole and part else None

    return {row.name: (ratio(reference.seconds, row.seconds), ratio(reference.nfe, row.nfe)) for row in rows}


def table(measured: Measured, metrics: tuple[str, ...]) -> str:
    """Markdown. `metrics`: all requested metrics, in the order of the columns."""
    rows = measured.rows
    faster = speedups(rows)
    heads = [
        f"{TITLES.get(name, name.replace('_', ' '))} {ARROWS.get(measured.directions.get(name, ''), '')}".strip()
        for name in metrics
    ]
    lines = [
        "| " + " | ".join(["method", "NFE", "s/sample", "speed-up", "ideal", *heads]) + " |",
        "|" + "---|" + "---:|" * (4 + len(metrics)),
    ]
    groups = list(dict.fromkeys(row.group for row in rows))
    for group in groups:
        members = [row for row in rows if row.group == group]
        if group:
            lines.append(f"| **{group}** |" + " |" * (4 + len(metrics)))
        best = {name: _best(members, name, measured.directions.get(name)) for name in metrics}
        for row in members:
            measured_ratio, ideal = faster[row.name]
            cells = [
                f"{row.name}{' (reference)' if row.is_reference else ''}",
                _with_published(_nfe(row.nfe), row.published.get("nfe"), "nfe"),
                _number(row.seconds, 3),
                _times(measured_ratio),
                _times(ideal),
                *(_cell(row, name, best[name]) for name in metrics),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row, name: str, best: float | None) -> str:
    value = row.metrics.get(name)
    digits = DIGITS.get(name, 4)
    text = _number(value, digits)
    if value is not None and best is not None and not row.is_reference and text == _number(best, digits):
        text = f"**{text}**"
    if name in row.worst:
        text += f" / {_number(row.worst[name], digits)}"
    return _with_published(text, row.published.get(name), name)


def _best(rows: list[Row], name: str, direction: str | None) -> float | None:
    """The best of the compared methods, without the reference (plain CFG)."""
    values = [v for row in rows if not row.is_reference and (v := row.metrics.get(name)) is not None]
    if len(values) < 2 or direction is None:
        return None
    return max(values) if direction == "higher" else min(values)


def _with_published(text: str, published: float | None, name: str) -> str:
    if published is None:
        return text
    return f"{text} (paper {_nfe(published) if name == 'nfe' else _number(published, DIGITS.get(name, 4))})"


def _number(value: float | None, digits: int) -> str:
    if value is None or math.isnan(value):
        return DASH
    return f"{value:.{digits}f}"


def _nfe(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _times(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}x"
