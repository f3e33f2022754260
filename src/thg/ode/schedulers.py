"""diffusers' schedulers: the table of their kinds, and how the grid of a run is read from one.

Imports nothing from diffusers: a scheduler is identified by the names of its classes.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from thg.errors import ScheduleError
from thg.ode.outputs import Array, Node, Prediction, log_snr
from thg.ode.schedule import FlowCurve, NoiseCurve, Schedule, TableCurve

Grid = Literal["alphas", "sigmas", "exploding sigmas"]

NOISE: tuple[Prediction, ...] = ("epsilon", "v_prediction", "sample")
FLOW: tuple[Prediction, ...] = ("flow",)


@dataclass(frozen=True)
class SchedulerKind:
    """One kind of scheduler.

    name: its class in diffusers. label: its display name. option: its name on the command line; "" is not offered
    there. order: of its steps, if no `solver_order` is configured. predicts: the kinds of network that it supports.
    grid: how its noise levels are stored, if they can be read exactly. instead: of one that adds noise at every step,
    the most similar one that does not. settings: of a variant, in addition to the settings of the model.

    All that add no noise are linear in the network's outputs, unless they are configured to clip or threshold.
    """

    name: str
    label: str
    option: str = ""
    order: int = 1
    predicts: tuple[Prediction, ...] = NOISE
    grid: Grid | None = None
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
    SchedulerKind("DDIMScheduler", "DDIM", "ddim", grid="alphas"),
    SchedulerKind("EulerDiscreteScheduler", "Euler", "euler", grid="exploding sigmas"),
    SchedulerKind("DPMSolverMultistepScheduler", "DPM++ 2M", "dpm", 2, NOISE + FLOW, "sigmas"),
    SchedulerKind("DPMSolverSinglestepScheduler", "DPM++ 2S", "dpm-single", 2, NOISE, "sigmas"),
    SchedulerKind("UniPCMultistepScheduler", "UniPC", "unipc", 2, NOISE + FLOW, "sigmas"),
    SchedulerKind("DEISMultistepScheduler", "DEIS", "deis", 2, NOISE + FLOW, "sigmas"),
    SchedulerKind("HeunDiscreteScheduler", "Heun", "heun", 2),
    SchedulerKind("KDPM2DiscreteScheduler", "DPM2", "dpm2", 2),
    SchedulerKind("LMSDiscreteScheduler", "LMS", "lms", 4, NOISE, "exploding sigmas"),
    SchedulerKind("PNDMScheduler", "PNDM", "pndm", 4, ("epsilon", "v_prediction"), "alphas"),
    SchedulerKind("FlowMatchEulerDiscreteScheduler", "Euler (flow)", "flow-euler", 1, FLOW, "sigmas"),
    SchedulerKind("FlowMatchHeunDiscreteScheduler", "Heun (flow)", "flow-heun", 2, FLOW),
    SchedulerKind("CogVideoXDDIMScheduler", "DDIM (CogVideoX)"),
    SchedulerKind("EulerAncestralDiscreteScheduler", "Euler a", "euler-a", instead="EulerDiscreteScheduler"),
    SchedulerKind("KDPM2AncestralDiscreteScheduler", "DPM2 a", "dpm2-a", 2, instead="DPMSolverMultistepScheduler"),
    SchedulerKind(
        "DPMSolverMultistepScheduler",
        "DPM++ 2M SDE",
        "dpm-sde",
        order=2,
        instead="DPMSolverMultistepScheduler",
        settings=(("algorithm_type", "sde-dpmsolver++"),),
    ),
    SchedulerKind("DDPMScheduler", "DDPM", "ddpm", instead="DDIMScheduler"),
    SchedulerKind("DDPMWuerstchenScheduler", "DDPM (Wuerstchen)", instead="DDIMScheduler"),
    SchedulerKind("CogVideoXDPMScheduler", "DPM++ 2M SDE (CogVideoX)", order=2, instead="CogVideoXDDIMScheduler"),
    SchedulerKind("DPMSolverSDEScheduler", "DPM++ SDE", order=2, instead="DPMSolverMultistepScheduler"),
    SchedulerKind("SASolverScheduler", "SA-Solver", order=2, instead="UniPCMultistepScheduler"),
    SchedulerKind("LCMScheduler", "LCM", instead="DDIMScheduler"),
    SchedulerKind("TCDScheduler", "TCD", instead="DDIMScheduler"),
    SchedulerKind("FlowMatchLCMScheduler", "LCM (flow)", predicts=FLOW, instead="FlowMatchEulerDiscreteScheduler"),
)
SCHEDULERS = {row.name: row for row in _ROWS if not row.settings}
OFFERED = {row.key: row for row in _ROWS if row.option}
"""The schedulers that commands and studio offer."""


def kind_of(scheduler: Any) -> SchedulerKind | None:
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


def option_names() -> list[str]:
    """The names of schedulers on the command line."""
    return sorted(row.option for row in OFFERED.values())


def by_option(option: str, flow: bool) -> SchedulerKind:
    """The scheduler with this name on the command line, for a flow model or a noise model."""
    rows = {row.option: row for row in OFFERED.values()}
    return rows.get(f"flow-{option}", rows[option]) if flow else rows[option]


def read_schedule(scheduler: Any, steps: int | None = None) -> Schedule:
    """The grid of a diffusers scheduler, as its last `set_timesteps` left it.

    steps: instead of that, the grid of a run with so many steps; the scheduler itself is not changed.

    Reads DDIM, PNDM (with skip_prk_steps), Euler, LMS, DPMSolverMultistep, DPMSolverSinglestep, UniPC, DEIS and
    FlowMatchEuler, with any spacing, offset, shift or sigmas.
    """
    if steps is not None:
        scheduler = copy.deepcopy(scheduler)
        scheduler.set_timesteps(steps)
    kind = _readable(scheduler)
    if kind.grid == "alphas":
        return _from_alphas(scheduler)
    return _from_sigmas(scheduler, exploding=kind.grid == "exploding sigmas")


def scheduler_log_snr(scheduler: Any) -> Array:
    """log(alpha^2 / sigma^2) at each of `scheduler.timesteps`; works for every scheduler that has a noise level.

    Minus infinity at zero terminal SNR, infinity at clean data.
    """
    _require_timesteps(scheduler)
    count = len(scheduler.timesteps)
    sigmas = getattr(scheduler, "sigmas", None)
    if sigmas is not None and len(sigmas) >= count:
        sigma = _float64(sigmas)[:count]
        if hasattr(scheduler, "sigmas_interpol"):  # KDPM2: every second call is in the middle of a step
            sigma[1::2] = _float64(scheduler.sigmas_interpol)[1:count:2]
        if not _is_flow(scheduler):
            return log_snr(1.0, sigma)
        if getattr(scheduler.config, "invert_sigmas", False):
            sigma = 1 - sigma
        return log_snr(1 - sigma, sigma)
    if getattr(scheduler, "alphas_cumprod", None) is not None:
        alphas_cumprod = _float64(scheduler.alphas_cumprod)[_integers(scheduler.timesteps)]
        return log_snr(np.sqrt(alphas_cumprod), np.sqrt(1 - alphas_cumprod))
    raise ScheduleError(
        f"{type(scheduler).__name__} has neither `sigmas` nor `alphas_cumprod`, so its noise levels are unknown; "
        "write scheduler = diffusers.DDIMScheduler.from_config(scheduler.config)"
    )


def _readable(scheduler: Any) -> SchedulerKind:
    """The scheduler's kind if its grid can be read exactly; raises an error with the code to write otherwise."""
    given = type(scheduler).__name__
    kind, config = kind_of(scheduler), getattr(scheduler, "config", None)
    if adds_noise(scheduler):
        relative = kind.instead if kind is not None and kind.instead else given
        argument = ", algorithm_type='dpmsolver++'" if relative == given and hasattr(config, "algorithm_type") else ""
        argument = ", stochastic_sampling=False" if getattr(config, "stochastic_sampling", False) else argument
        raise ScheduleError(
            f"{given} adds fresh noise at every step, and the method needs a deterministic run; "
            f"write scheduler = diffusers.{relative}.from_config(scheduler.config{argument})"
        )
    if kind is None or kind.grid is None:
        raise ScheduleError(
            f"{given} is not a scheduler whose grid can be read; these are: "
            f"{', '.join(row.name for row in SCHEDULERS.values() if row.grid)}; "
            "write scheduler = diffusers.DPMSolverMultistepScheduler.from_config(scheduler.config)"
        )
    for flag, value, why in (
        ("invert_sigmas", True, "runs its time backwards"),
        ("timestep_type", "continuous", "has times that are not those of a training schedule"),
    ):
        if getattr(config, flag, None) == value:
            raise ScheduleError(f"{given} with {flag}={value!r} {why}, which is not supported; make it without {flag}")
    if kind.name == "PNDMScheduler" and not scheduler.config.skip_prk_steps:
        raise ScheduleError(
            f"{given} with skip_prk_steps=False begins with Runge-Kutta steps of four evaluations each; "
            "write scheduler = diffusers.PNDMScheduler.from_config(scheduler.config, skip_prk_steps=True)"
        )
    _require_timesteps(scheduler)
    return kind


