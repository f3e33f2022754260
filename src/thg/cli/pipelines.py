"""Loading a pipeline for a command, and the arguments of its call: the shipped models by name, or any supported one."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from contextlib import suppress
from typing import Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from thg.cli.bfloat16 import require_bfloat16
from thg.distribution import versions
from thg.errors import THGError
from thg.models import SHIPPED, shipped_pipeline
from thg.models.pretrained import add_loras, image_to_image, is_single_file, pretrained, single_file
from thg.models.schedulers import Schedulers
from thg.ode.scheduler_table import OFFERED, by_option
from thg.ode.scheduler_table import options as scheduler_options
from thg.processes import best_device

USUAL_STEPS = 50  # of pipelines whose call has no default
SHIPPED_BATCH = 16


def load(args: argparse.Namespace) -> Any:
    """The pipeline that the options ask for."""
    device = args.device or best_device()
    default = torch.float16 if device.startswith("cuda") else torch.float32
    dtype = getattr(torch, args.dtype) if args.dtype else default
    check_device(device)
    require_bfloat16(dtype, device)
    if args.offload and device == "cpu":
        raise THGError(
            "--offload moves weights to a GPU when they are needed, but this run is on the CPU: remove the option"
        )
    quiet()
    pipe = _loaded(args, dtype)
    add_loras(pipe, args.lora)
    if args.image is not None:
        pipe = image_to_image(pipe)
    if args.offload == "model":
        pipe.enable_model_cpu_offload(device=device)
    elif args.offload == "sequential":
        pipe.enable_sequential_cpu_offload(device=device)
    else:
        pipe.to(device)
    if args.scheduler:
        pipe.scheduler = _scheduler(args.scheduler, pipe)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _loaded(args: argparse.Namespace, dtype: torch.dtype) -> Any:
    single, shipped = is_single_file(args.model), args.model in SHIPPED
    if args.config is not None and not single:
        raise THGError(f"--config is the configuration of a single file, and {args.model} is none: remove it")
    if args.variant is not None and (single or shipped):
        raise THGError(f"--variant names weight files of a folder or hub id, and {args.model} is none: remove it")
    if single:
        return single_file(args.model, dtype, config=args.config)
    return shipped_pipeline(args.model, dtype=dtype) if shipped else pretrained(args.model, dtype, variant=args.variant)


def steps_of(args: argparse.Namespace, pipe: Any) -> int:
    """The steps of a run: those asked for, else the model's own."""
    own = SHIPPED[args.model].steps if args.model in SHIPPED else _default(pipe, "num_inference_steps")
    steps = int(args.steps or own or USUAL_STEPS)
    levels = pipe.scheduler.config.get("num_train_timesteps")
    if levels and steps > levels and not Schedulers(pipe.scheduler).flow:
        raise THGError(f"{type(pipe.scheduler).__name__} has {levels} noise levels, and cannot run {steps} steps")
    return steps


def guidance_of(args: argparse.Namespace, pipe: Any) -> float | None:
    """The guidance scale of a run: the one asked for, else the model's own. None if the pipeline has no default."""
    own = SHIPPED[args.model].guidance_scale if args.model in SHIPPED else _default(pipe, _guidance_name(pipe))
    scale = args.guidance_scale or own
    return None if scale is None else float(scale)


def objections(args: argparse.Namespace, prompts: list[str]) -> None:
    """Says of a prompt without any word that a shipped model knows what the model knows; once."""
    said = (SHIPPED[args.model].objection(prompt) for prompt in prompts if args.model in SHIPPED)
    if sentence := next(filter(None, said), None):
        print(f"thg {args.command}: {sentence}", file=sys.stderr)


def batch_size(args: argparse.Namespace) -> int:
    """How many pictures to make at a time."""
    return int(args.batch_size or (SHIPPED_BATCH if args.model in SHIPPED else 1))


