"""The metrics of the benchmark, behind one small interface.

    loaded = load_metrics(["psnr", "fid", "clip_score"])
    for metric in loaded.metrics:
        metric.update(Batch(pictures, prompts=prompts, references=plain_cfg_pictures))
        metric.compute()

Metrics that are not available are listed in `loaded.skipped`, with the reason.

Implemented here although libraries exist: torchmetrics, clean-fid, lpips and image-reward need torchvision or old
versions.
"""

from thg.bench.metrics.base import MeanMetric, Metric, SetMetric
from thg.bench.metrics.batch import Batch, MetricError
from thg.bench.metrics.registry import Loaded, Sources, load_metrics, metric_names

__all__ = [
    "Batch",
    "Loaded",
    "MeanMetric",
    "Metric",
    "MetricError",
    "SetMetric",
    "Sources",
    "load_metrics",
    "metric_names",
]
