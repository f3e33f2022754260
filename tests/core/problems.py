"""The exact problem of the order tests: a mild mixture, its guided ODE, and a reference from another integrator."""

from functools import cache

import numpy as np
import torch
from scipy.integrate import solve_ivp

from thg.ode.mixture import GaussianMixture
from thg.ode.schedule import Schedule
from thg.ode.solvers import ddim, dpm_multistep, dpm_singlestep, lms, plms

GUIDANCE = 2.0
LABEL = 0
FINAL_TIME = 0.3

SOLVERS = {
    "ddim": ddim(),
    "lms": lms(),
    "plms": plms(),
    "dpm++ multistep": dpm_multistep(),
    "dpm multistep": dpm_multistep("epsilon"),
    "dpm++ singlestep": dpm_singlestep(),
    "dpm singlestep": dpm_singlestep("epsilon"),
}


def mixture():
    rough = GaussianMixture.random(classes=3, per_class=1, dimension=2, seed=1)
    return GaussianMixture(0.7 * rough.means, rough.stds + 0.4, rough.weights, rough.labels)


def schedule(steps):
    return Schedule.vp(steps, final_time=FINAL_TIME)


def noise(batch=4, dimension=2, seed=0):
    return torch.randn(batch, dimension, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def guided_eps(x, alpha, sigma):
    """e_c and d of the mixture at the state x."""
    model = mixture()
    e_c = -sigma * model.score(x, alpha, sigma, LABEL)
    return e_c, e_c + sigma * model.score(x, alpha, sigma)


def exact_flow(start, end, tortoise, hare):
    """The exact solution of the tortoise and the hare equations from one node to another.

    In sigma/alpha both are d(x/alpha) = output d(sigma/alpha).
    """
    shape = tortoise.shape

    def slope(ratio, state):
        alpha = 1 / np.sqrt(1 + ratio**2)
        both = torch.from_numpy(state).reshape(2, *shape)
        e_c, d = guided_eps(alpha * both.sum(0), alpha, ratio * alpha)
        return torch.stack([e_c, (GUIDANCE - 1) * d]).numpy().ravel()

    solution = solve_ivp(
        slope,
        (start.sigma / start.alpha, end.sigma / end.alpha),
        (torch.stack([tortoise, hare]) / start.alpha).numpy().ravel(),
        method="DOP853",
        rtol=1e-11,
        atol=1e-12,
    )
    both = torch.from_numpy(solution.y[:, -1].copy()).reshape(2, *shape) * end.alpha
    return both[0], both[1]


@cache
def reference():
    """The end of the guided ODE from noise()."""
    start, end = schedule(1).nodes
    return sum(exact_flow(start, end, noise(), torch.zeros_like(noise())))
