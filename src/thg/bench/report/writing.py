"""The report of a run: report.md, metrics.json and pictures, from the samples in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig
from thg.bench.keeping import read_picture
from thg.bench.measuring import Measurer, Progress
from thg.bench.pipeline import load_pipeline
from thg.bench.report.environment import environment
from thg.bench.report.markdown import speedups, table
from thg.bench.report.measure import Measured, reduce_rows
from thg.bench.shard import Shard
from thg.bench.stages import BenchmarkRun, measure_samples, require_samples
from thg.errors import MissingExtraError
from thg.files import write_atomically
from thg.plots.frontier import Point, draw_frontier
from thg.plots.sheet import Column, most_different, sheet

MOST_COLUMNS = 7


def write_report(run: BenchmarkRun, measurer: Measurer, device: str = "cpu") -> str:
    """Writes the report of a measured run; returns the table."""
    config, path = run.config, run.folder.path
    measured = reduce_rows(run, measurer)
    about = environment(device)
    notes = [f"{note}." for note in measured.notes]
    try:
        frontier = draw_frontier(_points(measured), path / "frontier.png", config.title)
    except MissingExtraError as error:
        frontier = False
        notes.append(f"No frontier plot: {error}.")
    drawn = _sheet(run, measured, device)
    numbers = table(measured, config.metrics)
    write_atomically(path / "metrics.json", (json.dumps(_document(config, measured, about), indent=1) + "\n").encode())
    text = _markdown(config, measured, about, numbers, notes, frontier, drawn)
    write_atomically(path / "report.md", text.encode())
    return numbers


def rebuild_report(path: Path, shard: Shard | None = None, progress: Progress = print) -> str | None:
    """Writes the report again from the store: measures what is missing, without sampling.

    None if other processes are still measuring; the last of them writes the report.
    """
    run, shard = BenchmarkRun.stored(path), shard or Shard()
    require_samples(run)
    measurer = measure_samples(run, shard, progress)
    return None if measurer is None else write_report(run, measurer, shard.device)


def _points(measured: Measured) -> list[Point]:
    values = [(row, row.metrics.get("psnr")) for row in measured.rows]
    return [Point(row.name, row.policy, row.nfe, value) for row, value in values if row.nfe and value is not None]


def _sheet(run: BenchmarkRun, measured: Measured, device: str) -> bool:
    config = run.config
    rows = {row.name: row for row in measured.rows if not row.left_out}
    names = [name for name in config.sheet.methods if name in rows] or list(rows)[:MOST_COLUMNS]
    series = run.series()
    indices = [index for index in config.sheet.prompts if index < config.count]
    files = [[series[name].file(index) for index in indices] for name in names]
    kept = [path for column in files for path in column if path is not None]
    if len(kept) < len(names) * len(indices) or not kept or kept[0].suffix == ".wav":
        return False  # sounds, or pictures that were not kept
    pipe = load_pipeline(config.model, device) if kept[0].suffix == ".safetensors" else None
    columns = [
        Column(name, f"NFE {rows[name].nfe:.0f}", [read_picture(path, pipe) for path in column if path is not None])
        for name, column in zip(names, files, strict=True)
    ]
    left, top, right, bottom = config.sheet.region or (0, 0, 0, 0)
    details = [
        (left, top, right, bottom) if right else most_different([column.pictures[row] for column in columns])
        for row in range(len(indices))
    ]
    buffer = BytesIO()
    sheet([run.prompts.prompts[i] for i in indices], columns, details).save(buffer, "PNG")
    write_atomically(run.folder.path / "sheet.png", buffer.getvalue())
    return True


def _document(config: BenchConfig, measured: Measured, about: dict[str, str]) -> dict[str, Any]:
    faster = speedups(measured.rows)
    rows = []
    for row in measured.rows:
        measured_ratio, ideal = faster[row.name]
        rows.append({**asdict(row), "speedup": measured_ratio, "ideal_speedup": ideal})
    return {
        "title": config.title,
        "environment": about,
        "seed": config.seed,
        "samples": config.count,
        "methods": rows,
        "missing": dict(measured.skipped),
        "notes": measured.notes,
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
        "NFE: network evaluations per sample. Speed-up: measured seconds of plain CFG over those of the method; ideal: "
        "the same from NFE. Fidelity metrics compare with plain CFG on the same prompt and seed: the mean, and after "
        "the slash the mean of the worst 5 % of the samples; identical pictures count as 100 dB. Bold: best mean of "
        "the group, without plain CFG.",
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
