"""`thg bench`: compares thg with other methods; without arguments, on the shipped model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thg.bench.config import SHIPPED_CONFIG, BenchConfig, load_config, override
from thg.bench.inputs import reference_files
from thg.bench.measure import Measurer
from thg.bench.report import write_report
from thg.bench.stages import BenchmarkRun, make_samples, measure_samples
from thg.cli import pipelines
from thg.processes import find_shard


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, metavar="FILE", help="what to run, as TOML (default: the shipped model)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: runs/bench-<hash of config>)"
    )
    parser.add_argument(
        "--store", type=Path, metavar="DIR", help="where samples are kept and shared (default: store next to --out)"
    )
    parser.add_argument("--check", action="store_true", help="report what is missing, and run nothing")
    parser.add_argument("--count", type=int, metavar="N", help="prompts, instead of the configuration's number")
    parser.add_argument("--batch-size", type=int, metavar="N", help="samples per batch")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of the run")
    parser.add_argument("--device", help="where to run, such as cuda:1 (default: the best available)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that share the folder")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the table")


def run(args: argparse.Namespace) -> int:
    config = load_config(args.config or SHIPPED_CONFIG)
    config = override(config, count=args.count, batch_size=args.batch_size, seed=args.seed)
    folder = args.out or Path("runs") / f"bench-{config.identity()}"
    shard = find_shard(args.shard, args.device)
    pipelines.check_device(shard.device)
    name = f"thg bench {shard.index}/{shard.count}: " if shard.count > 1 else "thg bench: "

    def progress(text: str) -> None:
        if not args.quiet:
            print(name + text, file=sys.stderr, flush=True)

    benchmark = BenchmarkRun.start(config, folder, args.store)
    if args.check:
        return _check(benchmark)
    pipelines.quiet()
    make_samples(benchmark, shard, progress)
    measurer = measure_samples(benchmark, shard, progress)
    if measurer is None:
        progress("done; other processes are still running, the last one writes the report")
        return 0
    print(write_report(benchmark, measurer, shard.device))
    print(f"\nThe report is in {folder / 'report.md'}")
    return 0


def evaluations(config: BenchConfig) -> int:
    """The evaluations of a whole run; plain CFG's for methods whose number is not known in advance."""
    each = [
        method.policy.budget(method.steps, method.guidance_scale)
        or method.options.get("nfe")
        or method.published.get("nfe")
        or 2 * method.steps
        for method in config.methods
    ]
    return round(config.count * sum(each))


def _check(benchmark: BenchmarkRun) -> int:
    """Reports what is available and what is missing, before anything runs."""
    config = benchmark.config
    missing = []
    print(
        f"{len(benchmark.prompts.prompts)} prompts, {config.count} of them sampled with {len(config.methods)} methods"
    )
    count = evaluations(config)
    print(f"about {f'{count / 1e6:.3g} million' if count >= 1e6 else f'{count:,}'} network evaluations in all")
    references = reference_files(config)
    if references is not None:
        missing += [references.complaint] if references.complaint else []
        print(f"{len(references.paths)} references in {references.folder}")
    missing += [f"{name}: {reason}" for name, reason in Measurer(config, benchmark.store, "cpu").skipped]
    print(f"{benchmark.missing_samples()} samples are still to be made in {benchmark.store.path}")
    for what in missing:
        print(f"missing: {what}")
    return 1 if missing else 0
