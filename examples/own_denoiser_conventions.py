"""One network as others write it: eps, v, x0 or velocity; time from 1 to 0, 0 to 1, 999 to 0; guidance in an interval.

Each is sampled, accelerated and calibrated; a convention is the network itself and one line that declares it.

python examples/own_denoiser_conventions.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import thg

STEPS, BATCH, NO_CLASS = 30, 8, 2
BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
ALPHAS = np.sqrt(np.cumprod(1 - BETAS))
NOISE = torch.randn(BATCH, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(BATCH) % 2
WAVES = torch.stack([torch.sin(k * torch.linspace(0, 2 * math.pi, 64, dtype=torch.float64)) for k in range(1, 6)])
DATA = torch.randn(2, 12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) @ WAVES * 0.5
DATA += torch.tensor([-0.3, 0.4], dtype=torch.float64)[:, None, None]  # 12 curves of 64 values in each of two classes


def guess(x: Tensor, alpha: float, sigma: float, labels: Tensor) -> Tensor:
    """The exact estimate of the data x0 in the state alpha x0 + sigma eps."""
    x0 = torch.empty_like(x)
    for label in range(3):
        curves = DATA[label] if label != NO_CLASS else DATA.flatten(0, 1)
        offset = x[labels == label][:, None] - alpha * curves
        variance = (0.15 * alpha) ** 2 + sigma**2
        share = (-0.5 * offset.square().sum(-1) / variance).softmax(1)
        x0[labels == label] = share @ curves + (share[..., None] * offset).sum(1) * (alpha * 0.15**2 / variance)
    return x0


def compare(network: Callable[..., Tensor], schedule: thg.Schedule, **more: Any) -> list[thg.ode.Sampled]:
    given: Any = {"guidance_scale": 4.0, "unconditional": NO_CLASS, **more}
    plain = thg.sample(network, NOISE, thg.uniform(every=1), schedule, condition=LABELS, **given)
    fewer = thg.sample(network, NOISE, thg.tapered(0.7), schedule, condition=LABELS, **given)
    profile = thg.calibrate(network, LABELS, x=NOISE, schedule=schedule, sensitivity=1, progress=False, **given)
    best = thg.sample(network, NOISE, profile.planner(nfe=0.7), schedule, condition=LABELS, **given)
    return [plain, fewer, best]


def noise_ddpm() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: int, labels: Tensor) -> Tensor:  # whole times from 999 to 0
        alpha = float(ALPHAS[t])
        sigma = math.sqrt(1 - alpha**2)
        return (x - alpha * guess(x, alpha, sigma, labels)) / sigma

    return compare(network, thg.Schedule.from_betas(BETAS, STEPS, integer_times=True))


def v_prediction() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # time from 1 to 0
        alpha = float(np.interp(999 * t, np.arange(1000), ALPHAS))
        sigma = math.sqrt(1 - alpha**2)
        x0 = guess(x, alpha, sigma, labels)
        return alpha * (x - alpha * x0) / sigma - sigma * x0

    return compare(network, thg.Schedule.from_betas(BETAS, STEPS, prediction="v_prediction", time=(1, 0)))


def x0_of_ddpm() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # time from 0 at noise to 1 at data
        alpha = float(np.interp(999 * (1 - t), np.arange(1000), ALPHAS))
        return guess(x, alpha, math.sqrt(1 - alpha**2), labels)

    return compare(network, thg.Schedule.from_betas(BETAS, STEPS, prediction="sample", time=(0, 1)))


def velocity_to_noise() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # eps - x0, time from 1 to 0 (SD3, minRF)
        return (x - guess(x, 1 - t, t, labels)) / t

    return compare(network, thg.Schedule.flow(STEPS, time=(1, 0)))


def velocity_to_data() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # x0 - eps, time from 0 to 1 (torchcfm, SiT)
        return (guess(x, t, 1 - t, labels) - x) / (1 - t)

    return compare(network, thg.Schedule.flow(STEPS, time=(0, 1)))


def velocity_of_999() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # x0 - eps although time runs from 999 to 0
        return (guess(x, 1 - t / 999, t / 999, labels) - x) / (t / 999)

    return compare(network, thg.Schedule.flow(STEPS, time=(999, 0), velocity="data-noise"))


def x0_of_a_flow() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # time from 1 to 0
        return guess(x, 1 - t, t, labels)

    return compare(network, thg.Schedule.flow(STEPS, time=(1, 0), prediction="sample"))


def guidance_interval() -> list[thg.ode.Sampled]:
    def network(x: Tensor, t: float, labels: Tensor) -> Tensor:  # as velocity_to_data, guided between 0.2 and 0.8
        return (guess(x, t, 1 - t, labels) - x) / (1 - t)

    return compare(network, thg.Schedule.flow(STEPS, time=(0, 1)), guidance_interval=(0.2, 0.8))


CONVENTIONS = (
    noise_ddpm,
    v_prediction,
    x0_of_ddpm,
    velocity_to_noise,
    velocity_to_data,
    velocity_of_999,
    x0_of_a_flow,
    guidance_interval,
)


def decibels(found: Tensor, expected: Tensor) -> float:
    return 10 * math.log10(4 / float((found - expected).square().mean()))


if __name__ == "__main__":
    for convention in CONVENTIONS:
        plain, fewer, best = convention()
        print(
            f"{convention.__name__:18} {plain.nfe} evaluations; {fewer.nfe}: {decibels(fewer.x, plain.x):.1f} dB, "
            f"with a calibrated plan {decibels(best.x, plain.x):.1f} dB"
        )
