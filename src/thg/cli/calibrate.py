"""`thg calibrate`: measures where the outputs of a network can be predicted, and writes a profile."""

from __future__ import annotations

import argparse
from typing import Any

from thg.calibration import calibrate
from thg.cli import pipelines
from thg.cli.plan import plain_run
from thg.cli.sampling import explained_errors
from thg.errors import ProfileError
from thg.models import DEFAULT_CALL, SHIPPED, ShippedName
from thg.ode.scheduler_table import SCHEDULERS, adds_noise, by_option, kind_of
from thg.processes import Process
from thg.prompts import read_prompts

SHIPPED_SAMPLES = 16


def run(args: argparse.Namespace) -> int:
    if args.out.exists() and not args.force:
        raise ProfileError(f"{args.out} exists already; write --force to replace it, or another --out")
    prompts = prompts_of(args, SHIPPED_SAMPLES)
    pipe = pipelines.load(args)
    refuse_noise(args.scheduler, pipe)
    steps = pipelines.steps_of(args, pipe)
    with explained_errors(pipe, steps, args.batch_size):
        profile = calibrate(
            pipe,
            prompts,
            steps=steps,
            guidance_scale=pipelines.guidance_of(args, pipe),
            batch_size=args.batch_size,
            seed=args.seed,
            sensitivity=args.sensitivity,
            algorithm3=args.algorithm3,
            folder=args.folder or args.out.with_name(f"{args.out.name}.parts"),
            call=DEFAULT_CALL.get(args.model),
            progress=not args.quiet,
        )
    if Process.current().rank:
        return 0
    profile.save(args.out, force=args.force)
    print(profile)
    print(profile.plan(plain_run(profile.steps, profile.about.guidance_scale)))
    print(f"written to {args.out}; use it: thg.enable(pipe, thg.Profile.load({str(args.out)!r}))")
    return 0


def refuse_noise(option: str | None, pipe: Any) -> None:
    if adds_noise(pipe.scheduler):
        kind = by_option(option, flow=False) if option else kind_of(pipe.scheduler)
        instead = SCHEDULERS[kind.instead].option if kind is not None and kind.instead else "dpm"
        raise ProfileError(
            f"{type(pipe.scheduler).__name__} adds noise at every step, and a calibration needs runs without it; "
            f"write --scheduler {instead}"
        )


def prompts_of(args: argparse.Namespace, count: int) -> list[str]:
    """From the file of --prompts; for shipped models their own, `count` of them unless --samples is given."""
    if args.column is not None and args.prompts is None:
        raise ProfileError("--column names a column of the file of --prompts, which was not given")
    if args.samples is not None and args.samples < 1:
        raise ProfileError(f"--samples must be at least 1, not {args.samples}")
    if args.prompts is not None:
        return read_prompts(args.prompts, args.column, args.samples)
    if args.model in SHIPPED:
        return shipped_prompts(args.samples or count, args.model)
    raise ProfileError("no prompts were given; write --prompts FILE (txt with one per line, csv, tsv or jsonl)")


def shipped_prompts(count: int, model: ShippedName = "eps") -> list[str]:
    """Prompts of a shipped model, over all that it knows."""
    return SHIPPED[model].calibration(count)
