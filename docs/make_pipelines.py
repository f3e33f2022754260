"""Writes docs/pipelines.md from the output of a compatibility check, so that no line of it is kept by hand.

    python docs/make_pipelines.py CHECK.json

CHECK.json is a list of objects with `pipeline`, `status` (ok, refused, wrong, crash, skipped, no-cfg), `why` and
`summary` (that of a run with leaps): one for each tiny pipeline that was run through plain CFG, a full plan, leaps, a
repeated run, a broken run and disable.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import diffusers

from thg.adapter.layouts import Batched, Delegates, Refused, Sequential, known_layouts

PAGE = Path(__file__).with_name("pipelines.md")
ORDER = ("ok", "wrong", "crash", "refused", "skipped", "no-cfg")
RUN = ("ok", "refused", "wrong", "crash")


def main(check: Path) -> None:
    results: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in json.loads(check.read_text()):
        if hasattr(diffusers, row["pipeline"]):  # wrappers that tests define are no pipelines
            results[row["pipeline"]].append(row)
    rows = [row for found in results.values() for row in found]
    counts = {status: sum(row["status"] == status for row in rows) for status in ORDER}
    guided = sum(counts[status] for status in RUN)
    layouts = known_layouts()
    supported = [name for name in {*layouts, *results} if not isinstance(layouts.get(name), Refused)]
    not_run = [name for name in supported if not any(row["status"] in RUN for row in results.get(name, []))]
    lines = [
        "# Pipelines that work",
        "",
        f"Checked with diffusers {diffusers.__version__}: each pipeline is built tiny, with random weights, and run "
        "with plain CFG, a full plan (must be equal), leaps of two (must evaluate half of the unconditional rows), a "
        "second time (must be equal to the bit), after a run that raised, after `thg.disable` (must be equal to the "
        "bit), and with the default plan, also on a simulated accelerator, where no operation may mix devices. "
        f"**{counts['ok']} of {guided} variants with guidance hold all of it**, {counts['refused']} are refused with a "
        f"reason, {counts['wrong'] + counts['crash']} fail. {len(not_run)} of the {len(supported)} pipelines below "
        f"were not run: most have no tiny version.{_corrector(rows)}",
        "",
        "A pipeline need not be in this list: `thg.enable` learns how any pipeline lays out its branches from its "
        "first guided step ([how](extending.md#a-pipeline-of-your-own)). The list says what was checked.",
        "",
        "This page is made by `docs/make_pipelines.py` from the output of the check.",
        "",
        "| pipeline | branches | checked |",
        "| --- | --- | --- |",
    ]
    for name in sorted({*layouts, *results}, key=str.lower):
        layout = layouts.get(name)
        if not isinstance(layout, Refused):
            found = results.get(name, [])
            lines.append(f"| {name} | {_learned(found) or _branches(layout)} | {_verdict(found)} |")
    lines += ["", "## Refused", "", "`thg.enable` raises `UnsupportedPipelineError` with the reason.", ""]
    reasons: dict[str, list[str]] = defaultdict(list)
    for name, layout in layouts.items():
        if isinstance(layout, Refused):
            reasons[layout.why].append(name)
    lines += [f"- {why}: {', '.join(sorted(names))}" for why, names in reasons.items()]
    PAGE.write_text("\n".join(lines) + "\n")


def _learned(found: list[dict[str, str]]) -> str:
    """What the run with leaps has learned, without the guidance scale."""
    lines = [
        line for row in found for line in row.get("summary", "").splitlines() if line.startswith("layout learned: ")
    ]
    return lines[0].removeprefix("layout learned: ").split(", w =")[0] if lines else ""


def _corrector(rows: list[dict[str, str]]) -> str:
    """On how many of them the corrector works, if the check tells."""
    notes = [row.get("note", "") for row in rows if row["status"] == "ok" and "note" in row]
    noisy = [note for note in notes if "adds noise" in note]
    without = [note for note in notes if "corrector was left out" in note and note not in noisy]
    if not notes:
        return ""
    deterministic = len(notes) - len(noisy)
    return (
        f" The corrector works on {deterministic - len(without)} of the {deterministic} variants whose scheduler adds "
        "no noise."
    )


def _branches(layout: Batched | Sequential | Delegates | Refused | None) -> str:
    if isinstance(layout, Batched):
        return f"one call: {', '.join(layout.branches)}"
    if isinstance(layout, Sequential):
        return "a call each: cond, uncond"
    if isinstance(layout, Delegates):
        return f"those of {' and '.join(layout.parts)}"
    return "learned in the first run"


def _verdict(found: list[dict[str, str]]) -> str:
    if not found:
        return "not run: no tiny version to be had"
    worst = max(found, key=lambda row: ORDER.index(row["status"]) if row["status"] in ("wrong", "crash") else 0)
    status = worst["status"] if worst["status"] in ("wrong", "crash") else found[0]["status"]
    if any(row["status"] == "ok" for row in found) and status not in ("wrong", "crash"):
        return "ok" if len(found) == 1 else f"ok ({sum(row['status'] == 'ok' for row in found)} variants)"
    unfinished = any("in time" in row["why"] for row in found)
    return {
        "no-cfg": "no guidance to skip in its tiny version",
        "skipped": f"not run: {'the check did not finish in time' if unfinished else 'its tiny version does not run'}",
    }.get(status, f"{status}: {worst['why']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
