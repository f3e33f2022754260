"""A solver of your own: an exponential multistep method of any order, in half the log-SNR.

The ODE of a diffusion model that predicts x0 is solved by

    x_s = (sigma_s / sigma_t) x_t + alpha_s * integral of exp(l - l_s) x0(l) over l = l_t .. l_s

A method of order p uses the polynomial through the last p outputs in place of x0(l). At order 1 that is DDIM, at
order 2 nearly DPM-Solver++(2M).

python examples/extending/solver.py
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

import thg
from thg.ode.mixture import GaussianMixture
from thg.ode.outputs import Node, Prediction
from thg.ode.solvers import Solver, ddim
from thg.plans.leaps import lagrange_weights

POINTS, WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class ExponentialMultistep:
    """A solver has four properties and gives the coefficients of a step; `thg.ode.solvers` does the rest."""

    order: int = 3

    @property
    def memory(self) -> int:  # outputs that a step uses at most
        return self.order

    @property
    def stages(self) -> int:  # network outputs for a complete step
        return 1

    def works_in(self, normal: Prediction) -> Prediction:  # outputs are converted to x0
        return "sample"

    def coefficients(self, path: Sequence[Node], target: Node, kind: Prediction) -> tuple[float, tuple[float, ...]]:
        """a and b of x_s = a x_t + sum b_k x0_k, from path[-1] to target; the outputs are the last of the path."""
        used = [node.log_snr / 2 for node in path[-self.order :]]
        start, end = used[-1], target.log_snr / 2
        if not all(map(math.isfinite, (*used, end))):  # pure noise or clean data: one DDIM step
            return ddim().coefficients(path, target, kind)
        half = (end - start) / 2
        points = start + half * (POINTS + 1)
        values = np.array([lagrange_weights(used, float(point)) for point in points])
        integrals = (half * WEIGHTS * np.exp(points - end)) @ values
        return target.sigma / path[-1].sigma, tuple(float(target.alpha * value) for value in integrals)


def end_of_run(solver: Solver, steps: int, nfe: float) -> torch.Tensor:
    """Latents on the exact problem: a Gaussian mixture, whose score is known in closed form."""
    mixture = GaussianMixture.random()
    schedule = thg.Schedule.vp(steps, beta_max=4.0, final_time=0.05)
    noise = torch.randn(64, mixture.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plan = thg.uniform(nfe=nfe).plan(thg.plans.RunInfo.of(steps))
    done = thg.sample(mixture.denoiser(schedule, label=0), noise, plan, schedule, solver, guidance_scale=3.0)
    print(f"order {solver.order}, {steps} steps, {done.nfe} evaluations")
    return done.x


if __name__ == "__main__":
    exact = end_of_run(ExponentialMultistep(4), 1280, nfe=1.0)
    for order in (1, 2, 3):
        coarse, fine = (end_of_run(ExponentialMultistep(order), steps, nfe=1.0) for steps in (80, 160))
        ratio = float((coarse - exact).abs().mean() / (fine - exact).abs().mean())
        print(f"half the step, {ratio:.1f} times less error: order {math.log2(ratio):.2f}")
        assert math.log2(ratio) > order - 0.25
    end_of_run(ExponentialMultistep(3), 50, nfe=0.65)  # and with thg's leaps, like any other solver
