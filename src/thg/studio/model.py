"""The loaded pipeline: what it is called, what it takes, and the schedulers that it can run with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

import thg
from thg.errors import MissingExtraError, THGError
from thg.profile import Profile

SHIPPED: Final = ("eps", "flow")

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
        guidance_scale: float = 7.5,
        steps: int = 50,
        examples: Sequence[str] = (),
        profile: Profile | None = None,
    ) -> None:
        with thg.enabled(pipe):  # refuses now, and not at the first click, what thg cannot work with
            pass
        self.pipe = pipe
        self.name = name
        self.source = tuple(source)
        self.guidance_scale = guidance_scale
        self.steps = steps
        self.examples = tuple(examples)
        self.profile = profile
        self.own = pipe.scheduler
        self.schedulers = _fitting(self.own)
        self.takes = frozenset(inspect.signature(type(pipe).__call__).parameters)
        self.guidance_name = "true_cfg_scale" if "true_cfg_scale" in self.takes else "guidance_scale"
        if "prompt" not in self.takes:
            raise THGError(f"the studio types prompts, but {type(pipe).__name__} takes none")
        self._calls: dict[tuple[str | None, int], int] = {}

    def scheduler(self, name: str | None) -> Any:
        """A fresh scheduler of this class with the model's settings; None is the model's own class."""
        if name is not None and name not in self.schedulers:
            raise THGError(
                f"this model cannot run with the scheduler {name!r}; it can with {', '.join(self.schedulers)}"
            )
        if name is None or name == type(self.own).__name__:
            return type(self.own).from_config(self.own.config)
        return next(cls for cls in self.own.compatibles if cls.__name__ == name).from_config(self.own.config)

    def calls(self, scheduler: str | None, steps: int) -> int:
        """How often a run of so many steps calls the network; more often than `steps` with Heun and PNDM."""
        if (scheduler, steps) not in self._calls:
            made = self.scheduler(scheduler)
            shift = {"mu": 1.0} if made.config.get("use_dynamic_shifting") else {}
            try:
                made.set_timesteps(steps, **shift)
            except (ValueError, IndexError, RuntimeError) as error:
                raise THGError(f"{type(made).__name__} cannot run {steps} steps: {error}") from error
            self._calls[scheduler, steps] = len(made.timesteps)
        return self._calls[scheduler, steps]

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


def load(
    name: str,
    *,
    device: str | None = None,
    dtype: str = "float32",
    profile: str | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Model:
    """Loads a shipped model ("eps", "flow"), a folder, or a model of the Hugging Face hub; and a profile of it."""
    measured = None if profile is None else Profile.load(profile)
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name in SHIPPED:
        say(f"loading the shipped model {name!r} onto {device} ...")
        return _shipped(name, device, dtype, measured)
    say(f"loading {name} onto {device} ...")
    try:
        from diffusers import DiffusionPipeline
    except ImportError as error:
        raise MissingExtraError("the studio needs diffusers; write pip install 'thg[studio]'") from error
    try:
        pipe = DiffusionPipeline.from_pretrained(name, torch_dtype=getattr(torch, dtype)).to(device)
    except (OSError, ValueError) as error:
        raise THGError(f"cannot load {name!r}: {' '.join(str(error).split())[:300]}") from error
    source = (
        "from diffusers import DiffusionPipeline",
        f"pipe = DiffusionPipeline.from_pretrained({name!r}, torch_dtype=torch.{dtype}).to({device!r})",
    )
    return Model(pipe, Path(name).name, source, guidance_scale=_usual_guidance(pipe), profile=measured)


def _shipped(name: str, device: str, dtype: str, profile: Profile | None) -> Model:
    from thg.models import DEFAULT_GUIDANCE, EXAMPLE_PROMPTS, shipped_pipeline

    pipe = shipped_pipeline(name, device=device, dtype=getattr(torch, dtype))  # type: ignore[arg-type]
    kind = {"eps": "Stable Diffusion, tiny", "flow": "Stable Diffusion 3, tiny"}[name]
    settings = "" if device == "cpu" else f", device={device!r}"
    settings += "" if dtype == "float32" else f", dtype=torch.{dtype}"
    return Model(
        pipe,
        f"{kind} (shipped)",
        (f"pipe = thg.shipped_pipeline({name!r}{settings})",),
        guidance_scale=DEFAULT_GUIDANCE[name],  # type: ignore[index]
        examples=EXAMPLE_PROMPTS,
        profile=profile,
    )


def _usual_guidance(pipe: Any) -> float:
    """The default of the pipeline's own call, where it is guidance at all."""
    parameters = inspect.signature(type(pipe).__call__).parameters
    for name in ("true_cfg_scale", "guidance_scale"):
        value = parameters[name].default if name in parameters else None
        if isinstance(value, int | float) and value > 1:
            return float(value)
    return 5.0
