"""`thg report`: rebuilds the report of a benchmark from its folder, without generating anything."""

from __future__ import annotations

import argparse
from pathlib import Path

from thg.bench.report import rebuild_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder of a run, made by thg bench")
    parser.add_argument("--device", default="cpu", help="where the networks of the metrics run (default: cpu)")


def run(args: argparse.Namespace) -> int:
    print(rebuild_report(args.folder, args.device))
    print(f"\nThe report is in {args.folder / 'report.md'}")
    return 0
