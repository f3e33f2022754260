"""`thg generate`: pictures, sounds or videos from prompts, with a report of the savings."""

from __future__ import annotations

import argparse
import copy
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from thg.cli import options, saving
from thg.cli.plan import chosen_plan
from thg.cli.progress import Progress
from thg.errors import THGError, UnsupportedPipelineError
from thg.models.pretrained import sampling_rate
from thg.pipelines import preview
from thg.pipelines.describe import known_run
from thg.pipelines.identity import fingerprint, remembered
from thg.plans.planners import Choice, Planned, guide_maker
from thg.processes import batches
from thg.sampling import SeededRun, run_from_picture


def run(args: argparse.Namespace) -> int:
    asked = [*args.prompt, *options.prompts_of(args)]
    if not asked:
        raise THGError('there is no prompt; write thg generate "red heart", or --prompts FILE')
    prompts = [prompt for prompt in asked for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    saving.check_writable(args.out or Path("out.png"))
    if args.out is not None:
        saving.check_free(saving.numbered(args.out, len(prompts)), args.force)
    plan = chosen_plan(args.plan)
    pipe = options.load(args)
    if args.out is not None:
        saving.check_format(args.out, _expected_kind(pipe))
    if args.dry_run:
        print(_preview(args, pipe, plan))
        return 0
    options.objections(args, prompts)
    how = options.metadata(args, pipe)
    runs: list[SeededRun] = []
    out: Path | None = args.out
    with closing(Progress(len(prompts))) as progress:
        for batch in batches(len(prompts), options.batch_size(args)):
            call = options.call_arguments(args, pipe, [prompts[i] for i in batch])
            done = progress.sample("generating", pipe, call, [seeds[i] for i in batch], plan)
            runs.append(done)
            out = out or _default_out(done.output.kind, len(prompts), args.force)
            saving.check_format(out, done.output.kind)
            for number, i in enumerate(batch):
                path = saving.numbered(out, len(prompts))[i]
                about = {"prompt": prompts[i], "seed": seeds[i], **how, **done.cost(number)}
                saving.save(path, done.output, number, about, args.enlarge)
                progress.print(str(path))
    whole = SeededRun.joined(runs)
    print(whole.summary or f"plain CFG: {whole.nfe} evaluations, {whole.seconds:.2f} s")
    return 0


def _expected_kind(pipe: Any) -> str:
    """What a pipeline makes, before its first run: sounds if it has a sampling rate; videos count as images."""
    try:
        sampling_rate(pipe)
    except UnsupportedPipelineError:
        return "image"
    return "audio"


def _preview(args: argparse.Namespace, pipe: Any, plan: Choice | bool) -> str:
    """The plan for this pipeline, with its scheduler; nothing runs."""
    if plan is False:
        raise THGError("--dry-run shows a plan, and --plan cfg has none: every step is evaluated")
    choice = None if plan is True else plan
    steps, scale = options.steps_of(args, pipe), options.guidance_of(args, pipe)
    if args.image is None:
        shown = preview(pipe, choice, steps=steps, guidance_scale=scale)
        run = known_run(copy.deepcopy(pipe.scheduler), steps)
    else:
        run = run_from_picture(pipe, copy.deepcopy(pipe.scheduler), steps, options.strength_of(args))
        maker = guide_maker(choice or remembered(pipe))
        assert isinstance(maker, Planned)
        shown = maker.planner.plan(replace(run, guidance_scale=scale, network=fingerprint(pipe)))
    noise = f"\neverything is evaluated: {run.no_response}, and noise cannot be predicted" if run.adds_noise else ""
    return f"{type(pipe.scheduler).__name__}\n{shown}{noise}"


def _default_out(kind: str, count: int, force: bool) -> Path:
    out = Path("out").with_suffix(saving.SUFFIX[kind])
    return out if force else saving.free(out, count)
