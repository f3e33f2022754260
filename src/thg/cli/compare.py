"""`thg compare`: the same seeds with plain CFG, the paper's plan, thg's default, and plain CFG at the same cost.

`thg demo` is the comparison on several prompts of a shipped model, one picture at a time.
"""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from thg.cli import options, saving
from thg.cli.parser import DEFAULT_MODEL
from thg.cli.progress import Progress, explained_run
from thg.errors import THGError
from thg.media import mean_psnr, picture
from thg.models import SHIPPED
from thg.plans.plan import PRESETS, preset
from thg.plans.planners import Choice
from thg.plots.pictures import GAIN, Column, difference_of, sheet, spectrogram
from thg.processes import batches
from thg.sampling import SeededRun, steps_at_cost

PLAIN, OURS = "plain CFG", "thg"
DEMO_ROWS = 8


def demo(args: argparse.Namespace) -> int:
    args.prompt = list(SHIPPED.get(args.model, SHIPPED[DEFAULT_MODEL]).examples[:DEMO_ROWS])
    args.batch_size = args.batch_size or 1  # as most people run their models
    return run(args)


def run(args: argparse.Namespace) -> int:
    out = args.out or Path(f"{args.command}.png")
    saving.check_writable(out)
    saving.check_format(out, "image")
    if args.out is None and not args.force:
        out = saving.free(out, 1)
    saving.check_free([out, *_beside(out)], args.force)
    pipe = options.load(args)
    prompts = [prompt for prompt in args.prompt for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    options.objections(args, args.prompt)
    results = _results(pipe, args, prompts, seeds)
    plain = results[PLAIN]
    if OURS in results and (reason := _surprise(results[OURS], plain, options.steps_of(args, pipe))):
        print(f"thg {args.command}: {reason}", file=sys.stderr)
    columns = [_column(title, result, plain) for title, result in results.items()]
    shown = [each for column in columns for each in _with_difference(column, columns[0], plain.output.kind)]
    labels = [prompt if args.count == 1 else f"{prompt} ({seed})" for prompt, seed in zip(prompts, seeds, strict=True)]
    how = {"prompts": prompts, "seeds": seeds, **options.metadata(args, pipe)}
    saving.save_picture(out, sheet(labels, shown), how)
    for column in columns:
        print(f"{column.title:28s} {column.caption.replace(chr(10), '   ')}")
    if OURS in results and results[OURS].nfe < plain.nfe:
        print(_speed(results[OURS], plain))
    print(out)
    if plain.output.kind != "image":
        print(_save_all(out, results))
    return 0


def _beside(out: Path) -> list[Path]:
    """Sounds and videos of an earlier comparison with this sheet."""
    suffixes = [saving.SUFFIX["audio"], saving.SUFFIX["video"]]
    return sorted(path for suffix in suffixes for path in out.parent.glob(f"{out.stem}-*{suffix}"))


def _save_all(out: Path, results: dict[str, SeededRun]) -> str:
    """Writes each sound or video next to the sheet, as name-method-0.wav. Returns what was written."""
    output = results[PLAIN].output
    suffix, count = saving.SUFFIX[output.kind], len(output.items)
    for title, result in results.items():
        method = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
        for number in range(count):
            saving.save(out.with_name(f"{out.stem}-{method}-{number}{suffix}"), result.output, number, {})
    return f"{out.with_name(out.stem)}-*{suffix}: {count * len(results)} {saving.NAMES[output.kind]}"


def _results(pipe: Any, args: argparse.Namespace, prompts: list[str], seeds: list[int]) -> dict[str, SeededRun]:
    """The result of each method, plain CFG first; one that cannot run is omitted with its reason.

    The methods take turns, so that a machine that becomes slower or faster does so for all of them.
    """
    steps = options.steps_of(args, pipe)
    call = options.call_arguments(args, pipe, prompts[:1])
    explained_run(pipe, {**call, "num_inference_steps": min(4, steps)}, seeds[:1], False)  # warm-up
    paper = next((name for name, it in PRESETS.items() if it.steps == steps and it.coarse is not None), None)
    methods: dict[str, tuple[Choice | bool, int]] = {PLAIN: (False, steps)}
    methods |= {} if paper is None else {f"THG, paper ({paper})": (preset(paper), steps)}
    methods[OURS] = True, steps
    made: dict[str, list[SeededRun]] = {}

    def take_turn(title: str, batch: range) -> None:
        plan, num_inference_steps = methods[title]
        call = options.call_arguments(args, pipe, [prompts[i] for i in batch])
        call["num_inference_steps"] = num_inference_steps
        try:
            done = progress.sample(title, pipe, call, [seeds[i] for i in batch], plan)
            made.setdefault(title, []).append(done)
        except THGError as error:
            if title == PLAIN:
                raise
            del methods[title]
            made.pop(title, None)
            print(f"thg {args.command}: no column {title!r}: {error}", file=sys.stderr)

    with closing(Progress((len(methods) + 1) * len(prompts))) as progress:
        for batch in batches(len(prompts), options.batch_size(args)):
            for title in list(methods):
                take_turn(title, batch)
            if batch.start == 0 and OURS in made:
                fewer = steps_at_cost(steps, made[OURS][0].nfe, made[PLAIN][0].nfe)
                if fewer < steps:
                    methods[title := f"{PLAIN}, {fewer} steps"] = False, fewer
                    take_turn(title, batch)
    return {title: SeededRun.joined(parts) for title, parts in made.items()}


def _speed(ours: SeededRun, plain: SeededRun) -> str:
    """The speed-up, and the one that the evaluations allow."""
    measured, ideal = plain.seconds / ours.seconds, plain.nfe / ours.nfe
    return f"thg is {measured:.2f} times as fast, and {ideal:.2f} times by its evaluations"


def _surprise(ours: SeededRun, plain: SeededRun, steps: int) -> str:
    """Why thg does not look better than plain CFG, if it does not."""
    if ours.nfe >= plain.nfe:
        return f"with --steps {steps} thg needs every evaluation to stay within its tolerance; try more"
    if ours.seconds >= plain.seconds:
        return "thg was not quicker with fewer evaluations: the model is small, or the machine is busy"
    return ""


def _with_difference(column: Column, plain: Column, kind: str) -> list[Column]:
    """A column of pictures, and what the eye does not see of its difference to plain CFG's."""
    if kind != "image" or column is plain:
        return [column]
    pairs = zip(column.pictures, plain.pictures, strict=True)
    return [column, Column(f"its difference, {GAIN} times", "", [difference_of(*pair) for pair in pairs])]


def _column(title: str, result: SeededRun, plain: SeededRun) -> Column:
    caption = f"{result.nfe} evaluations   {result.seconds / len(result.output.items):.2f} s"
    if result is not plain:
        decibels = result.output.decibels(plain.output)
        worst = f", worst {mean_psnr([min(decibels)]):.1f}" if len(decibels) > 1 else ""
        caption += f"\n{mean_psnr(decibels):.1f} dB{worst}"
    if result.summary is not None and result.summary.estimated_error:
        caption += f"\nestimated error {max(result.summary.estimated_error):.1%}"
    return Column(title, caption, _pictures(result, plain))


def _pictures(result: SeededRun, plain: SeededRun) -> list[Image.Image]:
    """The results as pictures; sounds as spectrograms, relative to the loudest sample of plain CFG's."""
    output = result.output
    if output.kind == "audio":
        peaks = [float(np.abs(reference).max()) or 1.0 for reference in plain.output.items]
        return [spectrogram(sound / peak, output.rate) for sound, peak in zip(output.items, peaks, strict=True)]
    return [saving.four_frames(item) if output.kind == "video" else picture(item) for item in output.items]
