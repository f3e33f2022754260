"""The guided ODE without diffusers: noise schedules, solvers, Algorithm 1 (`sample`) and Algorithm 3."""

from typing import TYPE_CHECKING

from thg.lazy import lazy_names

if TYPE_CHECKING:
    from thg.ode.guided_denoiser import GuidedDenoiser
    from thg.ode.integrate import Sampled, Step, sample
    from thg.ode.mixture import GaussianMixture
    from thg.ode.network import Denoiser
    from thg.ode.outputs import Node, express
    from thg.ode.richardson import ErrorConstants, error_constants, error_constants_first_order
    from thg.ode.schedule import Schedule
    from thg.ode.solvers import (
        DPMSolver2,
        LinearMultistep,
        Solver,
        ddim,
        dpm_multistep,
        dpm_singlestep,
        euler,
        lms,
        plms,
    )

__all__ = [
    "DPMSolver2",
    "Denoiser",
    "ErrorConstants",
    "GaussianMixture",
    "GuidedDenoiser",
    "LinearMultistep",
    "Node",
    "Sampled",
    "Schedule",
    "Solver",
    "Step",
    "ddim",
    "dpm_multistep",
    "dpm_singlestep",
    "error_constants",
    "error_constants_first_order",
    "euler",
    "express",
    "lms",
    "plms",
    "sample",
]

__getattr__ = lazy_names(
    __name__,
    {
        "thg.ode.guided_denoiser": ("GuidedDenoiser",),
        "thg.ode.integrate": ("Sampled", "Step", "sample"),
        "thg.ode.mixture": ("GaussianMixture",),
        "thg.ode.network": ("Denoiser",),
        "thg.ode.outputs": ("Node", "express"),
        "thg.ode.richardson": ("ErrorConstants", "error_constants", "error_constants_first_order"),
        "thg.ode.schedule": ("Schedule",),
        "thg.ode.schedulers": (),
        "thg.ode.solvers": (
            *("DPMSolver2", "LinearMultistep", "Solver", "ddim", "dpm_multistep", "dpm_singlestep"),
            *("euler", "lms", "plms"),
        ),
    },
)
