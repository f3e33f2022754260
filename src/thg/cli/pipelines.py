"""Loading a pipeline for a command: the shipped models by name, or any supported one from a hub id or a folder."""

from __future__ import annotations

import argparse
import importlib
import inspect
from contextlib import suppress
from typing import Any, get_args

import torch

from thg.adapter.scheduler_table import OFFERED, by_option
from thg.adapter.scheduler_table import options as scheduler_options
from thg.cli.bfloat16 import require_bfloat16
from thg.distribution import versions
from thg.errors import THGError
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE, ShippedName, shipped_pipeline
from thg.models.pretrained import pretrained
from thg.models.schedulers import Schedulers
from thg.processes import best_device

SHIPPED: tuple[ShippedName, ...] = get_args(ShippedName)
DEFAULT_STEPS = {"eps": 50, "flow": 28}
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
    pipe: Any = shipped_pipeline(args.model, dtype=dtype) if args.model in SHIPPED else pretrained(args.model, dtype)
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


def steps_of(args: argparse.Namespace, pipe: Any) -> int:
    """The steps of a run: those asked for, else the model's own."""
    steps = int(args.steps or DEFAULT_STEPS.get(args.model) or _default(pipe, "num_inference_steps") or USUAL_STEPS)
    levels = pipe.scheduler.config.get("num_train_timesteps")
    if levels and steps > levels and not Schedulers(pipe.scheduler).flow:
        raise THGError(f"{type(pipe.scheduler).__name__} has {levels} noise levels, and cannot run {steps} steps")
    return steps


def guidance_of(args: argparse.Namespace, pipe: Any) -> float | None:
    """The guidance scale of a run: the one asked for, else the model's own. None if the pipeline has no default."""
    scale = args.guidance_scale or DEFAULT_GUIDANCE.get(args.model) or _default(pipe, _guidance_name(pipe))
    return None if scale is None else float(scale)


def batch_size(args: argparse.Namespace) -> int:
    """How many pictures to make at a time."""
    return int(args.batch_size or (SHIPPED_BATCH if args.model in SHIPPED else 1))


def call_arguments(args: argparse.Namespace, pipe: Any, prompts: list[str]) -> dict[str, Any]:
    """The keyword arguments of the pipeline's call, from the options."""
    call: dict[str, Any] = {"prompt": prompts, "num_inference_steps": steps_of(args, pipe)}
    call.update(DEFAULT_CALL.get(args.model, {}))
    scale = guidance_of(args, pipe)
    if scale is not None:
        call[_guidance_name(pipe)] = scale
    if args.negative_prompt is not None:
        call["negative_prompt"] = [args.negative_prompt] * len(prompts)
    call.update({name: value for name in ("width", "height") if (value := getattr(args, name)) is not None})
    accepted = inspect.signature(pipe.__call__).parameters
    if unknown := [name for name in call if name not in accepted]:
        optional = unknown[0] in ("width", "height", "negative_prompt")
        remedy = f"remove --{unknown[0].replace('_', '-')}" if optional else "this command needs one that takes prompts"
        raise THGError(f"{type(pipe).__name__} does not take {unknown[0]}; {remedy}")
    return call


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
