"""`thg generate`: pictures, sounds or videos from prompts, with a report of the savings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from thg.cli import files, pipelines
from thg.cli.plan import chosen_plan
from thg.cli.sampling import Progress, Sampled
from thg.errors import THGError, UnsupportedPipelineError
from thg.models.pretrained import sampling_rate
from thg.pipelines import preview
from thg.plans.planners import Choice
from thg.processes import batches


def run(args: argparse.Namespace) -> int:
    asked = [*args.prompt, *pipelines.prompts_of(args)]
    if not asked:
        raise THGError('there is no prompt; write thg generate "red heart", or --prompts FILE')
    prompts = [prompt for prompt in asked for _ in range(args.count)]
    seeds = [args.seed + i % args.count for i in range(len(prompts))]
    files.check_writable(args.out or Path("out.png"))
    if args.out is not None:
        files.check_free(files.numbered(args.out, len(prompts)), args.force)
    plan = chosen_plan(args.plan)
    pipe = pipelines.load(args)
    if args.out is not None:
        files.check_format(args.out, _expected_kind(pipe))
    if args.dry_run:
        print(_preview(args, pipe, plan))
        return 0
    pipelines.objections(args, prompts)
    how = pipelines.describe(args, pipe)
    runs: list[Sampled] = []
    out: Path | None = args.out
    with Progress(len(prompts)) as progress:
        for batch in batches(len(prompts), pipelines.batch_size(args)):
            call = pipelines.call_arguments(args, pipe, [prompts[i] for i in batch])
            done = progress.sample("generating", pipe, call, [seeds[i] for i in batch], plan)
            runs.append(done)
            out = out or _default_out(done.output.kind, len(prompts), args.force)
            files.check_format(out, done.output.kind)
            for number, i in enumerate(batch):
                path = files.numbered(out, len(prompts))[i]
                about = {"prompt": prompts[i], "seed": seeds[i], **how, **_cost(done, number)}
                files.save(path, done.output, number, about, args.enlarge)
                progress.print(str(path))
    whole = Sampled.joined(runs)
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
    if args.image is not None:
        raise THGError("--dry-run does not know how many steps --strength leaves: remove --image")
    if plan is False:
        raise THGError("--dry-run shows a plan, and --plan cfg has none: every step is evaluated")
    choice = None if plan is True else plan
    steps, scale = pipelines.steps_of(args, pipe), pipelines.guidance_of(args, pipe)
    return f"{type(pipe.scheduler).__name__}\n{preview(pipe, choice, steps=steps, guidance_scale=scale)}"


def _default_out(kind: str, count: int, force: bool) -> Path:
    out = Path("out").with_suffix(files.SUFFIX[kind])
    return out if force else files.free(out, count)


def _cost(done: Sampled, number: int) -> dict[str, Any]:
    """What one of the results has cost, for its metadata."""
    plan = done.summary.plan if done.summary is not None else None
    estimates = done.summary.estimated_error if done.summary is not None else None
    return {
        "nfe": done.nfe,
        "cfg_nfe": done.cfg_nfe,
        "estimated_error": estimates[number] if estimates is not None else None,
        "plan": plan.to_dict() if plan is not None else None,
    }
