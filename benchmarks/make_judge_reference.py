"""Makes the reference of judge_frechet: the real test pictures of Fashion-MNIST, as the shipped judge sees them.

    python -m benchmarks.make_judge_reference        # in the root of the repository

To be run again when the judge has changed. Needs the dataset (Debian package dataset-fashion-mnist).
"""

from __future__ import annotations

from pathlib import Path

from thg.bench.data import write_statistics
from thg.bench.metrics import Batch, SetMetric, load_metrics
from training.data import DEBIAN_FOLDER, load_split

TARGET = Path(__file__).parents[1] / "src" / "thg" / "bench" / "metrics" / "judge_reference.safetensors"


def main() -> None:
    pictures, _ = load_split(DEBIAN_FOLDER, "t10k")
    (metric,) = load_metrics(["judge_frechet"]).metrics
    assert isinstance(metric, SetMetric)
    for part in pictures.split(500):
        metric.add_reference(Batch((part + 1) / 2))
    statistics = metric.statistics()
    write_statistics(TARGET, {name: tensor.float() for name, tensor in statistics.items()})
    print(f"{TARGET}: {len(pictures)} pictures")


if __name__ == "__main__":
    main()
