"""`thg compare`: the same seeds with plain CFG, the paper's plan and our default, side by side."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tqdm import tqdm

from thg.cli import files, pipelines
from thg.cli.sampling import Sampled, sample
from thg.distribution import versions
from thg.errors import THGError
from thg.media import mean_psnr, psnr
from thg.plans.planners import Choice
from thg.plans.presets import PRESETS, preset
from thg.plots.sheet import Column, sheet

BATCH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", nargs="+", help="what to make; a row of pictures for each prompt and seed")
    parser.add_argument("-o", "--out", type=Path, default=Path("compare.png"), help="default: compare.png")
    pipelines.add_sampling_arguments(parser)
    pipelines.add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    files.check_writable(args.out)
    pipe = pipelines.load(args)
    prompts = [prompt for prompt in args.prompt for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    columns = compare(pipe, args, prompts, seeds)
    labels = [prompt if args.count == 1 else f"{prompt} ({seed})" for prompt, seed in zip(prompts, seeds, strict=True)]
    how = {"prompts": prompts, "seeds": seeds, "steps": pipelines.default_steps(args), "versions": versions()}
    files.save_picture(args.out, sheet(labels, columns), how)
    for column in columns:
        print(f"{column.title:24s} {column.caption}")
    print(args.out)
    return 0


def compare(pipe: Any, args: argparse.Namespace, prompts: list[str], seeds: list[int]) -> list[Column]:
    """A column of pictures for each method."""
    methods: list[tuple[str, Choice | bool]] = [("plain CFG", False), ("thg", True)]
    steps = pipelines.default_steps(args)
    named = next((name for name, it in PRESETS.items() if it.steps == steps and it.coarse is not None), None)
    if named is not None:
        methods.insert(1, (f"THG, paper ({named})", preset(named)))
    sample(pipe, {**pipelines.call_arguments(args, pipe, prompts[:1]), "num_inference_steps": 2}, seeds[:1], False)
    batches = [slice(i, i + BATCH) for i in range(0, len(prompts), BATCH)]
    columns: list[Column] = []
    with tqdm(total=len(methods) * len(batches), unit="run", desc="comparing", leave=False) as progress:
        for title, plan in methods:
            parts: list[Sampled] = []
            for batch in batches:
                call = pipelines.call_arguments(args, pipe, prompts[batch])
                parts.append(sample(pipe, call, seeds[batch], plan))
                progress.update()
            columns.append(_column(title, parts, columns[0].pictures if columns else None))
    return columns


def _column(title: str, parts: list[Sampled], reference: list[Any] | None) -> Column:
    if parts[0].kind != "image":
        raise THGError("thg compare shows pictures; for sounds and videos use thg generate with --plan cfg and default")
    pictures = [picture for part in parts for picture in part.items]
    caption = f"{parts[0].nfe} NFE   {sum(part.seconds for part in parts):.2f} s"
    if reference is not None:
        decibels = [psnr(a, b, peak=255) for a, b in zip(pictures, reference, strict=True)]
        caption += f"   {mean_psnr(decibels):.1f} dB"
    return Column(title, caption, pictures)
