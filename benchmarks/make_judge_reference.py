"""Makes the reference of judge_frechet: the real test pictures of Fashion-MNIST, as the shipped judge sees them.

    python -m benchmarks.make_judge_reference        # in the root of the repository

To be run again when the judge has changed. Needs the dataset (Debian package dataset-fashion-mnist).
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save

from thg.bench.metrics import Batch, load_metrics
from thg.bench.metrics.frechet import Gaussian
from thg.files import write_atomically
from training.data import DEBIAN_FOLDER, load_split

TARGET = Path(__file__).parents[1] / "src" / "thg" / "bench" / "metrics" / "judge_reference.safetensors"


def main() -> None:
    pictures, _ = load_split(DEBIAN_FOLDER, "t10k")
    (metric,) = load_metrics(["judge_frechet"]).metrics
    for part in pictures.split(500):
        metric.update(Batch((part + 1) / 2))
    mean, covariance = Gaussian.of(metric.rows())
    count = torch.tensor(float(len(pictures)))
    write_atomically(TARGET, save({"mu": mean.float(), "sigma": covariance.float(), "n": count}))
    print(f"{TARGET}: {len(pictures)} pictures")


if __name__ == "__main__":
    main()