def call_arguments(args: argparse.Namespace, pipe: Any, prompts: list[str]) -> dict[str, Any]:
    """The keyword arguments of the pipeline's call, from the options."""
    call: dict[str, Any] = {"prompt": prompts, "num_inference_steps": steps_of(args, pipe)}
    if args.model in SHIPPED:
        call.update(SHIPPED[args.model].call)
    scale = guidance_of(args, pipe)
    if scale is not None:
        call[_guidance_name(pipe)] = scale
    if args.negative_prompt is not None:
        call["negative_prompt"] = [args.negative_prompt] * len(prompts)
    size = {name: value for name in ("width", "height") if (value := getattr(args, name)) is not None}
    call.update(_start(args, pipe, len(prompts), size) if args.image is not None else size)
    accepted = inspect.signature(pipe.__call__).parameters
    if unknown := [name for name in call if name not in accepted]:
        optional = unknown[0] in ("width", "height", "negative_prompt")
        remedy = f"remove --{unknown[0].replace('_', '-')}" if optional else "this command needs one that takes prompts"
        raise THGError(f"{type(pipe).__name__} does not take {unknown[0]}; {remedy}")
    return call


def _start(args: argparse.Namespace, pipe: Any, count: int, size: dict[str, int]) -> dict[str, Any]:
    """The picture to start from, in the size of the result, and how much of it may change."""
    try:
        with Image.open(args.image) as picture:
            grey = getattr(getattr(pipe.vae, "config", None), "in_channels", 3) == 1
            start = ImageOps.exif_transpose(picture).convert("L" if grey else "RGB")
    except UnidentifiedImageError:
        raise THGError(f"--image {args.image} is not a picture") from None
    width, height = (size.get(name) or _rounded(getattr(start, name)) for name in ("width", "height"))
    start = start.resize((width, height))
    accepted = inspect.signature(pipe.__call__).parameters  # without a size, some would take the model's own
    sizes = {name: value for name, value in (("width", width), ("height", height)) if name in accepted}
    return {"image": [start] * count, "strength": args.strength, **sizes}


def _rounded(pixels: int) -> int:
    """A size that every autoencoder takes."""
    return max(16, pixels // 16 * 16)


def describe(args: argparse.Namespace, pipe: Any) -> dict[str, Any]:
    """The metadata that all pictures of a command share."""
    size = {name: value for name in ("width", "height") if (value := getattr(args, name)) is not None}
    return {
        "model": args.model,
        "scheduler": type(pipe.scheduler).__name__,
        "steps": steps_of(args, pipe),
        "guidance_scale": guidance_of(args, pipe),
        "negative_prompt": args.negative_prompt,
        **size,
        **({} if args.image is None else {"image": args.image.name, "strength": args.strength}),
        **({"lora": [[path.name, scale] for path, scale in args.lora]} if args.lora else {}),
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "versions": versions(),
    }


def _guidance_name(pipe: Any) -> str:
    return "true_cfg_scale" if "true_cfg_scale" in inspect.signature(pipe.__call__).parameters else "guidance_scale"


def _default(pipe: Any, name: str) -> Any:
    """The default of an argument of the pipeline's call; None if it has none."""
    parameter = inspect.signature(pipe.__call__).parameters.get(name)
    return parameter.default if parameter is not None and isinstance(parameter.default, int | float) else None


def quiet() -> None:
    """Silences the libraries: the command reports their errors, and their warnings are for developers."""
    for name in ("diffusers", "transformers"):
        with suppress(ImportError):
            logging = importlib.import_module(f"{name}.utils.logging")
            logging.set_verbosity_error()
            logging.disable_progress_bar()


def check_device(device: str) -> None:
    """Raises an error if nothing can run there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise THGError(f"the device {device!r} cannot be used ({reason}); write --device cpu") from None


def _scheduler(name: str, pipe: Any) -> Any:
    schedulers = Schedulers(pipe.scheduler)
    key = by_option(name, schedulers.flow).key if name in scheduler_options() else None
    if key not in schedulers.labels:
        fitting = ", ".join(OFFERED[key].option for key in schedulers.labels if key in OFFERED)
        kind = "a flow" if schedulers.flow else "noise"
        problem = "is unknown" if key is None else "does not fit"
        raise THGError(f"--scheduler {name} {problem}; for this model, which predicts {kind}: {fitting}")
    return schedulers.make(key)
