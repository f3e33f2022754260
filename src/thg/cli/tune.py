"""`thg tune`: finds how many evaluations keep a model within a tolerance, and remembers it."""

from __future__ import annotations

import argparse
import hashlib
import shutil
from pathlib import Path
from typing import Any

from thg.calibration import tune
from thg.cli import pipelines
from thg.cli.calibrate import prompts_of, refuse_noise
from thg.cli.sampling import explained_errors
from thg.models import DEFAULT_CALL
from thg.pipelines.identity import place_of
from thg.plans.tuned import Tuned

SHIPPED_SAMPLES = 16


def run(args: argparse.Namespace) -> int:
    prompts = prompts_of(args, SHIPPED_SAMPLES)
    pipe = pipelines.load(args)
    refuse_noise(args.scheduler, pipe)
    steps, scale = pipelines.steps_of(args, pipe), pipelines.guidance_of(args, pipe)
    folder = args.folder or _folder(pipe, steps, scale, args.seed, prompts)
    with explained_errors(pipe, steps, args.batch_size):
        tuned = tune(
            pipe,
            prompts,
            args.error,
            steps=steps,
            guidance_scale=scale,
            batch_size=args.batch_size,
            seed=args.seed,
            call=DEFAULT_CALL.get(args.model),
            folder=folder,
            progress=not args.quiet,
        )
    if args.folder is None:
        shutil.rmtree(folder)
    if args.out is not None:
        tuned.save(args.out)
    print("\n".join(_shown(tuned, place_of(pipe))))
    return 0 if tuned.kept else 1


def _folder(pipe: Any, *settings: object) -> Path:
    """Where an interrupted `thg tune` with these settings resumes from."""
    return place_of(pipe).with_suffix(f".{hashlib.sha256(repr(settings).encode()).hexdigest()[:8]}.parts")


def _shown(tuned: Tuned, path: Path) -> list[str]:
    lines = [str(tuned), f"written to {path}; thg.enable(pipe) and thg generate use it from now on (THG_TUNED=0: not)"]
    if not tuned.kept:
        lines.append("the tolerance is not kept: take more --steps, a larger --error, or thg calibrate")
    return lines
