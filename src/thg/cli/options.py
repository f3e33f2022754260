"""The pipeline of a command and the arguments of its call, from the options."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from PIL import Image, UnidentifiedImageError

from thg.distribution import versions
from thg.errors import THGError
from thg.models import SHIPPED, pretrained
from thg.models.pretrained import USUAL_STEPS, Source, default_of, guidance_name
from thg.models.scheduler_choice import Schedulers
from thg.models.shipped import about
from thg.prompts import read_prompts

SHIPPED_BATCH = 16
USUAL_STRENGTH = 0.6


def source(args: argparse.Namespace) -> Source:
    """Which pipeline the options ask for."""
    given = {name: getattr(args, name) for name in ("model", "config", "variant", "device", "dtype", "offload")}
    return Source(**given, lora=tuple(args.lora), scheduler=args.scheduler)


def load(args: argparse.Namespace) -> Any:
    """The pipeline that the options ask for; a picture that cannot be read is reported before the model is loaded."""
    if args.image is not None:
        _read_picture(args)
    elif args.strength is not None:
        raise THGError("--strength is how much of a picture may change: write --image FILE with it")
    pipe = source(args).load(from_picture=args.image is not None)
    if args.image is not None and (steps := steps_of(args, pipe)) * strength_of(args) < 1:
        raise THGError(
            f"--strength {strength_of(args):g} leaves none of {steps} steps; write more of it, or more --steps"
        )
    return pipe


def prompts_of(args: argparse.Namespace, count: int | None = None) -> list[str]:
    """The prompts of the file of --prompts, or the first `count` of them."""
    if args.prompts is not None:
        return read_prompts(args.prompts, args.column, count)
    if args.column is not None:
        raise THGError("--column names a column of the file of --prompts, which was not given")
    return []


def steps_of(args: argparse.Namespace, pipe: Any) -> int:
    """The steps of a run: those asked for, else the model's own."""
    steps = int(args.steps or about(args.model).steps or default_of(pipe, "num_inference_steps") or USUAL_STEPS)
    levels = pipe.scheduler.config.get("num_train_timesteps")
    if levels and steps > levels and not Schedulers(pipe.scheduler).flow:
        raise THGError(f"{type(pipe.scheduler).__name__} has {levels} noise levels, and cannot run {steps} steps")
    return steps


def guidance_of(args: argparse.Namespace, pipe: Any) -> float | None:
    """The guidance scale of a run: the one asked for, else the model's own. None if the pipeline has no default."""
    own = about(args.model).guidance_scale or default_of(pipe, guidance_name(pipe))
    scale = args.guidance_scale or own
    return None if scale is None else float(scale)


def strength_of(args: argparse.Namespace) -> float:
    """How much of the picture to start from may change."""
    return float(args.strength or USUAL_STRENGTH)


def objections(args: argparse.Namespace, prompts: list[str]) -> None:
    """Says of a prompt without any word that a shipped model knows what the model knows; once."""
    if sentence := next(filter(None, map(about(args.model).objection, prompts)), None):
        print(f"thg {args.command}: {sentence}", file=sys.stderr)


def batch_size(args: argparse.Namespace) -> int:
    """How many pictures to make at a time."""
    return int(args.batch_size or (SHIPPED_BATCH if args.model in SHIPPED else 1))


def call_arguments(args: argparse.Namespace, pipe: Any, prompts: list[str]) -> dict[str, Any]:
    """The keyword arguments of the pipeline's call, from the options."""
    return pretrained.call_arguments(
        pipe,
        prompts,
        steps=steps_of(args, pipe),
        guidance_scale=guidance_of(args, pipe),
        negative_prompt=args.negative_prompt,
        width=args.width,
        height=args.height,
        start=None if args.image is None else _read_picture(args),
        strength=strength_of(args),
        **about(args.model).call,
    )


def _read_picture(args: argparse.Namespace) -> Image.Image:
    try:
        with Image.open(args.image) as picture:
            picture.load()
            return picture
    except UnidentifiedImageError:
        raise THGError(f"--image {args.image} is not a picture") from None
    except OSError as error:
        raise THGError(f"--image {args.image}: {error.strerror or error}") from None


def metadata(args: argparse.Namespace, pipe: Any) -> dict[str, Any]:
    """The metadata that all pictures of a command share."""
    size = {name: value for name in ("width", "height") if (value := getattr(args, name)) is not None}
    return {
        "model": args.model,
        "scheduler": type(pipe.scheduler).__name__,
        "steps": steps_of(args, pipe),
        "guidance_scale": guidance_of(args, pipe),
        "negative_prompt": args.negative_prompt,
        **size,
        **({} if args.image is None else {"image": args.image.name, "strength": strength_of(args)}),
        **({"lora": [[path.name, scale] for path, scale in args.lora]} if args.lora else {}),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "versions": versions(),
    }
