"""The table of diffusers' schedulers: one row each, with everything that depends on the kind of scheduler.

Imports nothing from diffusers: a scheduler is identified by the names of its classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from thg.ode.outputs import Prediction

Grid = Literal["alphas", "sigmas", "exploding sigmas"]
Method = Literal["ddim", "euler", "lms", "plms", "dpm multistep", "dpm singlestep"]

NOISE: tuple[Prediction, ...] = ("epsilon", "v_prediction", "sample")
FLOW: tuple[Prediction, ...] = ("flow",)


@dataclass(frozen=True)
class Kind:
    """One kind of scheduler.

    name: its class in diffusers. label: its display name. option: its name on the command line; "" is not offered
    there. order: of its steps, if no `solver_order` is configured. predicts: the kinds of network that it supports.
    grid: how its noise levels are stored, if they can be read exactly. method: the solver of the core that takes the
    same steps, if there is one. instead: for a scheduler that adds noise at every step, the most similar one that does
    not. settings: of a variant: its configuration in addition to the settings of the model.

    All that add no noise are linear in the network's outputs, unless they are configured to clip or threshold.
    """

    name: str
    label: str
    option: str = ""
    order: int = 1
    predicts: tuple[Prediction, ...] = NOISE
    grid: Grid | None = None
    method: Method | None = None
    instead: str = ""
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """Distinguishes variants of a class."""
        return f"{self.name}:{self.option}" if self.settings else self.name

    @property
    def adds_noise(self) -> bool:
        return bool(self.instead)


_ROWS = (
    Kind("DDIMScheduler", "DDIM", "ddim", grid="alphas", method="ddim"),
    Kind("EulerDiscreteScheduler", "Euler", "euler", grid="exploding sigmas", method="euler"),
    Kind("DPMSolverMultistepScheduler", "DPM++ 2M", "dpm", 2, NOISE + FLOW, "sigmas", "dpm multistep"),
    Kind("DPMSolverSinglestepScheduler", "DPM++ 2S", "dpm-single", 2, NOISE, "sigmas", "dpm singlestep"),
    Kind("UniPCMultistepScheduler", "UniPC", "unipc", 2, NOISE + FLOW, "sigmas"),
    Kind("DEISMultistepScheduler", "DEIS", "deis", 2, NOISE + FLOW, "sigmas"),
    Kind("HeunDiscreteScheduler", "Heun", "heun", 2),
    Kind("KDPM2DiscreteScheduler", "DPM2", "dpm2", 2),
    Kind("LMSDiscreteScheduler", "LMS", "lms", 4, NOISE, "exploding sigmas", "lms"),
    Kind("PNDMScheduler", "PNDM", "pndm", 4, ("epsilon", "v_prediction"), "alphas", "plms"),
    Kind("FlowMatchEulerDiscreteScheduler", "Euler (flow)", "flow-euler", 1, FLOW, "sigmas", "euler"),
    Kind("FlowMatchHeunDiscreteScheduler", "Heun (flow)", "flow-heun", 2, FLOW),
    Kind("CogVideoXDDIMScheduler", "DDIM (CogVideoX)"),
    Kind("EulerAncestralDiscreteScheduler", "Euler a", "euler-a", instead="EulerDiscreteScheduler"),
    Kind("KDPM2AncestralDiscreteScheduler", "DPM2 a", "dpm2-a", 2, instead="DPMSolverMultistepScheduler"),
    Kind(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M SDE",
        "dpm-sde",
        order=2,
        instead="DPMSolverMultistepScheduler",
        settings=(("algorithm_type", "sde-dpmsolver++"),),
    ),
    Kind("DDPMScheduler", "DDPM", "ddpm", instead="DDIMScheduler"),
    Kind("DDPMWuerstchenScheduler", "DDPM (Wuerstchen)", instead="DDIMScheduler"),
    Kind("CogVideoXDPMScheduler", "DPM++ 2M SDE (CogVideoX)", order=2, instead="CogVideoXDDIMScheduler"),
    Kind("DPMSolverSDEScheduler", "DPM++ SDE", order=2, instead="DPMSolverMultistepScheduler"),
    Kind("SASolverScheduler", "SA-Solver", order=2, instead="UniPCMultistepScheduler"),
    Kind("LCMScheduler", "LCM", instead="DDIMScheduler"),
    Kind("TCDScheduler", "TCD", instead="DDIMScheduler"),
    Kind("FlowMatchLCMScheduler", "LCM (flow)", predicts=FLOW, instead="FlowMatchEulerDiscreteScheduler"),
)
SCHEDULERS = {row.name: row for row in _ROWS if not row.settings}
OFFERED = {row.key: row for row in _ROWS if row.option}
"""The schedulers that commands and studio offer."""


def kind_of(scheduler: Any) -> Kind | None:
    """The row of a scheduler of diffusers, or of a subclass of one."""
    return next((SCHEDULERS[base.__name__] for base in type(scheduler).__mro__ if base.__name__ in SCHEDULERS), None)


def adds_noise(scheduler: Any) -> bool:
    """Does this scheduler add noise at every step?"""
    kind, config = kind_of(scheduler), getattr(scheduler, "config", None)
    algorithm = str(getattr(config, "algorithm_type", None) or "")
    return (
        (kind is not None and kind.adds_noise)
        or algorithm.startswith("sde-")
        or bool(getattr(config, "stochastic_sampling", False))
    )


def order_of(scheduler: Any) -> int:
    """The order of a scheduler's steps."""
    kind = kind_of(scheduler)
    configured = getattr(getattr(scheduler, "config", None), "solver_order", None)
    if configured is not None:
        return int(configured)
    return kind.order if kind is not None else int(getattr(scheduler, "order", 1))


def options() -> list[str]:
    """The names of schedulers on the command line."""
    return sorted(row.option for row in OFFERED.values())


def by_option(option: str, flow: bool) -> Kind:
    """The scheduler with this name on the command line, for a flow model or a noise model."""
    rows = {row.option: row for row in OFFERED.values()}
    return rows.get(f"flow-{option}", rows[option]) if flow else rows[option]
