"""The tables of docs/faster.md and README: the best result for at most a given share of the work, from RESULTS.md.

    python benchmarks/frontier.py

make_results.py calls it, so that both pages have the latest results.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from thg.files import write_atomically

HERE = Path(__file__).parent
PAGE, README = HERE.parent / "docs" / "faster.md", HERE.parent / "README.md"
LEVELS = (70, 60, 50, 43, 35, 30, 25)  # per cent of plain CFG's work
SHORT_LEVELS = (70, 50, 35, 25)  # of README's table
ROUNDED = 0.5
HEAD = """| work | CFG, fewer steps | thg | a cache | a cache and thg | both branches leap | which cache and thg |
| --- | --- | --- | --- | --- | --- | --- |"""


class Row(NamedTuple):
    group: str
    setting: str
    work: float
    mean: float
    worst: float


KINDS: dict[str, Callable[[str], bool]] = {
    "steps": lambda group: group.startswith("CFG"),
    "thg": lambda group: group in ("thg", "thg, fewer steps"),
    "cache": lambda group: "thg" not in group and not group.startswith("CFG"),
    "together": lambda group: "and thg" in group,
    "both": lambda group: "both branches leap" in group,
}
NAMES = {
    "steps": "plain CFG, fewer steps",
    "thg": "thg",
    "cache": "a cache",
    "together": "**a cache with thg**",
    "both": "**`thg.leap_both`, no cache**",
}


def rows_of(results: str, model: str) -> list[Row]:
    """The rows of the section on work beyond a factor of two."""
    text = results.partition("<!-- beyond -->")[2].partition(f"\n### {model}\n")[2].partition("\n#")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [Row(group, name, *map(float, numbers)) for group, name, *numbers in cells if numbers[0][:1].isdigit()]


def best_within(rows: list[Row], level: int) -> dict[str, Row | None]:
    """The best row of each kind with at most this share of the work."""
    within = [row for row in rows if row.work < level + ROUNDED]
    return {kind: _best([row for row in within if belongs(row.group)]) for kind, belongs in KINDS.items()}


def table(rows: list[Row]) -> str:
    lines = [HEAD]
    for level in LEVELS:
        best = best_within(rows, level)
        first = _best(list(filter(None, best.values())))
        cells = [_cell(row, row == first) for row in best.values()]
        together = best["together"]
        which = "–" if together is None else f"{together.group.partition(' and thg')[0]}, {together.setting}"
        lines.append(f"| {level} % | {' | '.join(cells)} | {which} |")
    return "\n".join(lines)


def short_table(results: str) -> str:
    """README's table: both models in one cell."""
    models = [rows_of(results, model) for model in ("eps", "flow")]
    lines = [f"| | {' | '.join(f'{level} %' for level in SHORT_LEVELS)} |", "| --- |" + " --- |" * len(SHORT_LEVELS)]
    for kind, name in NAMES.items():
        best = [[best_within(rows, level)[kind] for rows in models] for level in SHORT_LEVELS]
        lines.append(f"| {name} | {' | '.join('; '.join(_cell(row, False) for row in pair) for pair in best)} |")
    return "\n".join(lines)


def _best(rows: list[Row]) -> Row | None:
    return max(rows, key=lambda row: row.mean, default=None)


def _cell(row: Row | None, first: bool) -> str:
    if row is None:
        return "–"
    numbers = f"{row.mean:.1f} / {row.worst:.1f}"
    return f"**{numbers}**" if first else numbers


def current(page: str, results: str) -> str:
    """The page with the tables that follow from these results."""
    for model in ("eps", "flow"):
        page = _filled(page, model, table(rows_of(results, model)))
    return page


def current_readme(readme: str, results: str) -> str:
    """README with the table that follows from these results."""
    return _filled(readme, "beyond", short_table(results))


def _filled(page: str, mark: str, text: str) -> str:
    before, start, rest = page.partition(f"<!-- {mark} -->")
    _, end, after = rest.partition("<!-- end -->")
    return f"{before}{start}\n\n{text}\n\n{end}{after}"


def main() -> None:
    results, page, readme = (path.read_text(encoding="utf-8") for path in (HERE / "RESULTS.md", PAGE, README))
    write_atomically(PAGE, current(page, results).encode())
    write_atomically(README, current_readme(readme, results).encode())


if __name__ == "__main__":
    main()
