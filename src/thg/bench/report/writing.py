"""The report of a run: report.md, metrics.json and pictures, from the samples in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any

from thg.bench.config import BenchConfig, parse_config
from thg.bench.report.environment import environment
from thg.bench.report.markdown import speedups, table
from thg.bench.report.measure import Measured, measure
from thg.bench.store import RunFolder
from thg.errors import MissingExtraError
from thg.files import write_atomically
from thg.plots.frontier import Point, draw_frontier
from thg.plots.sheet import Column, most_different, sheet

MOST_COLUMNS = 7


def write_report(config: BenchConfig, path: Path, device: str = "cpu") -> str:
    """Measures what is in the folder and writes the report; returns the table."""
    folder = RunFolder(path)
    measured = measure(config, folder, device)
    about = environment(device)
    notes = [f"{note}." for note in measured.notes]
    try:
        frontier = draw_frontier(_points(measured), path / "frontier.png", config.title)
    except MissingExtraError as error:
        frontier = False
        notes.append(f"No frontier plot: {error}.")
    drawn = _sheet(config, folder, measured)
    numbers = table(measured, config.metrics)
    write_atomically(path / "metrics.json", (json.dumps(_document(config, measured, about), indent=1) + "\n").encode())
    text = _markdown(config, measured, about, numbers, notes, frontier, drawn)
    write_atomically(path / "report.md", text.encode())
    return numbers


def rebuild_report(path: Path, device: str = "cpu") -> str:
    """The report again, from what the folder holds; generates nothing."""
    folder = RunFolder(path)
    stored = folder.stored_config()
    return write_report(parse_config(stored["config"], Path(stored["base"])), path, device)


def _points(measured: Measured) -> list[Point]:
    found = [(row, row.metrics.get("psnr")) for row in measured.rows]
    return [Point(row.name, row.policy, row.nfe, value) for row, value in found if row.nfe and value is not None]


def _sheet(config: BenchConfig, folder: RunFolder, measured: Measured) -> bool:
    if not folder.sample_path(config.reference_method.slug, 0, ".png").exists():
        return False  # sounds
    rows = {row.name: row for row in measured.rows if not row.left_out}
    names = [name for name in config.sheet.methods if name in rows] or list(rows)[:MOST_COLUMNS]
    indices = [index for index in config.sheet.prompts if index < config.count]
    if not indices:
        return False
    columns = []
    for name in names:
        slug = config.method(name).slug
        columns.append(Column(name, f"NFE {rows[name].nfe:.0f}", [folder.read_picture(slug, i) for i in indices]))
    records = folder.records(config.reference_method.slug, config.count)
    prompts = {record["index"]: record["prompt"] for record in records if record["index"] in indices}
    left, top, right, bottom = config.sheet.region or (0, 0, 0, 0)
    details = [
        (left, top, right, bottom) if right else most_different([column.pictures[row] for column in columns])
        for row in range(len(indices))
    ]
    buffer = BytesIO()
    sheet([prompts[i] for i in indices], columns, details).save(buffer, "PNG")
    write_atomically(folder.path / "sheet.png", buffer.getvalue())
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
        "methods": _finite(rows),
        "missing": dict(measured.skipped),
        "notes": measured.notes,
        "config": config.source,
    }


def _finite(value: Any) -> Any:
    """JSON has no infinity: an infinite PSNR becomes the text "inf"."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


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
        "NFE: network evaluations a sample. Speed-up: measured seconds of plain CFG over those of the method; ideal: "
        "the same from NFE. Fidelity metrics compare with plain CFG on the same prompt and seed. Bold: best of the "
        "group, plain CFG aside.",
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
