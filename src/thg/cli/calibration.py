"""`thg tune` and `thg calibrate`: what is measured on a model, from the same options, for better plans."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path
from typing import Any

from thg.calibration import calibrate as calibrated
from thg.calibration import tune as tuned
from thg.cli import options
from thg.cli.plan import plain_run
from thg.cli.progress import explained_errors
from thg.cli.saving import check_writable
from thg.errors import ProfileError
from thg.models.shipped import about
from thg.ode.schedulers import SCHEDULERS, adds_noise, by_option, kind_of
from thg.pipelines.identity import place_of
from thg.processes import Process

SHIPPED_SAMPLES = 16


def tune(args: argparse.Namespace) -> int:
    """Finds how many evaluations keep a model within a tolerance, and remembers it."""
    if args.out is not None:
        check_writable(args.out)
    prompts, pipe, settings = _start(args)
    folder = args.folder or _parts(pipe, prompts, settings)
    with explained_errors(pipe, settings["steps"], args.batch_size):
        found = tuned(pipe, prompts, args.error, folder=folder, **settings)
    if args.folder is None:
        shutil.rmtree(folder, ignore_errors=True)  # another process may remove it, too, or still write to it
    if args.out is not None:
        found.save(args.out)
    print(found)
    places = " and ".join(str(place) for place in (args.out, place_of(pipe)) if place is not None)
    print(f"written to {places}; thg.enable(pipe) and thg generate use it from now on (THG_TUNED=0: not)")
    if not found.kept:
        print("the tolerance is not kept: take more --steps, a larger --error, or thg calibrate")
    elif found.nfe >= found.plain_nfe:
        print(f"it saves nothing: take more than {found.samples} --samples, more --steps, or a larger --error")
    return 0 if found.kept else 1


def calibrate(args: argparse.Namespace) -> int:
    """Measures where the outputs of a network can be predicted, and writes a profile."""
    if args.out.exists() and not args.force:
        raise ProfileError(f"{args.out} exists already; write --force to replace it, or another --out")
    check_writable(args.out)
    prompts, pipe, settings = _start(args)
    folder = args.folder or args.out.with_name(f"{args.out.name}.parts")
    measured = {"sensitivity": args.sensitivity, "algorithm3": args.algorithm3}
    with explained_errors(pipe, settings["steps"], args.batch_size):
        profile = calibrated(pipe, prompts, folder=folder, **measured, **settings)
    if Process.current().rank:
        return 0
    profile.save(args.out, force=args.force)
    print(profile)
    print(profile.plan(plain_run(profile.steps, profile.about.guidance_scale)))
    print(f"written to {args.out}; use it: thg.enable(pipe, thg.Profile.load({str(args.out)!r}))")
    return 0


def _start(args: argparse.Namespace) -> tuple[list[str], Any, dict[str, Any]]:
    """Prompts, pipeline, and the arguments that `thg.tune` and `thg.calibrate` share."""
    shipped = about(args.model)
    prompts = options.prompts_of(args, args.samples) or shipped.calibration(args.samples or SHIPPED_SAMPLES)
    if not prompts:
        raise ProfileError("no prompts were given; write --prompts FILE (txt with one per line, csv, tsv or jsonl)")
    pipe = options.load(args)
    _refuse_noise(args.scheduler, pipe)
    settings = {
        "steps": options.steps_of(args, pipe),
        "guidance_scale": options.guidance_of(args, pipe),
        "batch_size": args.batch_size,
        "seed": args.seed,
        "call": shipped.call,
        "progress": not args.quiet,
    }
    return prompts, pipe, settings


def _refuse_noise(option: str | None, pipe: Any) -> None:
    if adds_noise(pipe.scheduler):
        kind = by_option(option, flow=False) if option else kind_of(pipe.scheduler)
        instead = SCHEDULERS[kind.instead].option if kind is not None and kind.instead else "dpm"
        raise ProfileError(
            f"{type(pipe.scheduler).__name__} adds noise at every step, and a calibration needs runs without it; "
            f"write --scheduler {instead}"
        )


def _parts(pipe: Any, prompts: list[str], settings: dict[str, Any]) -> Path:
    """Where an interrupted `thg tune` with these settings resumes from."""
    key = repr((settings["steps"], settings["guidance_scale"], settings["seed"], prompts))
    return place_of(pipe).with_suffix(f".{hashlib.sha256(key.encode()).hexdigest()[:8]}.parts")