def _require_timesteps(scheduler: Any) -> None:
    if getattr(scheduler, "num_inference_steps", None) is None:
        raise ScheduleError(
            f"the number of steps of {type(scheduler).__name__} is not set; write thg.read_schedule(scheduler, 50), or "
            "call scheduler.set_timesteps(50) first"
        )


def _from_alphas(scheduler: Any) -> Schedule:
    """DDIM and PNDM: noise levels looked up at integer training times; a step from t ends at t - T // N."""
    table = _float64(scheduler.alphas_cumprod)
    curve = TableCurve.from_alphas_cumprod(table)
    final = float(scheduler.final_alpha_cumprod)
    stride = scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    times = list(dict.fromkeys(_integers(scheduler.timesteps).tolist()))  # PNDM visits its second time twice

    def node(position: int, time: int) -> Node:
        level = table[time] if time >= 0 else final
        return Node(float(position), float(max(time, 0)), math.sqrt(level), math.sqrt(1 - level))

    landings = tuple(node(i + 1, t - stride) for i, t in enumerate(times))
    last = landings[-1]
    return Schedule(
        nodes=(*(node(i, t) for i, t in enumerate(times)), last),
        landings=landings,
        curve=curve,
        curve_times=(*map(float, times), float(curve.time_of(last.sigma / last.alpha))),
        prediction=prediction_of(scheduler),
    )


