"""`thg bench`: compares thg with its rivals; without arguments, on the shipped model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thg.bench.config import SHIPPED_CONFIG, load_config, override
from thg.bench.report import write_report
from thg.bench.report.measure import missing_samples
from thg.bench.runner import find_shard, generate
from thg.bench.store import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="what to run, as TOML (default: the shipped model)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/bench-<hash of config>)"
    )
    parser.add_argument("--count", type=int, metavar="N", help="prompts, instead of the configuration's number")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples a batch")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the run")
    parser.add_argument("--device", help="where to run, such as cuda:1 (default: the best there is)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that share the folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table")


def run(args: argparse.Namespace) -> int:
    config = load_config(args.config or SHIPPED_CONFIG)
    config = override(config, count=args.count, batch_size=args.batch_size, seed=args.seed)
    folder = args.out or Path("runs") / f"bench-{config.identity()}"
    shard = find_shard(args.shard, args.device)
    name = f"thg bench {shard.index}/{shard.count}: " if shard.count > 1 else "thg bench: "

    def progress(text: str) -> None:
        if not args.quiet:
            print(name + text, file=sys.stderr, flush=True)

    generate(config, folder, shard, progress)
    left = missing_samples(config, RunFolder(folder))
    if left:
        progress(f"done; {left} samples of other processes are still missing, the last one writes the report")
        return 0
    progress("measuring")
    print(write_report(config, folder, shard.device))
    print(f"\nThe report is in {folder / 'report.md'}")
    return 0
