"""The loaded pipeline: what it is called, what it takes, and the schedulers that it can run with."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Final

import thg
from thg.adapter.identity import fingerprint
from thg.errors import THGError
from thg.guide import Run
from thg.profile import Profile
from thg.schedulers import scheduler_log_snr

SCHEDULERS: Final = {
    "DDIMScheduler": "DDIM",
    "EulerDiscreteScheduler": "Euler",
    "DPMSolverMultistepScheduler": "DPM++ 2M",
    "UniPCMultistepScheduler": "UniPC",
    "DEISMultistepScheduler": "DEIS",
    "HeunDiscreteScheduler": "Heun",
    "PNDMScheduler": "PNDM",
    "FlowMatchEulerDiscreteScheduler": "Euler (flow)",
}
"""Those offered, where the model's own scheduler says that it can be exchanged for them."""

Grid = tuple[tuple[float, ...], tuple[float, ...] | None]


class Model:
    """A pipeline, and what the page should know of it.

    source: the lines of Python that load it. own: the scheduler that it came with.
    """

    def __init__(
        self,
        pipe: Any,
        name: str,
        source: Sequence[str],
        *,
        guidance_scale: float | None = None,
        steps: int = 50,
        examples: Sequence[str] = (),
        profile: Profile | None = None,
    ) -> None:
        with thg.enabled(pipe):  # refuses now, and not at the first click, what thg cannot work with
            pass
        self.pipe = pipe
        self.name = name
        self.source = tuple(source)
        self.guidance_scale = guidance_scale or _usual_guidance(pipe)
        self.steps = steps
        self.examples = tuple(examples)
        self.profile = profile
        self.own = pipe.scheduler
        self.schedulers = _fitting(self.own)
        self.takes = frozenset(inspect.signature(type(pipe).__call__).parameters)
        self.guidance_name = "true_cfg_scale" if "true_cfg_scale" in self.takes else "guidance_scale"
        if "prompt" not in self.takes:
            raise THGError(f"the studio types prompts, but {type(pipe).__name__} takes none")
        self._grids: dict[tuple[str | None, int], Grid] = {}

    def scheduler(self, name: str | None) -> Any:
        """A fresh scheduler of this class with the model's settings; None is the model's own class."""
        if name is not None and name not in self.schedulers:
            raise THGError(
                f"this model cannot run with the scheduler {name!r}; it can with {', '.join(self.schedulers)}"
            )
        if name is None or name == type(self.own).__name__:
            return type(self.own).from_config(self.own.config)
        return next(cls for cls in self.own.compatibles if cls.__name__ == name).from_config(self.own.config)

    def run(self, scheduler: str | None, steps: int, guidance_scale: float) -> Run:
        """What is known of a run before it starts; Heun and PNDM call the network more often than `steps`."""
        if (scheduler, steps) not in self._grids:
            self._grids[scheduler, steps] = _grid(self.scheduler(scheduler), steps)
        times, log_snr = self._grids[scheduler, steps]
        order = {time: float(i) for i, time in enumerate(dict.fromkeys(times))}
        positions = tuple(order[time] for time in times)
        return Run(len(times), positions, guidance_scale, log_snr, times, fingerprint(self.pipe))

    def negative(self, text: str) -> str | None:
        """The negative prompt to pass on, or None for none; `true_cfg_scale` has no effect without one."""
        if "negative_prompt" not in self.takes:
            return None
        return text or (" " if self.guidance_name == "true_cfg_scale" else None)

    def describe(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "pipeline": type(self.pipe).__name__,
            "device": str(self.pipe.device),
            "guidance_scale": self.guidance_scale,
            "steps": self.steps,
            "examples": list(self.examples),
            "schedulers": [{"name": name, "label": label} for name, label in self.schedulers.items()],
            "negative_prompt": "negative_prompt" in self.takes,
            "profile": self.profile is not None,
            "sized": {"width", "height"} <= self.takes,
        }


def _fitting(own: Any) -> dict[str, str]:
    """Class name and label of each scheduler that can stand in for this one, which comes first."""
    name = type(own).__name__
    fitting = {cls.__name__ for cls in own.compatibles}
    others = {key: label for key, label in SCHEDULERS.items() if key in fitting and key != name}
    return {name: SCHEDULERS.get(name, name.removesuffix("Scheduler")), **others}


def _grid(scheduler: Any, steps: int) -> Grid:
    """The times of a run, and the log-SNR at each where the scheduler lets it be known."""
    shift = {"mu": 1.0} if scheduler.config.get("use_dynamic_shifting") else {}
    try:
        scheduler.set_timesteps(steps, **shift)
    except (ValueError, IndexError, RuntimeError) as error:
        raise THGError(f"{type(scheduler).__name__} cannot run {steps} steps: {error}") from error
    try:
        levels: tuple[float, ...] | None = tuple(scheduler_log_snr(scheduler).tolist())
    except THGError:
        levels = None
    return tuple(float(time) for time in scheduler.timesteps), levels


def _usual_guidance(pipe: Any) -> float:
    """The default of the pipeline's own call, where it is guidance at all."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    for name in ("true_cfg_scale", "guidance_scale"):
        value = parameters[name].default if name in parameters else None
        if isinstance(value, int | float) and value > 1:
            return float(value)
    return 5.0
