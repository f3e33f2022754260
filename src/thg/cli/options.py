"""The options that several commands share, and parsers for their numbers."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch

from thg.adapter.scheduler_table import options as scheduler_options

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that loads a pipeline."""
    group = parser.add_argument_group("model")
    add_loading_arguments(group)
    group.add_argument("--scheduler", choices=scheduler_options(), help="another scheduler than the model's own")


def add_loading_arguments(group: argparse._ActionsContainer) -> None:
    """Which pipeline, and where it runs."""
    group.add_argument("--model", default="eps", help="eps or flow (shipped), a hub id, or a folder (default: eps)")
    group.add_argument("--device", help="such as cuda, cuda:1, mps or cpu (default: the best available)")
    group.add_argument("--dtype", choices=sorted(DTYPES), help="precision of the weights (default: float32 on the CPU)")
    group.add_argument(
        "--offload",
        choices=("model", "sequential"),
        help="keep weights in main memory: whole networks, or single layers (slower, least memory)",
    )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that samples."""
    group = parser.add_argument_group("sampling")
    group.add_argument("--steps", type=whole_number(1), help="sampler steps (default: the model's own)")
    group.add_argument("--guidance-scale", type=guidance, help="w (default: the model's own)")
    group.add_argument("--negative-prompt", help="what the picture should not show")
    group.add_argument("--width", type=whole_number(1), help="in pixels (default: the model's own)")
    group.add_argument("--height", type=whole_number(1), help="in pixels (default: the model's own)")
    group.add_argument("--seed", type=int, default=0, help="seed of the first picture (default: 0)")
    group.add_argument("--count", type=whole_number(1), default=1, help="pictures per prompt, with seeds in sequence")
    group.add_argument(
        "--batch-size", type=whole_number(1), help="pictures at a time (default: 16 for shipped models, else 1)"
    )
    group.add_argument("--force", action="store_true", help="replace files that exist")


def guidance(text: str) -> float:
    """A guidance scale."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 7.5 (1 is no guidance), not {text}")
    return value


def tolerance(text: str) -> float:
    """How far results may be from plain CFG's: 0.01 or 1%."""
    try:
        value = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must lie above 0 and below 1, such as 0.01 or 1%, not {text}")
    return value


def whole_number(lowest: int) -> Callable[[str], int]:
    """A whole number that is not below `lowest`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be a whole number, not {text}") from None
        if value < lowest:
            raise argparse.ArgumentTypeError(f"must be at least {lowest}, not {value}")
        return value

    return parse
