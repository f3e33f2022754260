"""Loading a pipeline for a command: the shipped models by name, or any supported one from a hub id or a folder."""

from __future__ import annotations

import argparse
import inspect
import math
from typing import Any, get_args

import torch

from thg.cli.bfloat16 import require_bfloat16
from thg.distribution import missing
from thg.errors import THGError
from thg.models import DEFAULT_CALL, DEFAULT_GUIDANCE, ShippedName, shipped_pipeline
from thg.models.pretrained import pretrained
from thg.models.schedulers import Schedulers

SCHEDULERS = {
    "ddim": "DDIMScheduler",
    "deis": "DEISMultistepScheduler",
    "dpm": "DPMSolverMultistepScheduler",
    "dpm-single": "DPMSolverSinglestepScheduler",
    "euler": "EulerDiscreteScheduler",
    "flow-euler": "FlowMatchEulerDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
    "unipc": "UniPCMultistepScheduler",
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHIPPED: tuple[ShippedName, ...] = get_args(ShippedName)
DEFAULT_STEPS = {"eps": 50, "flow": 28}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a pipeline."""
    group = parser.add_argument_group("model")
    group.add_argument("--model", default="eps", help="eps or flow (shipped), a hub id, or a folder (default: eps)")
    group.add_argument("--scheduler", choices=sorted(SCHEDULERS), help="another scheduler than the model's own")
    group.add_argument("--device", help="such as cuda, cuda:1, mps or cpu (default: the best there is)")
    group.add_argument("--dtype", choices=sorted(DTYPES), help="precision of the weights (default: float32 on the CPU)")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that samples."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--steps", type=_at_least(1), help="sampler steps (default: 50, and 28 for the flow model)")
    group.add_argument("--guidance-scale", type=_finite, help="w (default: the model's)")
    group.add_argument("--negative-prompt", help="what to keep away from")
    group.add_argument("--seed", type=int, default=0, help="seed of the first picture (default: 0)")
    group.add_argument("--count", type=_at_least(1), default=1, help="pictures per prompt, with seeds in sequence")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a number, not {text}")
    return value


def _at_least(lowest: int) -> Any:
    def whole_number(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return whole_number


def load(args: argparse.Namespace) -> Any:
    """The pipeline that the options ask for."""
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = DTYPES[args.dtype] if args.dtype else (torch.float16 if device.startswith("cuda") else torch.float32)
    _check_device(device)
    require_bfloat16(dtype, device)
    _quiet()
    if args.model in SHIPPED:
        pipe: Any = shipped_pipeline(args.model, device=device, dtype=dtype)
    else:
        pipe = pretrained(args.model, dtype).to(device)
    if args.scheduler:
        pipe.scheduler = _scheduler(args.scheduler, pipe)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def default_steps(args: argparse.Namespace) -> int:
    return int(args.steps or DEFAULT_STEPS.get(args.model, 50))


def call_arguments(args: argparse.Namespace, pipe: Any, prompts: list[str]) -> dict[str, Any]:
    """The keyword arguments of the pipeline's call that the options stand for."""
    accepted = inspect.signature(pipe.__call__).parameters
    call: dict[str, Any] = {"prompt": prompts, "num_inference_steps": default_steps(args)}
    call.update(DEFAULT_CALL.get(args.model, {}))
    scale = args.guidance_scale if args.guidance_scale is not None else DEFAULT_GUIDANCE.get(args.model)
    if scale is not None:
        call["true_cfg_scale" if "true_cfg_scale" in accepted else "guidance_scale"] = scale
    if args.negative_prompt is not None:
        call["negative_prompt"] = [args.negative_prompt] * len(prompts)
    if unknown := [name for name in call if name not in accepted]:
        raise THGError(f"{type(pipe).__name__} does not take {unknown[0]}; this command needs a prompt-driven pipeline")
    return call


def _quiet() -> None:
    """Errors of the libraries are reported by the command; their warnings are not for its users."""
    try:
        import diffusers
        import transformers
    except ImportError as error:
        raise missing("this command", "diffusers") from error
    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def _check_device(device: str) -> None:
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise THGError(f"the device {device!r} cannot be used ({reason}); write --device cpu") from None


def _scheduler(name: str, pipe: Any) -> Any:
    schedulers = Schedulers(pipe.scheduler)
    wanted = "FlowMatchHeunDiscreteScheduler" if schedulers.flow and name == "heun" else SCHEDULERS[name]
    return schedulers.make(wanted)
