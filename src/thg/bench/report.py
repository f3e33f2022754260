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

from thg.bench.config import BenchConfig
from thg.bench.measurer import Measurer, Say, measure_samples
from thg.bench.metrics import MetricError, Scored, SetMetric, shown_name
from thg.bench.metrics.frechet import read_statistics
from thg.bench.store import BenchmarkRun, RunFolderError, Series, open_picture
from thg.distribution import environment
from thg.errors import MissingExtraError
from thg.files import write_atomically
from thg.plots.charts import Point, draw_frontier
from thg.plots.pictures import Column, most_different, sheet
from thg.processes import Shard

MOST_COLUMNS = 7
COLUMNS = {
    "psnr": ("PSNR dB", 2),
    "ssim": ("SSIM", 4),
    "lpips": ("LPIPS", 4),
    "fid": ("FID", 3),
    "kid": ("KID", 5),
    "cmmd": ("CMMD", 5),
    "clip_score": ("CLIP score", 3),
    "image_reward": ("ImageReward", 5),
    "judge_frechet": ("judge frechet", 3),
    "emoji_recall_1": ("recall@1", 4),
    "emoji_recall_5": ("recall@5", 4),
    "emoji_frechet": ("FD (judge)", 3),
    "snr": ("SNR dB", 2),
    "log_mel": ("log-mel dB", 2),
    "fad": ("FAD", 4),
    "clap_score": ("CLAP score", 4),
    "sound_frechet": ("FAD (judge)", 2),
}
"""The title and the digits of a metric; of another one its name, and four digits."""
ARROWS = {"higher": "↑", "lower": "↓"}
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


@dataclass(frozen=True)
class Comparison:
    """All rows, and (metric, reason) of metrics that could not be measured."""

    rows: list[Row]
    directions: Mapping[str, str]
    skipped: list[tuple[str, str]] = field(default_factory=list)

    def ideal(self, row: Row) -> float | None:
        """The speed-up over plain CFG that follows from the evaluations."""
        plain = next((row.nfe for row in self.rows if row.is_reference), None)
        return plain / row.nfe if plain and row.nfe else None


# -- the numbers


def reduce_rows(measurer: Measurer) -> Comparison:
    """Every method's numbers."""
    loaded, config = measurer.loaded, measurer.config
    for metric in loaded.metrics:
        if isinstance(metric, SetMetric):
            metric.use_statistics(read_statistics(config.references.statistics[metric.name]))
    series = measurer.run.series()
    rows = [_row(series[method.name], measurer) for method in config.methods]
    directions = {metric.name: metric.direction for metric in loaded.all}
    return Comparison(rows, directions, loaded.skipped)


def _row(series: Series, measurer: Measurer) -> Row:
    method, count = series.method, measurer.config.count
    values: dict[str, float | None] = {metric.name: None for metric in measurer.loaded.all}
    worst: dict[str, float] = {}
    for metric in [each for each in measurer.loaded.all if series.ready and measurer.applies(each, series)]:
        try:
            rows = measurer.rows(metric, series)
        except MetricError as error:  # a package may lack its weights; the other metrics are shown
            measurer.loaded.skip(metric, str(error))
            continue
        values[metric.name] = metric.reduce(rows)
        if "pairs" in metric.needs and isinstance(metric, Scored):
            worst[metric.name] = metric.worst(rows) or 0.0
    seconds = series.seconds() if series.ready else {}
    return Row(
        name=method.name,
        policy=method.policy,
        paper=method.citation,
        group=method.group,
        steps=method.steps,
        guidance_scale=method.guidance_scale,
        nfe=math.fsum(series.record(index)["nfe"] for index in range(count)) / count if series.ready else None,
        seconds=math.fsum(seconds.values()) / len(seconds) if seconds else None,
        metrics=values,
        published=method.paper,
        speedup=_speedup(measurer.reference.seconds(), seconds),
        worst=worst,
        note=series.left_out or _note(series.prepared),
        is_reference=method is measurer.config.reference_method,
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
            f"({prepared['nfe_of_pilot']:.2f} evaluations there); evaluations are the mean over samples"
        )
    if "nfe" in prepared:
        return "evaluations counted by the work in the network's layers"
    if "plan" in prepared:
        return f"coarse grid {prepared['plan']['coarse']}"
    return ""


# -- the table


