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
from thg.plots.sheet import Column, sheet


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
    results = Comparison(pipe, args, prompts, seeds).results()
    columns = [_column(each, results[0], pipe) for each in results]
    labels = [prompt if args.count == 1 else f"{prompt} ({seed})" for prompt, seed in zip(prompts, seeds, strict=True)]
    how = {"prompts": prompts, "seeds": seeds, **pipelines.describe(args, pipe)}
    files.save_picture(out, sheet(labels, columns), how)
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


class Comparison:
    """The same prompts and seeds by several methods."""

    def __init__(self, pipe: Any, args: argparse.Namespace, prompts: list[str], seeds: list[int]) -> None:
        self.pipe, self.args, self.prompts, self.seeds = pipe, args, prompts, seeds
        self.steps, self.batch = pipelines.steps_of(args, pipe), pipelines.batch_size(args)

    def results(self) -> list[Result]:
        """The result of each method, plain CFG first; one that cannot run is omitted with its reason."""
        named = next((name for name, it in PRESETS.items() if it.steps == self.steps and it.coarse is not None), None)
        call = pipelines.call_arguments(self.args, self.pipe, self.prompts[:1])
        sample(self.pipe, {**call, "num_inference_steps": min(4, self.steps)}, self.seeds[:1], False)  # warm-up
        with Progress((3 if named is None else 4) * len(self.prompts)) as progress:
            plain = self._sample("plain CFG", False, self.steps, progress)
            results = [plain]
            if named is not None:
                results += self._if_possible(f"THG, paper ({named})", preset(named), self.steps, progress)
            ours = self._if_possible("thg", True, self.steps, progress)
            results += ours
            if ours and ours[0].nfe < plain.nfe:
                fewer = math.ceil(self.steps * ours[0].nfe / plain.nfe)  # never fewer evaluations than thg's
                if fewer < self.steps:
                    results += self._if_possible("plain CFG, same evaluations", False, fewer, progress)
        if ours and (reason := self._surprise(ours[0], plain)):
            print(f"thg compare: {reason}", file=sys.stderr)
        return results

    def _surprise(self, ours: Result, plain: Result) -> str:
        """Why thg does not look better than plain CFG, if it does not."""
        if ours.nfe >= plain.nfe:
            return f"with --steps {self.steps} thg needs every evaluation to stay within its tolerance; try more"
        if ours.seconds >= plain.seconds:
            return "thg was not quicker with fewer evaluations: the model is small, or the machine is busy"
        return ""

    def _if_possible(self, title: str, plan: Choice | bool, steps: int, progress: Progress) -> list[Result]:
        try:
            return [self._sample(title, plan, steps, progress)]
        except THGError as error:
            print(f"thg compare: no column {title!r}: {error}", file=sys.stderr)
            return []

    def _sample(self, title: str, plan: Choice | bool, steps: int, progress: Progress) -> Result:
        parts: list[Sampled] = []
        for start in range(0, len(self.prompts), self.batch):
            prompts, seeds = self.prompts[start : start + self.batch], self.seeds[start : start + self.batch]
            call = pipelines.call_arguments(self.args, self.pipe, prompts) | {"num_inference_steps": steps}
            parts.append(sample(self.pipe, call | progress.start(title, self.pipe, len(prompts)), seeds, plan))
            progress.finish()
        items = [item for part in parts for item in part.items]
        estimates = [part.summary.estimated_error for part in parts if part.summary is not None]
        error = max((error for estimate in estimates for error in estimate or ()), default=None)
        return Result(title, parts[0].kind, items, parts[0].nfe, sum(part.seconds for part in parts), error)


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
