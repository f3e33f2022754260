"""The metrics of the benchmark, behind one small interface.

    loaded = load_metrics(["psnr", "fid", "clip_score"])
    for metric in loaded.metrics:
        metric.update(Batch(pictures, prompts=prompts, references=plain_cfg_pictures))
        metric.compute()

What cannot be measured here is named in `loaded.skipped`, with the reason.
"""

from thg.bench.metrics.base import MeanMetric, Metric, SetMetric
from thg.bench.metrics.batch import Batch, MetricError
from thg.bench.metrics.registry import METRIC_NAMES, Loaded, Sources, load_metrics

__all__ = [
    "METRIC_NAMES",
    "Batch",
    "Loaded",
    "MeanMetric",
    "Metric",
    "MetricError",
    "SetMetric",
    "Sources",
    "load_metrics",
]