def table(compared: Comparison, metrics: tuple[str, ...]) -> str:
    """Markdown. `metrics`: all requested metrics, in the order of the columns."""
    rows = compared.rows
    heads = [f"{_column(name)[0]} {ARROWS.get(compared.directions.get(name, ''), '')}".strip() for name in metrics]
    lines = [
        "| " + " | ".join(["method", "evaluations", "s/sample", "speed-up", "ideal", *heads]) + " |",
        "|" + "---|" + "---:|" * (4 + len(metrics)),
    ]
    groups = list(dict.fromkeys(row.group for row in rows))
    for group in groups:
        members = [row for row in rows if row.group == group]
        if group:
            lines.append(f"| **{group}** |" + " |" * (4 + len(metrics)))
        best = {name: _best(members, name, compared.directions.get(name)) for name in metrics}
        for row in members:
            cells = [
                f"{row.name}{' (reference)' if row.is_reference else ''}",
                _with_published(_number(row.nfe, None), row.published.get("nfe"), None),
                _number(row.seconds, 3),
                _number(row.speedup, 2, "x"),
                _number(compared.ideal(row), 2, "x"),
                *(_cell(row, name, best[name]) for name in metrics),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _column(name: str) -> tuple[str, int]:
    return COLUMNS.get(name, (name.replace("_", " "), 4))


def _cell(row: Row, name: str, best: float | None) -> str:
    value = row.metrics.get(name)
    _, digits = _column(name)
    text = _number(value, digits)
    if value is not None and best is not None and not row.is_reference and text == _number(best, digits):
        text = f"**{text}**"
    if name in row.worst:
        text += f" / {_number(row.worst[name], digits)}"
    return _with_published(text, row.published.get(name), digits)


def _best(rows: list[Row], name: str, direction: str | None) -> float | None:
    """The best of the compared methods, without the reference (plain CFG)."""
    values = [v for row in rows if not row.is_reference and (v := row.metrics.get(name)) is not None]
    if len(values) < 2 or direction is None:
        return None
    return max(values) if direction == "higher" else min(values)


def _with_published(text: str, published: float | None, digits: int | None) -> str:
    return text if published is None else f"{text} (paper {_number(published, digits)})"


def _number(value: float | None, digits: int | None, unit: str = "") -> str:
    """digits: None for one digit of a number that is not whole."""
    if value is None or math.isnan(value):
        return DASH
    return f"{value:.{int(value != int(value)) if digits is None else digits}f}{unit}"


# -- the files


def write_report(measurer: Measurer, device: str = "cpu") -> str:
    """Writes the report of a measured run; returns the table."""
    config, path = measurer.config, measurer.run.folder
    compared = reduce_rows(measurer)
    about = environment(device)
    pictures = []
    try:
        if draw_frontier(_points(compared), path / "frontier.png", config.title):
            pictures.append("![Fidelity against network evaluations](frontier.png)")
    except MissingExtraError as error:
        pictures.append(f"No frontier plot: {error}.")
    if _sheet(measurer.run, compared):
        pictures.append("![The same prompts across methods](sheet.png)")
    numbers = table(compared, tuple(shown_name(name, config.base) for name in config.metrics))
    write_atomically(path / "metrics.json", (json.dumps(_document(config, compared, about), indent=1) + "\n").encode())
    write_atomically(path / "report.md", _markdown(config, compared, about, numbers, pictures).encode())
    return numbers


def rebuild_report(path: Path, shard: Shard | None = None, progress: Say = print) -> str | None:
    """Writes the report again from the store: measures what is missing, without sampling.

    None if other processes are still measuring; the last of them writes the report.
    """
    run, shard = BenchmarkRun.stored(path), shard or Shard()
    if left := run.missing_samples():
        raise RunFolderError(f"{left} samples are missing in {run.store}: run thg bench again to resume")
    measurer = measure_samples(run, shard, progress)
    return None if measurer is None else write_report(measurer, shard.device)


def _points(compared: Comparison) -> list[Point]:
    values = [(row, row.metrics.get("psnr")) for row in compared.rows]
    return [Point(row.name, row.policy, row.nfe, value) for row, value in values if row.nfe and value is not None]


def _sheet(run: BenchmarkRun, compared: Comparison) -> bool:
    """The same prompts across methods; False for sounds."""
    config, series = run.config, run.series()
    rows = {row.name: row for row in compared.rows if row.nfe is not None}
    names = [name for name in config.sheet.methods if name in rows] or list(rows)[:MOST_COLUMNS]
    indices = [index for index in config.sheet.prompts if index < config.count]
    files = {name: [series[name].file(index) for index in indices] for name in names}
    if not names or not indices or files[names[0]][0].suffix == ".wav":
        return False
    columns = [
        Column(name, f"{rows[name].nfe:.0f} evaluations", list(map(open_picture, files[name]))) for name in names
    ]
    rows_of_pictures = zip(*(column.pictures for column in columns), strict=True)
    details = [config.sheet.region or most_different(pictures) for pictures in rows_of_pictures]
    buffer = BytesIO()
    sheet([run.prompts.prompts[i] for i in indices], columns, details).save(buffer, "PNG")
    write_atomically(run.folder / "sheet.png", buffer.getvalue())
    return True


def _document(config: BenchConfig, compared: Comparison, about: dict[str, str]) -> dict[str, Any]:
    rows = [{**asdict(row), "ideal_speedup": compared.ideal(row)} for row in compared.rows]
    return {
        "title": config.title,
        "environment": about,
        "seed": config.seed,
        "samples": config.count,
        "methods": rows,
        "missing": dict(compared.skipped),
        "config": config.source,
    }


def _markdown(
    config: BenchConfig, compared: Comparison, about: dict[str, str], numbers: str, pictures: list[str]
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
        "Evaluations: of the network, per sample. Speed-up: seconds of plain CFG over those of the method, in batches "
        "that both made in turns; ideal: by the evaluations. Fidelity metrics compare with plain CFG on the same "
        "prompt and seed: the mean, and after the slash the mean of the worst 5 % of the samples; identical pictures "
        "count as 100 dB. Bold: best mean of the group, without plain CFG.",
    ]
    lines += [""] if compared.skipped else []
    lines += [f"- No {name}: {reason}" for name, reason in compared.skipped]
    for picture in pictures:
        lines += ["", picture]
    lines += ["", "## Methods", ""]
    for row in compared.rows:
        how = f" *{row.note}.*" if row.note else ""
        lines.append(f"- **{row.name}**: {row.paper}.{how}")
    lines += ["", "## Environment", ""]
    lines += [f"- {name}: {value}" for name, value in about.items()]
    lines += ["", "## Configuration", "", "```json", json.dumps(config.source, indent=1, default=str), "```", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")
