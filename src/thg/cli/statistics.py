"""`thg statistics`: measures the references of a benchmark once, and writes statistics for configurations."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from thg.bench.config import load_config
from thg.bench.data import write_statistics
from thg.bench.measuring import Measurer
from thg.bench.metrics import SetMetric
from thg.bench.shard import find_shard
from thg.bench.store import Store
from thg.cli import pipelines
from thg.prompts import DataError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="the benchmark whose [references] to measure"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder for the statistics")
    parser.add_argument("--store", type=Path, metavar="DIR", help="where measured rows are kept (default: OUT/store)")
    parser.add_argument("--device", help="where the networks run (default: the best available)")
    parser.add_argument("--shard", metavar="I/K", help="this process is the I-th of K that share the store")


def run(args: argparse.Namespace) -> int:
    config = load_config(args.config)
    pipelines.quiet()
    bare = config.model_copy(update={"references": config.references.model_copy(update={"statistics": {}})})
    shard = find_shard(args.shard, args.device)
    pipelines.check_device(shard.device)
    measurer = Measurer(bare, Store(args.store or args.out / "store"), shard.device)
    measurer.metrics = [metric for metric in measurer.metrics if isinstance(metric, SetMetric)]
    measurer.leave_out(sounds=False)
    for name, reason in measurer.skipped:
        print(f"thg statistics: no {name}: {reason}", file=sys.stderr)
    if not measurer.metrics or measurer.references is None:
        raise DataError(f"{args.config} has no metric that compares with references, or no references")
    measurer.measure_references(shard, lambda text: print(f"thg statistics: {text}", file=sys.stderr, flush=True))
    if measurer.missing_references():
        print("thg statistics: other processes are still running, the last one writes the files", file=sys.stderr)
        return 0
    print("[references.statistics]")
    names = {metric.rows_name: name for metric, name in measurer.reference_measures()}
    for metric in measurer.metrics:
        assert isinstance(metric, SetMetric)
        rows = measurer.store.references(measurer.references.identity, names[metric.rows_name])
        metric.use_rows(rows.read(range(len(measurer.references.paths))))
        path = args.out / f"{metric.name}.safetensors"
        write_statistics(path, metric.statistics())
        print(f'{metric.name} = "{path.absolute()}"')
    return 0
