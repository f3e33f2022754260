"""Evenly spread evaluations against the default grid, on exact models: how far each ends from plain CFG.

    python benchmarks/grids_on_mixtures.py

The models are Gaussian mixtures, whose score is known: one of random Gaussians in 16 dimensions, and one
with a narrow Gaussian around each of some real pictures (Fashion-MNIST, from Debian's package dataset-fashion-mnist),
conditional on the garment. No network was trained, so nothing here depends on the shipped models. Numbers are dB: the
mean square of the final state over that of its difference to plain CFG's; both plans have the corrector.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch

import thg
from thg.ode.mixture import GaussianMixture
from thg.ode.schedule import Schedule
from thg.ode.solvers import Solver, ddim, dpm_multistep
from thg.plans.run import RunInfo

PICTURES = Path("/usr/share/datasets/fashion-mnist")
BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
SETTINGS = ((50, 0.70), (50, 0.65), (50, 0.60), (28, 0.65))


def of_pictures(count: int, std: float) -> GaussianMixture:
    def read(name: str, header: int) -> np.ndarray:
        return np.frombuffer(gzip.decompress((PICTURES / name).read_bytes()), np.uint8, offset=header)

    pixels = read("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 784)[:count]
    labels = read("t10k-labels-idx1-ubyte.gz", 8)[:count].astype(np.int64)
    ones = torch.ones(count, dtype=torch.float64)
    return GaussianMixture(torch.from_numpy(pixels / 127.5 - 1), std * ones, ones, torch.from_numpy(labels))


def runs(steps: int) -> dict[str, tuple[Schedule, Solver]]:
    latent = Schedule.from_betas(BETAS, steps, spacing="leading", steps_offset=1)
    return {
        "DDIM": (latent, ddim()),
        "DPM++ 2M": (latent, dpm_multistep()),
        "VP, DDIM": (Schedule.vp(steps), ddim()),
        "flow": (Schedule.flow(steps, time=(1, 0)), ddim()),
        "flow, shift 3": (Schedule.flow(steps, time=(1, 0), shift=3), ddim()),
    }


def decibels(
    mixture: GaussianMixture, schedule: Schedule, solver: Solver, w: float, plans: list[thg.Plan]
) -> list[float]:
    """Of each plan: the mean over some classes of how far the final state is from plain CFG's."""
    noise = torch.randn(2, mixture.dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = []
    for label in range(4):
        ends = [
            thg.sample(mixture.denoiser(schedule, label), noise, plan, schedule, solver, guidance_scale=w).x
            for plan in (thg.Plan(schedule.steps, tuple(range(schedule.steps))), *plans)
        ]
        found.append([float(10 * torch.log10(ends[0].square().sum() / (x - ends[0]).square().sum())) for x in ends[1:]])
    return [float(value) for value in np.mean(found, axis=0)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--guidance-scale", type=float, default=5.0)
    options = parser.parse_args()
    models = {
        "random, 16 dimensions": GaussianMixture.random(classes=4, per_class=3, dimension=16),
        "around pictures": of_pictures(options.pictures, 0.15),
    }
    print("| model | run | " + " | ".join(f"{n} steps, {share:.0%}" for n, share in SETTINGS) + " |")
    print("|---|---" + "|---" * len(SETTINGS) + "|")
    for model, mixture in models.items():
        for name in runs(2):
            cells = []
            for steps, share in SETTINGS:
                plans = [p.plan(RunInfo.of(steps)) for p in (thg.uniform(nfe=share, corrector=0.7), thg.tapered(share))]
                even, tapered = decibels(mixture, *runs(steps)[name], options.guidance_scale, plans)
                cells.append(f"{even:.1f} → {tapered:.1f}")
            print(f"| {model} | {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
