"""Writes docs/pipelines.md from the outputs of compatibility checks.

    python docs/make_pipelines.py FILE_OR_FOLDER ...

Each file is a JSON list of objects with `pipeline`, `status` (ok, refused, wrong, crash, skipped, no-cfg), `why` and
`note` (of a run with the default): one for each tiny pipeline that was run. A folder stands for its JSON files. Rows
with `"alone": true` come from a check of plans that skip the whole network, for classes that are refused otherwise;
rows of modular pipelines make a table of their own.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import diffusers

from thg.pipelines.layouts import Batched, Delegates, Refused, Sequential, known_layouts

PAGE = Path(__file__).with_name("pipelines.md")
RUN = ("ok", "refused", "wrong", "crash")
Rows = list[dict[str, str]]


def main(sources: list[Path]) -> None:
    results: dict[str, Rows] = defaultdict(list)
    alone: dict[str, Rows] = defaultdict(list)
    for path in (
        file for source in sources for file in (sorted(source.glob("*.json")) if source.is_dir() else [source])
    ):
        for row in json.loads(path.read_text()):
            row["pipeline"] = re.sub(
                "(Pipeline)?Wrapper$", "Pipeline", row["pipeline"]
            )  # of tests: another safety checker
            if hasattr(diffusers, row["pipeline"]):
                (alone if row.get("alone") else results)[row["pipeline"]].append(row)
    modular = {name: results.pop(name) for name in sorted(results) if name.endswith("ModularPipeline")}
    layouts = known_layouts()
    refused = {name: layout.why for name, layout in layouts.items() if isinstance(layout, Refused)}
    names = sorted((name for name in {*layouts, *results} if name not in refused), key=str.lower)
    lines = [*_head([row for rows in results.values() for row in rows])]
    lines += ["| pipeline | branches | checked |", "| --- | --- | --- |"]
    lines += [f"| {name} | {_branches(layouts.get(name))} | {_verdict(results.get(name, []))} |" for name in names]
    lines += [
        "",
        "## Without plans of the guidance term",
        "",
        "With a plan of the guidance term `thg.enable` raises `UnsupportedPipelineError` for these, with the reason. "
        "Plans that skip the whole network were checked: six of ten steps, twice the same, and the plain result again "
        "after `thg.disable`.",
        "",
        "| pipeline | why | the whole network |",
        "| --- | --- | --- |",
    ]
    entirely = {name for name, layout in layouts.items() if isinstance(layout, Refused) and layout.entirely}
    for name in sorted(refused):
        verdict = "refused as well" if name in entirely else _verdict(alone.get(name) or results.get(name, []))
        lines.append(f"| {name} | {refused[name]} | {verdict} |")
    if modular:
        lines += [
            "",
            "## Modular Diffusers",
            "",
            "`thg.enable(modular_pipe)`, with tiny components, those of the pipeline of the same family if there is "
            "one: all evaluations (must be equal to the bit), six of ten steps, twice (must be equal), and disabled "
            "again.",
            "",
            "| pipeline | checked |",
            "| --- | --- |",
        ]
        lines += [f"| {name} | {_verdict(rows)} |" for name, rows in modular.items()]
    PAGE.write_text("\n".join(lines) + "\n")
    print(f"{len(names)} pipelines, {len(refused)} without plans of the guidance term, {len(modular)} modular ones")


def _head(rows: Rows) -> list[str]:
    counts = {status: sum(row["status"] == status for row in rows) for status in RUN}
    return [
        "# Pipelines that work",
        "",
        f"Checked with diffusers {diffusers.__version__}: each pipeline is built tiny, with random weights, and run "
        "plain, with a full plan (must be equal), with a plan of the guidance term that leaps over every second step "
        "(must evaluate half of the unconditional rows), a second time (must be equal to the bit), after a run that "
        "raised, after `thg.disable` (must be equal to the bit), with the default and with a loose tolerance (must be "
        "finite, and the same twice), without guidance, and on a simulated accelerator, where no operation may mix "
        f"devices. **{counts['ok']} of {sum(counts.values())} variants with guidance pass all of this**, "
        f"{counts['refused']} are refused with a reason, {counts['wrong'] + counts['crash']} fail.",
        "",
        "A pipeline need not be in this list: the default needs to know nothing about branches. A plan of the guidance "
        "term, such as the paper's, takes the layout of another pipeline as `layout=` "
        "([how](extending.md#a-pipeline-of-your-own)). The list shows what was checked.",
        "",
        "A remark behind *ok* is about the tiny version, with the scheduler and the few steps of its test: a model "
        "with another scheduler or more steps is accelerated.",
        "",
        "This page is generated by `docs/make_pipelines.py` from the outputs of the checks.",
        "",
    ]


def _branches(layout: object) -> str:
    if isinstance(layout, Batched):
        return f"one call: {', '.join(layout.branches)}"
    if isinstance(layout, Sequential):
        return "a call for each: cond, uncond"
    if isinstance(layout, Delegates):
        return f"those of {' and '.join(layout.parts)}"
    return "one call: uncond, cond, perturbed"


def _verdict(found: Rows) -> str:
    """The worst of the variants that were run; otherwise why none was."""
    run = [row for row in found if row["status"] in RUN]
    if not run:
        if any(row["status"] == "no-cfg" for row in found):
            return "no guidance in its tiny version"
        why = [row["why"] for row in found if row.get("why")]
        return f"not run: {_cell(why[0])}" if why else "not run: no tiny version"
    worst = max(run, key=lambda row: RUN.index(row["status"]))
    if worst["status"] != "ok":
        return f"{worst['status']}: {_cell(worst['why'])}"
    notes = [row.get("note", "") for row in run]
    plain = [re.split(r", and |; ", note)[0] for note in notes if "everything was evaluated" in note]
    variants = f" ({len(run)} variants)" if len(run) > 1 else ""
    return f"ok{variants}" + (f"; {_cell(plain[0])}" if plain else "")


def _cell(text: str) -> str:
    """One line of text, short enough for a table."""
    line = " ".join(text.replace("|", "/").split())
    return line if len(line) <= 120 else line[:117] + "..."


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
