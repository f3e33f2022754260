"""`thg generate`: pictures, sounds or videos from prompts, and what was saved."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from thg.bench.data import read_prompts as read_file
from thg.cli import files, pipelines
from thg.cli.choice import add_plan_argument, chosen_plan
from thg.cli.sampling import Sampled, sample
from thg.distribution import versions
from thg.errors import THGError
from thg.models.pretrained import sampling_rate

SUFFIX = {"image": ".png", "audio": ".wav", "video": ".gif"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="*", help="what to make; several prompts make several pictures")
    parser.add_argument("--prompts", type=Path, help="a file of prompts: txt (one a line), csv, tsv or jsonl")
    parser.add_argument("-o", "--out", type=Path, help="where to write (default: out.png, out.wav or out.gif)")
    add_plan_argument(parser)
    pipelines.add_sampling_arguments(parser)
    pipelines.add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    prompts = read_prompts(args)
    if args.out is not None:
        files.check_writable(args.out)
    plan = chosen_plan(args.plan)
    pipe = pipelines.load(args)
    prompts = [prompt for prompt in prompts for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    done = sample(pipe, pipelines.call_arguments(args, pipe, prompts), seeds, plan)
    out = args.out or Path("out").with_suffix(SUFFIX[done.kind])
    how = {"model": args.model, "steps": pipelines.default_steps(args), "guidance_scale": args.guidance_scale}
    for path in _save(out, done, prompts, seeds, how, pipe):
        print(path)
    print(done.summary if done.summary is not None else f"plain CFG: {done.nfe} evaluations, {done.seconds:.2f} s")
    return 0


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts of the command line and of the file."""
    prompts = list(args.prompt)
    if args.prompts is not None:
        prompts += list(read_file(args.prompts))
    if not prompts:
        raise THGError('there is no prompt; write thg generate "a dark ankle boot", or --prompts FILE')
    return prompts


def _save(out: Path, done: Sampled, prompts: list[str], seeds: list[int], how: dict[str, Any], pipe: Any) -> list[Path]:
    paths = files.numbered(out, len(done.items))
    plan = done.summary.plan if done.summary is not None else None
    for path, item, prompt, seed in zip(paths, done.items, prompts, seeds, strict=True):
        if done.kind == "audio":
            files.save_sound(path, item, rate=sampling_rate(pipe))
        elif done.kind == "video":
            files.save_frames(path, item)
        else:
            about = {**how, "prompt": prompt, "seed": seed, "nfe": done.nfe, "versions": versions()}
            files.save_picture(path, item, {**about, "plan": plan.to_dict() if plan is not None else None})
    return paths
