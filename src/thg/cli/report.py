"""`thg report`: rebuilds the report of a benchmark from its folder; measures what is missing, without sampling."""

from __future__ import annotations

import argparse
import sys

from thg.bench.report import rebuild_report
from thg.cli import pipelines
from thg.processes import find_shard


def run(args: argparse.Namespace) -> int:
    shard = find_shard(args.shard, args.device)
    pipelines.check_device(shard.device)
    pipelines.quiet()
    table = rebuild_report(args.folder, shard, lambda text: print(f"thg report: {text}", file=sys.stderr, flush=True))
    if table is None:
        print("thg report: other processes are still measuring, the last one writes the report", file=sys.stderr)
        return 0
    print(table)
    print(f"\nThe report is in {args.folder / 'report.md'}")
    return 0
