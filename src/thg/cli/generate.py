"""`thg generate`: pictures, sounds or videos from prompts, with a report of the savings."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from thg.cli import files, pipelines
from thg.cli.choice import chosen_plan
from thg.cli.progress import Progress
from thg.cli.sampling import Sampled, expected_kind, sample
from thg.errors import THGError
from thg.models.pretrained import sampling_rate
from thg.pipelines import preview
from thg.plans.planners import Choice
from thg.prompts import read_prompts as read_file


def run(args: argparse.Namespace) -> int:
    prompts = [prompt for prompt in read_prompts(args) for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    _check_out(args, len(prompts))
    plan = chosen_plan(args.plan)
    pipe = pipelines.load(args)
    if args.out is not None:
        files.check_format(args.out, expected_kind(pipe))
    if args.dry_run:
        print(_preview(args, pipe, plan))
        return 0
    pipelines.objections(args, prompts)
    how, size = pipelines.describe(args, pipe), pipelines.batch_size(args)
    runs: list[Sampled] = []
    out: Path | None = args.out
    with Progress(len(prompts)) as progress:
        for start in range(0, len(prompts), size):
            batch = slice(start, start + size)
            call = pipelines.call_arguments(args, pipe, prompts[batch])
            call.update(progress.start("generating", pipe, len(prompts[batch])))
            runs.append(sample(pipe, call, seeds[batch], plan))
            progress.finish()
            out = out or _default_out(runs[-1].kind, len(prompts), args.force)
            files.check_format(out, runs[-1].kind)
            paths = files.numbered(out, len(prompts))[batch]
            abouts = [
                {"prompt": prompt, "seed": seed, **how}
                for prompt, seed in zip(prompts[batch], seeds[batch], strict=True)
            ]
            for path in _save(paths, runs[-1], abouts, pipe, args.enlarge):
                progress.print(str(path))
    print(_verdict(runs))
    return 0


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts of the command line and of the file."""
    prompts = list(args.prompt)
    if args.prompts is not None:
        prompts += read_file(args.prompts, args.column)
    elif args.column is not None:
        raise THGError("--column names a column of the file of --prompts, which was not given")
    if not prompts:
        raise THGError('there is no prompt; write thg generate "red heart", or --prompts FILE')
    return prompts


def _preview(args: argparse.Namespace, pipe: Any, plan: Choice | bool) -> str:
    """The plan for this pipeline, with its scheduler; nothing runs."""
    if args.image is not None:
        raise THGError("--dry-run does not know how many steps --strength leaves: remove --image")
    if plan is False:
        raise THGError("--dry-run shows a plan, and --plan cfg has none: every step is evaluated")
    choice = None if plan is True else plan
    steps, scale = pipelines.steps_of(args, pipe), pipelines.guidance_of(args, pipe)
    return f"{type(pipe.scheduler).__name__}\n{preview(pipe, choice, steps=steps, guidance_scale=scale)}"


def _check_out(args: argparse.Namespace, count: int) -> None:
    """Checks, before the model is loaded, that the results can be written and replace nothing."""
    files.check_writable(args.out or Path("out.png"))
    if args.out is not None:
        files.check_free(files.numbered(args.out, count), args.force)


def _default_out(kind: str, count: int, force: bool) -> Path:
    out = Path("out").with_suffix(files.SUFFIX[kind])
    return out if force else files.free(out, count)


def _save(paths: list[Path], done: Sampled, abouts: list[dict[str, Any]], pipe: Any, enlarge: int) -> list[Path]:
    """Writes the results of a batch; pictures contain their settings as metadata."""
    plan = done.summary.plan if done.summary is not None else None
    estimates = (done.summary and done.summary.estimated_error) or [None] * len(paths)
    for path, item, about, error in zip(paths, done.items, abouts, estimates, strict=True):
        if done.kind == "audio":
            files.save_sound(path, item, rate=sampling_rate(pipe))
        elif done.kind == "video":
            files.save_frames(path, item)
        else:
            cost = {"nfe": done.nfe, "cfg_nfe": done.cfg_nfe, "estimated_error": error}
            item = item.resize((enlarge * item.width, enlarge * item.height), Image.Resampling.NEAREST)
            files.save_picture(path, item, {**about, **cost, "plan": plan.to_dict() if plan is not None else None})
    return paths


def _verdict(runs: list[Sampled]) -> str:
    """The total cost of the batches."""
    seconds = sum(done.seconds for done in runs)
    report = runs[-1].summary
    if report is None:
        return f"plain CFG: {runs[-1].nfe} evaluations, {seconds:.2f} s"
    estimates = [done.summary.estimated_error for done in runs if done.summary is not None]
    available = [estimate for estimate in estimates if estimate is not None]
    together = tuple(error for estimate in available for error in estimate) if len(available) == len(runs) else None
    return str(replace(report, seconds=seconds, estimated_error=together))
