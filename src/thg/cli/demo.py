"""`thg demo`: the comparison on several prompts of the shipped model."""

from __future__ import annotations

import argparse
from pathlib import Path

from thg.cli import compare, options
from thg.models import EXAMPLE_PROMPTS

ROWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, default=Path("demo.png"), help="default: demo.png")
    options.add_sampling_arguments(parser)
    options.add_model_arguments(parser)


def run(args: argparse.Namespace) -> int:
    args.prompt = list(EXAMPLE_PROMPTS[:ROWS])
    return compare.run(args)
