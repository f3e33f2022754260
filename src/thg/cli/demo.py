"""`thg demo`: the comparison on several prompts of a shipped model, one picture at a time."""

from __future__ import annotations

import argparse

from thg.cli import compare
from thg.cli.parser import DEFAULT_MODEL
from thg.models import SHIPPED

ROWS = 8


def run(args: argparse.Namespace) -> int:
    args.prompt = list(SHIPPED.get(args.model, SHIPPED[DEFAULT_MODEL]).examples[:ROWS])
    args.batch_size = args.batch_size or 1  # as most people run their models
    return compare.run(args)
