"""The loaded pipeline: its name, its arguments, and the description of a run before it starts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

import thg
from thg.errors import THGError
from thg.models.schedulers import Schedulers
from thg.pipelines.api import usual_guidance
from thg.pipelines.describe import known_run
from thg.pipelines.identity import fingerprint
from thg.pipelines.layouts import DENOISERS
from thg.plans.fidelity import DEFAULT_ERROR
from thg.plans.run import RunInfo
from thg.profiles.planner import require_same_network
from thg.profiles.profile import Profile, shipped_profile
from thg.studio.specs import DefaultSpec


class Model:
    """A pipeline, with what the page needs to know about it.

    source: the Python code that loads it. batch: the page's initial number of pictures. objection: a sentence about a
    prompt that it cannot follow, or nothing. call: further arguments for each of its calls. profile: its profile; by
    default the one that thg ships for such a network.
    """

    def __init__(
        self,
        pipe: Any,
        name: str,
        source: Sequence[str],
        *,
        guidance_scale: float | None = None,
        steps: int = 50,
        batch: int = 1,
        examples: Sequence[str] = (),
        objection: Callable[[str], str] = lambda prompt: "",
        call: Mapping[str, Any] | None = None,
        profile: Profile | None = None,
    ) -> None:
        with thg.enabled(pipe):  # an unsupported pipeline is refused at start-up
            pass
        self.pipe = pipe
        self.name = name
        self.source = tuple(source)
        self.guidance_scale = guidance_scale or usual_guidance(pipe)
        self.steps = steps
        self.batch = batch
        self.examples = tuple(examples)
        self.objection = objection
        self.call = dict(call or {})
        self.network = fingerprint(pipe)
        self.denoiser = _denoiser(pipe)
        self.profile = profile or shipped_profile(self.network)
        self.schedulers = Schedulers(pipe.scheduler)
        self.takes = frozenset(inspect.signature(type(pipe).__call__).parameters)
        self.guidance_name = "true_cfg_scale" if "true_cfg_scale" in self.takes else "guidance_scale"
        if "prompt" not in self.takes:
            raise THGError(f"the studio needs a pipeline with prompts, but {type(pipe).__name__} takes none")
        self._runs: dict[tuple[str | None, int], RunInfo] = {}
        if profile is not None:  # refused now if it is of another network
            require_same_network(profile, self.run(None, profile.steps, profile.about.guidance_scale))

    def run(self, scheduler: str | None, steps: int, guidance_scale: float) -> RunInfo:
        """The description of a run before it starts; Heun and PNDM call the network more often than `steps`."""
        if (scheduler, steps) not in self._runs:
            self._runs[scheduler, steps] = known_run(self.schedulers.make(scheduler), steps)
        return replace(self._runs[scheduler, steps], guidance_scale=guidance_scale, network=self.network)

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
            "batch": self.batch,
            "examples": list(self.examples),
            "schedulers": [{"name": name, "label": label} for name, label in self.schedulers.labels.items()],
            "negative_prompt": "negative_prompt" in self.takes,
            "default_plan": DefaultSpec(kind="default", error=DEFAULT_ERROR).model_dump(exclude_none=True),
            "profile": self.profile is not None,
            "sized": {"width", "height"} <= self.takes,
        }


def _denoiser(pipe: Any) -> torch.nn.Module:
    for name in DENOISERS:
        if isinstance(part := getattr(pipe, name, None), torch.nn.Module):
            return part
    raise THGError(f"the studio does not find the network in {type(pipe).__name__}")
