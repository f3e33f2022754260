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
