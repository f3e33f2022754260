"""Makes the pictures of README: docs/demo-*.png, a strip for each row of its table, and docs/frontier.png.

    python docs/make_readme.py            # all; the strips have the prompts and seeds of `thg demo`
    python docs/make_readme.py frontier   # the chart alone, from the first table of benchmarks/RESULTS.md

Each file has its numbers as metadata, and a test compares them with README and the table. Seconds are those of one CPU
thread, without the time that other processes take; plain CFG and thg take turns.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from PIL import Image

import thg
from thg.cli.compare import DEMO_ROWS
from thg.files import atomic_target
from thg.media import mean_psnr, picture, png_text
from thg.models.shipped import SHIPPED
from thg.plots import HARE, TORTOISE
from thg.plots.pictures import difference_of
from thg.sampling import SeededRun, seeded_run

HERE = Path(__file__).parent
RESULTS = HERE.parent / "benchmarks" / "RESULTS.md"
MODEL = SHIPPED["emoji"]
CELL, GAP = 128, 12
LINES = {  # of the chart: the name, the rows of the table, the colour
    "thg": (r"thg (?:default|tapered \d+)", HARE),
    "fewer plain steps": (r"CFG, \d+ steps", TORTOISE),
}
POINTS = {"TaylorSeer 36": "TaylorSeer", "HiCache 36": "HiCache"}
POINTS |= {name: name for name in ("DeepCache", "CFG-Cache", "THG (paper)")}
GREY = "#6e6e7a"


def strips() -> None:
    """Plain CFG, thg, and the difference, for each prompt of `thg demo`."""
    torch.set_num_threads(1)
    pipe = thg.shipped_pipeline("emoji")
    pipe.set_progress_bar_config(disable=True)
    made: dict[str, list[SeededRun]] = {"plain": [], "thg": []}
    spent = dict.fromkeys(made, 0.0)
    prompts = MODEL.examples[:DEMO_ROWS]
    for prompt in (prompts[0], *prompts):  # the first calls are slow: twice
        for name in made:
            started = time.process_time()
            call = {"prompt": [prompt], "num_inference_steps": MODEL.steps, "guidance_scale": MODEL.guidance_scale}
            made[name].append(seeded_run(pipe, call, [0], name == "thg"))
            spent[name] += time.process_time() - started if len(made[name]) > 1 else 0.0
    shown = {name: [picture(run.output.items[0]) for run in runs[1:]] for name, runs in made.items()}
    shown["difference"] = [difference_of(*pair) for pair in zip(shown["thg"], shown["plain"], strict=True)]
    pairs = zip(made["thg"][1:], made["plain"][1:], strict=True)
    decibels = mean_psnr([ours.output.decibels(plain.output)[0] for ours, plain in pairs])
    about: dict[str, dict[str, Any]] = {"difference": {"decibels": round(decibels, 1)}}
    for name, runs in made.items():
        about[name] = {"evaluations": runs[-1].nfe, "seconds": round(spent[name] / len(prompts), 2)}
    for name, pictures in shown.items():
        page = Image.new("RGB", (len(pictures) * (CELL + GAP) - GAP, CELL), "white")
        for i, each in enumerate(pictures):
            page.paste(each.resize((CELL, CELL), Image.Resampling.NEAREST), (i * (CELL + GAP), 0))
        with atomic_target(HERE / f"demo-{name}.png") as target:
            page.save(target, pnginfo=png_text(about[name]), optimize=True)
        print(f"demo-{name}.png: {about[name]}")


def places() -> dict[str, list[list[float]]]:
    """Evaluations and decibels of each method of the chart, from the table of the model `eps`."""
    table = RESULTS.read_text(encoding="utf-8").partition("<!-- eps -->")[2].partition("<!-- ")[0]
    rows = re.findall(r"^\| ([^|*]+?) \| ([\d.]+) \|(?:[^|]*\|){3} \**([\d.]+)", table, re.MULTILINE)
    found = {name: [float(nfe), float(decibels)] for name, nfe, decibels in rows}
    lines = {
        name: sorted(place for row, place in found.items() if re.fullmatch(kind, row))
        for name, (kind, _) in LINES.items()
    }
    return lines | {shown: [found[row]] for row, shown in POINTS.items()}


def frontier() -> None:
    """Fidelity against evaluations, with the name of each method beside its point."""
    figure = Figure(figsize=(5.2, 3.3), dpi=200, layout="constrained")
    axes = figure.subplots()
    for name, method in places().items():
        colour = LINES[name][1] if name in LINES else GREY
        axes.plot(*zip(*method, strict=True), "o-", color=colour, linewidth=2, markersize=5)
        right, top = method[-1]
        place = (6, 2) if name == "DeepCache" else (6, -4)  # beside its point; higher, where a line passes
        axes.annotate(name, (right, top), place, textcoords="offset points", color=colour)
    axes.set_xlabel("network evaluations (the plain run: 100)")
    axes.set_ylabel("PSNR to the plain picture, dB")
    axes.margins(x=0.2)
    axes.grid(alpha=0.3)
    with atomic_target(HERE / "frontier.png") as target:
        figure.savefig(target, format="png", metadata={"thg": json.dumps(places())})


MADE = {"strips": strips, "frontier": frontier}

if __name__ == "__main__":
    for made in sys.argv[1:] or MADE:
        MADE[made]()
