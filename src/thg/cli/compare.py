"""`thg compare`: the same seeds with plain CFG, the paper's plan, thg's default, and plain CFG at the same cost."""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from thg.cli import files, pipelines
from thg.cli.progress import Progress
from thg.cli.sampling import Sampled, sample
from thg.cli.sounds import spectrograms
from thg.cli.videos import four_frames, video_psnr
from thg.errors import THGError
from thg.media import mean_psnr, psnr, snr
from thg.models.pretrained import sampling_rate
from thg.plans.planners import Choice
from thg.plans.presets import PRESETS, preset
from thg.plots.pictures import GAIN, Column, difference, sheet

PLAIN, OURS = "plain CFG", "thg"


def run(args: argparse.Namespace) -> int:
    out = args.out or Path(f"{args.command}.png")
    files.check_writable(out)
    files.check_format(out, "image")
    if args.out is None and not args.force:
        out = files.free(out, 1)
    files.check_free([out, *_beside(out)], args.force)
    pipe = pipelines.load(args)
    prompts = [prompt for prompt in args.prompt for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    pipelines.objections(args, args.prompt)
    results = Comparison(pipe, args, prompts, seeds).results()
    columns = [_column(each, results[0], pipe) for each in results]
    beside = [column for each in zip(columns, results, strict=True) for column in _with_difference(*each, columns[0])]
    labels = [prompt if args.count == 1 else f"{prompt} ({seed})" for prompt, seed in zip(prompts, seeds, strict=True)]
    how = {"prompts": prompts, "seeds": seeds, **pipelines.describe(args, pipe)}
    files.save_picture(out, sheet(labels, beside), how)
    for column in columns:
        print(f"{column.title:28s} {column.caption.replace(chr(10), '   ')}")
    print(out)
    if results[0].kind != "image":
        print(_save_all(out, results, pipe))
    return 0


def _beside(out: Path) -> list[Path]:
    """Sounds and videos of an earlier comparison with this sheet."""
    suffixes = [files.SUFFIX["audio"], files.SUFFIX["video"]]
    return sorted(path for suffix in suffixes for path in out.parent.glob(f"{out.stem}-*{suffix}"))


def _save_all(out: Path, results: list[Result], pipe: Any) -> str:
    """Writes each sound or video next to the sheet, as name-method-0.wav. Returns what was written."""
    suffix = files.SUFFIX[results[0].kind]
    for result in results:
        method = re.sub(r"[^a-z0-9.]+", "-", result.title.lower()).strip("-")
        for number, item in enumerate(result.items):
            path = out.with_name(f"{out.stem}-{method}-{number}{suffix}")
            if result.kind == "audio":
                files.save_sound(path, item, sampling_rate(pipe))
            else:
                files.save_frames(path, item)
    count = sum(len(result.items) for result in results)
    return f"{out.with_name(out.stem)}-*{suffix}: {count} {files.NAMES[results[0].kind]}"


@dataclass(frozen=True)
class Result:
    """The pictures, sounds or videos of one method, their cost, and their largest estimated error, if any."""

    title: str
    kind: str
    items: list[Any]
    nfe: int
    seconds: float
    error: float | None


@dataclass(frozen=True, eq=False)
class Method:
    """What to compare. plan: as `sampling.sample` takes it."""

    title: str
    plan: Choice | bool
    steps: int


class Comparison:
    """The same prompts and seeds by several methods."""

    def __init__(self, pipe: Any, args: argparse.Namespace, prompts: list[str], seeds: list[int]) -> None:
        self.pipe, self.args, self.prompts, self.seeds = pipe, args, prompts, seeds
        self.steps, self.batch = pipelines.steps_of(args, pipe), pipelines.batch_size(args)

    def results(self) -> list[Result]:
        """The result of each method, plain CFG first; one that cannot run is omitted with its reason.

        The methods take turns, so that a machine that becomes slower or faster does so for all of them.
        """
        call = pipelines.call_arguments(self.args, self.pipe, self.prompts[:1])
        sample(self.pipe, {**call, "num_inference_steps": min(4, self.steps)}, self.seeds[:1], False)  # warm-up
        turns: dict[Method, list[Sampled]] = {method: [] for method in self._methods()}
        with Progress((len(turns) + 1) * len(self.prompts)) as progress:
            for start in range(0, len(self.prompts), self.batch):
                for method in list(turns):
                    self._take_turn(method, start, turns, progress)
                if start == 0 and (fewer := self._fewer([done[0] for done in turns.values()], list(turns))):
                    turns[fewer] = []
                    self._take_turn(fewer, start, turns, progress)
        results = [_result(method, parts) for method, parts in turns.items()]
        ours = next((result for result in results if result.title == OURS), None)
        if ours and (reason := self._surprise(ours, results[0])):
            print(f"thg compare: {reason}", file=sys.stderr)
        return results

    def _methods(self) -> list[Method]:
        named = next((name for name, it in PRESETS.items() if it.steps == self.steps and it.coarse is not None), None)
        paper = [Method(f"THG, paper ({named})", preset(named), self.steps)] if named is not None else []
        return [Method(PLAIN, False, self.steps), *paper, Method(OURS, True, self.steps)]

    def _fewer(self, done: list[Sampled], methods: list[Method]) -> Method | None:
        """Plain CFG with as many steps as thg's evaluations allow, and never fewer evaluations than thg's."""
        nfe = {method.title: each.nfe for method, each in zip(methods, done, strict=True)}
        steps = math.ceil(self.steps * nfe.get(OURS, nfe[PLAIN]) / nfe[PLAIN])
        return Method(f"{PLAIN}, {steps} steps", False, steps) if steps < self.steps else None

    def _surprise(self, ours: Result, plain: Result) -> str:
        """Why thg does not look better than plain CFG, if it does not."""
        if ours.nfe >= plain.nfe:
            return f"with --steps {self.steps} thg needs every evaluation to stay within its tolerance; try more"
        if ours.seconds >= plain.seconds:
            return "thg was not quicker with fewer evaluations: the model is small, or the machine is busy"
        return ""

    def _take_turn(self, method: Method, start: int, turns: dict[Method, list[Sampled]], progress: Progress) -> None:
        """Adds a batch of a method, or removes the method if it cannot run."""
        try:
            turns[method].append(self._sample(method, start, progress))
        except THGError as error:
            if method.title == PLAIN:
                raise
            del turns[method]
            print(f"thg compare: no column {method.title!r}: {error}", file=sys.stderr)

    def _sample(self, method: Method, start: int, progress: Progress) -> Sampled:
        prompts, seeds = self.prompts[start : start + self.batch], self.seeds[start : start + self.batch]
        call = pipelines.call_arguments(self.args, self.pipe, prompts) | {"num_inference_steps": method.steps}
        sampled = sample(self.pipe, call | progress.start(method.title, self.pipe, len(prompts)), seeds, method.plan)
        progress.finish()
        return sampled


def _result(method: Method, parts: list[Sampled]) -> Result:
    items = [item for part in parts for item in part.items]
    estimates = [part.summary.estimated_error for part in parts if part.summary is not None]
    error = max((error for estimate in estimates for error in estimate or ()), default=None)
    return Result(method.title, parts[0].kind, items, parts[0].nfe, sum(part.seconds for part in parts), error)


def _with_difference(column: Column, result: Result, plain: Column) -> list[Column]:
    """A column of pictures, and what the eye does not see of its difference to plain CFG's."""
    if result.kind != "image" or column is plain:
        return [column]
    pairs = zip(column.pictures, plain.pictures, strict=True)
    return [column, Column(f"its difference, {GAIN} times", "", [difference(*pair) for pair in pairs])]


def _column(result: Result, plain: Result, pipe: Any) -> Column:
    caption = f"{result.nfe} NFE   {result.seconds:.2f} s"
    if result is not plain:
        decibels = [_decibels(result.kind, a, b) for a, b in zip(result.items, plain.items, strict=True)]
        worst = f", worst {mean_psnr([min(decibels)]):.1f}" if len(decibels) > 1 else ""
        caption += f"\n{mean_psnr(decibels):.1f} dB{worst}"
    if result.error is not None:
        caption += f"\nestimated error {result.error:.1%}"
    return Column(result.title, caption, _pictures(result, plain, pipe))


def _pictures(result: Result, plain: Result, pipe: Any) -> list[Image.Image]:
    if result.kind == "audio":
        return spectrograms(result.items, plain.items, pipe)
    return four_frames(result.items) if result.kind == "video" else result.items


def _decibels(kind: str, item: Any, reference: Any) -> float:
    if kind == "audio":
        return snr(item, reference)
    return video_psnr(item, reference) if kind == "video" else psnr(item, reference, peak=255)