def _from_sigmas(scheduler: Any, exploding: bool) -> Schedule:
    """Schedulers that hold the sigma of every step: sigma/alpha, or sigma itself on the flow path."""
    times = _float64(scheduler.timesteps).tolist()
    sigmas = _float64(scheduler.sigmas)[: len(times) + 1]
    curve: NoiseCurve
    if _is_flow(scheduler):
        if prediction_of(scheduler) == "v_prediction":
            raise ScheduleError("v_prediction is not defined on flow sigmas; set prediction_type='flow_prediction'")
        curve = FlowCurve(float(scheduler.config.num_train_timesteps))
        alpha, sigma = 1 - sigmas, sigmas
        curve_times = sigmas * curve.at_noise
    else:
        curve = TableCurve.from_alphas_cumprod(_float64(scheduler.alphas_cumprod), sigmas.tolist())
        alpha = np.ones_like(sigmas) if exploding else 1 / np.sqrt(1 + sigmas**2)
        sigma = sigmas * alpha
        curve_times = curve.time_of(sigmas)
    times.append(curve.network_time(float(curve_times[-1])))
    nodes = tuple(
        Node(float(i), t, float(a), float(s)) for i, (t, a, s) in enumerate(zip(times, alpha, sigma, strict=True))
    )
    return Schedule(nodes, nodes[1:], curve, tuple(curve_times.tolist()), prediction_of(scheduler), exploding)


def _is_flow(scheduler: Any) -> bool:
    return (
        "FlowMatch" in "".join(base.__name__ for base in type(scheduler).__mro__)
        or bool(getattr(scheduler.config, "use_flow_sigmas", False))
        or getattr(scheduler.config, "prediction_type", None) == "flow_prediction"  # the FlowUniPC of engines
    )


def prediction_of(scheduler: Any) -> Prediction:
    """What the network of a diffusers scheduler predicts."""
    kinds: dict[str, Prediction] = {kind: kind for kind in get_args(Prediction)}
    kinds |= {"original_sample": "sample", "flow_prediction": "flow"}
    given = getattr(scheduler.config, "prediction_type", "flow")
    if given not in kinds:
        raise ScheduleError(f"prediction_type {given!r} is not known; it must be one of {', '.join(kinds)}")
    return kinds[given]


def _float64(values: Any) -> Array:
    """A copy in double precision."""
    return np.array(values.tolist() if isinstance(values, Tensor) else values, dtype=np.float64)


def _integers(values: Any) -> NDArray[np.int64]:
    return np.round(_float64(values)).astype(np.int64)
