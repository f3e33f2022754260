"""The report of a run: report.md, metrics.json and pictures, from the rows in its store; no network runs.

The table has the best in bold, a dash for a missing number, and the paper's numbers next to ours.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig, Method
from thg.bench.measure import Measurer, Progress
from thg.bench.metrics import MetricError, Scored, SetMetric, shown_name
from thg.bench.metrics.frechet import read_statistics
from thg.bench.run import BenchmarkRun, measure_samples
from thg.bench.samples import open_picture
from thg.bench.store import Series
from thg.environment import environment
from thg.errors import MissingExtraError
from thg.files import write_atomically
from thg.plots.charts import Point, draw_frontier
from thg.plots.pictures import Column, most_different, sheet
from thg.processes import Shard

MOST_COLUMNS = 7
TITLES = {
    **{"psnr": "PSNR dB", "ssim": "SSIM", "lpips": "LPIPS", "fid": "FID", "kid": "KID", "cmmd": "CMMD", "fad": "FAD"},
    **{"clip_score": "CLIP score", "image_reward": "ImageReward", "clap_score": "CLAP score"},
    **{"snr": "SNR dB", "log_mel": "log-mel dB", "sound_frechet": "FAD (judge)", "emoji_frechet": "FD (judge)"},
    **{"emoji_recall_1": "recall@1", "emoji_recall_5": "recall@5"},
}
ARROWS = {"higher": "↑", "lower": "↓"}
DIGITS = {"psnr": 2, "fid": 3, "kid": 5, "cmmd": 5, "clip_score": 3, "image_reward": 5, "judge_frechet": 3}
DIGITS |= {"snr": 2, "log_mel": 2, "sound_frechet": 2, "emoji_frechet": 3}
DASH = "–"


@dataclass(frozen=True)
class Row:
    """A method in the table. For a metric that is None, the report's list of missing metrics has the reason.

    worst: for metrics that compare with plain CFG, the mean of the worst 5 % of the samples. speedup: measured over
    plain CFG in batches that both made in turns.
    """

    name: str
    policy: str
    paper: str
    group: str
    steps: int
    guidance_scale: float
    nfe: float | None
    seconds: float | None
    metrics: dict[str, float | None]
    published: dict[str, float]
    speedup: float | None = None
    worst: dict[str, float] = field(default_factory=dict)
    note: str = ""
    is_reference: bool = False

    @property
    def left_out(self) -> bool:
        return self.nfe is None


@dataclass(frozen=True)
class Measured:
    """All rows, and (metric, reason) of metrics that could not be measured."""

    rows: list[Row]
    directions: Mapping[str, str]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def ideal(self, row: Row) -> float | None:
        """The speed-up over plain CFG that follows from the evaluations."""
        plain = next((row.nfe for row in self.rows if row.is_reference), None)
        return plain / row.nfe if plain and row.nfe else None


# -- the numbers


def reduce_rows(run: BenchmarkRun, measurer: Measurer) -> Measured:
    """Every method's numbers."""
    loaded = measurer.loaded
    for metric in loaded.metrics:
        if isinstance(metric, SetMetric):
            metric.use_statistics(read_statistics(run.config.references.statistics[metric.name]))
    reference = run.series()[run.config.reference_method.name]
    rows = [_row(run, method, measurer, reference) for method in run.config.methods]
    directions = {metric.name: metric.direction for metric in loaded.all}
    return Measured(rows, directions, list(dict.fromkeys(loaded.skipped)))


def _row(run: BenchmarkRun, method: Method, measurer: Measurer, reference: Series) -> Row:
    stored, count = run.stored_method(method.name), run.config.count
    series = stored.series
    values: dict[str, float | None] = {metric.name: None for metric in measurer.loaded.all}
    worst: dict[str, float] = {}
    for metric in measurer.loaded.all if series is not None else ():
        pairs = "pairs" in metric.needs
        if series is None or (pairs and series.key == reference.key):
            continue
        try:
            rows = measurer.rows(metric, series, reference, run.prompts.prompts)
        except MetricError as error:  # a package may lack its weights; the other metrics are shown
            measurer.loaded.skip(metric, str(error))
            continue
        values[metric.name] = metric.reduce(rows)
        if pairs and isinstance(metric, Scored):
            worst[metric.name] = metric.worst(rows) or 0.0
    seconds = series.seconds() if series else {}
    return Row(
        name=method.name,
        policy=method.policy_name,
        paper=method.reference,
        group=method.group,
        steps=method.steps,
        guidance_scale=method.guidance_scale,
        nfe=math.fsum(record["nfe"] for record in series.records(count)) / count if series else None,
        seconds=math.fsum(seconds.values()) / len(seconds) if seconds else None,
        metrics=values,
        published=method.published,
        speedup=_speedup(reference.seconds(), seconds),
        worst=worst,
        note=stored.left_out or _note(stored.prepared),
        is_reference=method is run.config.reference_method,
    )


def _speedup(plain: Mapping[str, float], seconds: Mapping[str, float]) -> float | None:
    """Over the turns in which both were timed."""
    turns = plain.keys() & seconds.keys()
    return math.fsum(plain[turn] for turn in turns) / math.fsum(seconds[turn] for turn in turns) if turns else None


def _note(prepared: dict[str, Any]) -> str:
    """The result of a method's preparation, in words."""
    if "threshold" in prepared:
        return (
            f"threshold {prepared['threshold']:.6f}, found on {prepared['pilot']} prompts "
            f"({prepared['nfe_of_pilot']:.2f} evaluations there); NFE is the mean over samples"
        )
    if "nfe" in prepared:
        return "NFE counted by the work in the network's layers"
    if "plan" in prepared:
        return f"coarse grid {prepared['plan']['coarse']}"
    return ""


