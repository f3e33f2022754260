"""`thg generate`: pictures, sounds or videos from prompts, with a report of the savings."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from thg.cli import files, options, pipelines
from thg.cli.choice import add_plan_argument, chosen_plan
from thg.cli.progress import Progress
from thg.cli.sampling import Sampled, expected_kind, sample
from thg.errors import THGError
from thg.models.pretrained import sampling_rate
from thg.prompts import read_prompts as read_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="what to make; several prompts make several pictures")
    parser.add_argument("--prompts", type=Path, help="a file of prompts: txt (one per line), csv, tsv or jsonl")
    parser.add_argument("--column", help="which column of the file holds the prompts")
    parser.add_argument("-o", "--out", type=Path, help="where to write (default: out.png, out.wav or out.gif)")
    add_plan_argument(parser)
    options.add_sampling_arguments(parser)
    options.add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    prompts = [prompt for prompt in read_prompts(args) for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    _check_out(args, len(prompts))
    plan = chosen_plan(args.plan)
    pipe = pipelines.load(args)
    if args.out is not None:
        files.check_format(args.out, expected_kind(pipe))
    how, size = pipelines.describe(args, pipe), pipelines.batch_size(args)
    runs: list[Sampled] = []
    with Progress(len(prompts)) as progress:
        for start in range(0, len(prompts), size):
            batch = slice(start, start + size)
            call = pipelines.call_arguments(args, pipe, prompts[batch])
            call.update(progress.start("generating", pipe, len(prompts[batch])))
            runs.append(sample(pipe, call, seeds[batch], plan))
            progress.finish()
            out = args.out or Path("out").with_suffix(files.SUFFIX[runs[-1].kind])
            files.check_format(out, runs[-1].kind)
            paths = files.numbered(out, len(prompts))[batch]
            abouts = [
                {"prompt": prompt, "seed": seed, **how}
                for prompt, seed in zip(prompts[batch], seeds[batch], strict=True)
            ]
            for path in _save(paths, runs[-1], abouts, pipe):
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
        raise THGError('there is no prompt; write thg generate "a dark ankle boot", or --prompts FILE')
    return prompts


def _check_out(args: argparse.Namespace, count: int) -> None:
    """Checks, before the model is loaded, that the results can be written and replace nothing."""
    outs = [args.out] if args.out is not None else [Path("out").with_suffix(suffix) for suffix in files.SUFFIX.values()]
    for out in outs:
        files.check_writable(out)
        files.check_free(files.numbered(out, count), args.force)


def _save(paths: list[Path], done: Sampled, abouts: list[dict[str, Any]], pipe: Any) -> list[Path]:
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
