"""Without diffusers: Algorithm 1 on a denoiser of your own, here the exact one of a Gaussian mixture.

python examples/own_denoiser.py
"""

import torch

import thg
from thg.ode import solvers
from thg.ode.mixture import GaussianMixture

STEPS = 50
mixture = GaussianMixture.random()
schedule = thg.Schedule.flow(STEPS, time=(1, 0))
noise = torch.randn(256, mixture.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
denoiser = mixture.denoiser(schedule, label=0)  # denoiser(x, t, conditional) -> output


def run(plan: thg.Plan) -> torch.Tensor:
    done = thg.sample(denoiser, noise, plan, schedule, solvers.euler(), guidance_scale=4.0)
    print(f"[{plan.strip()}]  {done.nfe} evaluations")
    return done.x


full = run(thg.Plan(STEPS, tuple(range(STEPS))))
fewer = run(thg.tapered(0.65).plan(thg.Run.of(STEPS)))
print(f"largest difference: {float((full - fewer).abs().max()):.1e}")