# -- the table


def table(measured: Measured, metrics: tuple[str, ...]) -> str:
    """Markdown. `metrics`: all requested metrics, in the order of the columns."""
    rows = measured.rows
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
            cells = [
                f"{row.name}{' (reference)' if row.is_reference else ''}",
                _with_published(_nfe(row.nfe), row.published.get("nfe"), "nfe"),
                _number(row.seconds, 3),
                _times(row.speedup),
                _times(measured.ideal(row)),
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


# -- the files


def write_report(run: BenchmarkRun, measurer: Measurer, device: str = "cpu") -> str:
    """Writes the report of a measured run; returns the table."""
    config, path = run.config, run.folder
    measured = reduce_rows(run, measurer)
    about = environment(device)
    notes = []
    try:
        frontier = draw_frontier(_points(measured), path / "frontier.png", config.title)
    except MissingExtraError as error:
        frontier = False
        notes.append(f"No frontier plot: {error}.")
    drawn = _sheet(run, measured)
    numbers = table(measured, tuple(shown_name(name, config.base) for name in config.metrics))
    write_atomically(path / "metrics.json", (json.dumps(_document(config, measured, about), indent=1) + "\n").encode())
    text = _markdown(config, measured, about, numbers, notes, frontier, drawn)
    write_atomically(path / "report.md", text.encode())
    return numbers


def rebuild_report(path: Path, shard: Shard | None = None, progress: Progress = print) -> str | None:
    """Writes the report again from the store: measures what is missing, without sampling.

    None if other processes are still measuring; the last of them writes the report.
    """
    run, shard = BenchmarkRun.stored(path), shard or Shard()
    run.require_samples()
    measurer = measure_samples(run, shard, progress)
    return None if measurer is None else write_report(run, measurer, shard.device)


def _points(measured: Measured) -> list[Point]:
    values = [(row, row.metrics.get("psnr")) for row in measured.rows]
    return [Point(row.name, row.policy, row.nfe, value) for row, value in values if row.nfe and value is not None]


def _sheet(run: BenchmarkRun, measured: Measured) -> bool:
    """The same prompts across methods; False for sounds."""
    config = run.config
    rows = {row.name: row for row in measured.rows if not row.left_out}
    names = [name for name in config.sheet.methods if name in rows] or list(rows)[:MOST_COLUMNS]
    series = run.series()
    indices = [index for index in config.sheet.prompts if index < config.count]
    files = [[series[name].file(index) for index in indices] for name in names]
    if not names or not indices or files[0][0].suffix == ".wav":
        return False
    columns = [
        Column(name, f"NFE {rows[name].nfe:.0f}", [open_picture(path) for path in column])
        for name, column in zip(names, files, strict=True)
    ]
    left, top, right, bottom = config.sheet.region or (0, 0, 0, 0)
    details = [
        (left, top, right, bottom) if right else most_different([column.pictures[row] for column in columns])
        for row in range(len(indices))
    ]
    buffer = BytesIO()
    sheet([run.prompts.prompts[i] for i in indices], columns, details).save(buffer, "PNG")
    write_atomically(run.folder / "sheet.png", buffer.getvalue())
    return True


def _document(config: BenchConfig, measured: Measured, about: dict[str, str]) -> dict[str, Any]:
    rows = [{**asdict(row), "ideal_speedup": measured.ideal(row)} for row in measured.rows]
    return {
        "title": config.title,
        "environment": about,
        "seed": config.seed,
        "samples": config.count,
        "methods": rows,
        "missing": dict(measured.skipped),
        "config": config.source,
    }


def _markdown(
    config: BenchConfig,
    measured: Measured,
    about: dict[str, str],
    numbers: str,
    notes: list[str],
    frontier: bool,
    sheet: bool,
) -> str:
    model = (config.model.shipped and f"the shipped model {config.model.shipped!r}") or config.model.source
    scheduler = f" with {config.model.scheduler}" if config.model.scheduler else ""
    lines = [
        f"# {config.title}",
        "",
        f"{config.count} samples of {model}{scheduler}, {config.steps} steps, guidance scale "
        f"{config.guidance_scale:g}, seed {config.seed}, batches of {config.batch_size}, on "
        f"{about['device']}. {about['date']}, commit {about['commit'] or 'unknown'}.",
        "",
        config.notes,
        "",
        numbers,
        "",
        "NFE: network evaluations per sample. Speed-up: seconds of plain CFG over those of the method, in batches that "
        "both made in turns; ideal: the same from NFE. Fidelity metrics compare with plain CFG on the same prompt and "
        "seed: the mean, and after the slash the mean of the worst 5 % of the samples; identical pictures count as 100 "
        "dB. Bold: best mean of the group, without plain CFG.",
    ]
    lines += [""] if measured.skipped else []
    lines += [f"- No {name}: {reason}" for name, reason in measured.skipped]
    lines += ["", *notes] if notes else []
    if frontier:
        lines += ["", "![Fidelity against network evaluations](frontier.png)"]
    if sheet:
        lines += ["", "![The same prompts across methods](sheet.png)"]
    lines += ["", "## Methods", ""]
    for row in measured.rows:
        how = f" *{row.note}.*" if row.note else ""
        lines.append(f"- **{row.name}**: {row.paper}.{how}")
    lines += ["", "## Environment", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += ["", "## Configuration", "", "```json", json.dumps(config.source, indent=1, default=str), "```", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")
