"""`thg bench`: compares thg with other methods; without arguments, on the shipped model. `thg report`: its report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thg.bench.config import SHIPPED_CONFIG, BenchConfig, ModelTable, load_config, override
from thg.bench.measurer import measure_samples
from thg.bench.metrics import load_metrics
from thg.bench.metrics.package_scripts import NETWORKS
from thg.bench.report import rebuild_report, write_report
from thg.bench.runner import make_samples
from thg.bench.samples import reference_files
from thg.bench.store import BenchmarkRun, weights
from thg.models.pretrained import quiet
from thg.processes import check_device, find_shard
from thg.prompts import DataError


def run(args: argparse.Namespace) -> int:
    config = load_config(args.config or SHIPPED_CONFIG)
    config = override(config, count=args.count, batch_size=args.batch_size, seed=args.seed)
    folder = args.out or Path("runs") / f"bench-{config.identity()}"
    shard = find_shard(args.shard, args.device)
    check_device(shard.device)
    name = f"thg bench {shard.index}/{shard.count}: " if shard.count > 1 else "thg bench: "

    def progress(text: str) -> None:
        if not args.quiet:
            print(name + text, file=sys.stderr, flush=True)

    if args.check:
        return _check(config, folder, args.store)
    benchmark = BenchmarkRun.start(config, folder, args.store)
    quiet()
    make_samples(benchmark, shard, progress)
    measurer = measure_samples(benchmark, shard, progress)
    if measurer is None:
        progress("done; other processes are still running, the last one writes the report")
        return 0
    _show(write_report(measurer, shard.device), folder)
    return 0


def report(args: argparse.Namespace) -> int:
    """Rebuilds the report of a benchmark from its folder; measures what is missing, without sampling."""
    shard = find_shard(args.shard, args.device)
    check_device(shard.device)
    quiet()
    table = rebuild_report(args.folder, shard, lambda text: print(f"thg report: {text}", file=sys.stderr, flush=True))
    if table is None:
        print("thg report: other processes are still measuring, the last one writes the report", file=sys.stderr)
    else:
        _show(table, args.folder)
    return 0


def _show(table: str, folder: Path) -> None:
    print(table)
    print(f"\nThe report is in {folder / 'report.md'}")


def evaluations(config: BenchConfig) -> int:
    """The evaluations of a whole run; plain CFG's for methods whose number is not known in advance."""
    each = [
        method.implementation.budget(method.steps, method.guidance_scale)
        or method.options.get("nfe")
        or method.paper.get("nfe")
        or 2 * method.steps
        for method in config.methods
    ]
    return round(config.count * sum(each))


def _check(config: BenchConfig, folder: Path, store: Path | None) -> int:
    """Reports what is available, and everything that is missing, before anything runs."""
    count, missing, files = evaluations(config), [], list[str]()
    print(f"about {f'{count / 1e6:.3g} million' if count >= 1e6 else f'{count:,}'} network evaluations in all")
    if not weights(config.model):
        missing.append(f"the model {config.model.source}: hf download {config.model.source}")
    try:
        benchmark = BenchmarkRun.start(config, folder, store)
        sampled = f"{config.count} of them sampled with {len(config.methods)} methods"
        print(f"{len(benchmark.prompts.prompts)} prompts, {sampled}")
        print(f"{benchmark.missing_samples()} samples are still to be made in {benchmark.store}")
        references = reference_files(config)
        if references is not None:
            files.append(references.complaint)
            print(f"{len(references.paths)} references in {references.folder}")
    except DataError as error:
        files.append(str(error))
        if config.references.folder is not None and not config.references.folder.is_dir():
            files.append(f"the reference folder {config.references.folder}")
    missing += [f"{what}{config.files_from and ': ' + config.files_from}" for what in files if what]
    loaded = load_metrics(config.metrics, packages=config.packages, base=config.base)
    missing += [f"{name}: {reason}" for name, reason in loaded.skipped]
    for metric in loaded.of_packages:
        network = config.networks.get(metric.name, NETWORKS.get(metric.name, ""))
        if network and not weights(ModelTable(source=network), "config.json"):
            missing.append(f"{metric.name}: its network {network}: hf download {network}")
    for what in missing:
        print(f"missing: {what}")
    return 1 if missing else 0
