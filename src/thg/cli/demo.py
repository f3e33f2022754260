"""`thg demo`: the comparison on several prompts of the shipped model."""

from __future__ import annotations

import argparse

from thg.cli import compare
from thg.models import EXAMPLE_PROMPTS

ROWS = 8


def run(args: argparse.Namespace) -> int:
    args.prompt = list(EXAMPLE_PROMPTS[:ROWS])
    return compare.run(args)
