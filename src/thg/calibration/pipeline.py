"""Calibration of a diffusers pipeline, in normal runs of it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thg.calibration.grid import NoiseGrid
from thg.calibration.subject import checked_scale
from thg.errors import ProfileError
from thg.pipelines import enabled
from thg.pipelines.identity import fingerprint
from thg.plans.guide import GuideMaker
from thg.plans.run import RunInfo
from thg.seeds import generators


@dataclass
class Pipeline:
    """A pipeline of diffusers and its prompts."""

    pipe: Any
    prompts: list[Any]
    prompt_name: str
    arguments: dict[str, Any]
    steps: int
    guidance_scale: float
    seed: int

    @classmethod
    def of(
        cls,
        pipe: Any,
        prompts: Any,
        steps: int | None,
        guidance_scale: float | None,
        seed: int,
        call: Mapping[str, Any],
        guided: bool = True,
    ) -> Pipeline:
        """guided: there must be guidance."""
        if prompts is None or isinstance(prompts, str) or not len(prompts):
            raise ProfileError(
                "prompts must be a list with at least one prompt: calibrate(pipe, ['a red bicycle', ...])"
            )
        accepted = inspect.signature(type(pipe).__call__).parameters
        prompt_name = next((name for name in ("prompt", "class_labels") if name in accepted), None)
        if prompt_name is None or "num_inference_steps" not in accepted:
            raise ProfileError(
                f"{type(pipe).__name__} takes no prompt, or no num_inference_steps; thg cannot calibrate it as a "
                "pipeline. A denoiser of your own needs schedule= and x=: thg.calibrate(denoiser, conditions, x=noise, "
                "schedule=thg.Schedule.vp(50), guidance_scale=4)"
            )
        scale_name = "true_cfg_scale" if "true_cfg_scale" in accepted else "guidance_scale"
        steps = accepted["num_inference_steps"].default if steps is None else steps
        default = accepted[scale_name].default if scale_name in accepted else 1.0
        scale = default if guidance_scale is None else guidance_scale
        if guided:
            checked_scale(scale)
        if not isinstance(steps, int) or steps < 2:
            raise ProfileError(f"steps must be a whole number of at least 2, not {steps!r}")
        arguments = {**call, "num_inference_steps": steps}
        if scale_name in accepted:
            arguments[scale_name] = scale
        if "output_type" in accepted:
            arguments.setdefault("output_type", "latent")
        if unknown := sorted(set(arguments) - set(accepted)):
            raise ProfileError(f"{type(pipe).__name__} takes no argument {unknown[0]!r}")
        return cls(pipe, list(prompts), prompt_name, arguments, steps, scale, seed)

    @property
    def samples(self) -> int:
        return len(self.prompts)

    @property
    def guided(self) -> tuple[int, int]:
        return 0, self.steps

    def run(self, samples: Sequence[int], maker: GuideMaker) -> None:
        with enabled(self.pipe, maker), torch.no_grad():
            self.pipe(**self.batch(samples), **self.arguments)

    def batch(self, samples: Sequence[int]) -> dict[str, Any]:
        """The arguments of a run that differ from sample to sample."""
        return {self.prompt_name: [self.prompts[i] for i in samples], "generator": generators(self.seed, samples)}

    def grid(self, run: RunInfo) -> NoiseGrid:
        times = len(set(run.positions))
        if times > self.steps:
            raise ProfileError(
                f"{type(self.pipe.scheduler).__name__} calls the network at {times} times in {self.steps} steps; "
                "calibrate with another scheduler, such as DDIM"
            )
        if times < self.steps:
            raise ProfileError(
                f"a run of {self.steps} steps has {times} time steps; set steps= to the steps that the pipeline runs, "
                "and do not set strength or denoising_end"
            )
        return NoiseGrid.of(self.pipe.scheduler, run)

    def settings(self) -> dict[str, Any]:
        scheduler = self.pipe.scheduler
        return {
            "network": fingerprint(self.pipe),
            "model": self.about()["model"],
            # without the entries that diffusers adds to a scheduler's config in no fixed order
            "scheduler": [type(scheduler).__name__, {k: v for k, v in dict(scheduler.config).items() if k[:1] != "_"}],
            "arguments": self.arguments,
            "prompts": hashlib.sha256("\0".join(map(str, self.prompts)).encode()).hexdigest(),
            "noise": "thg.seeds",  # 0.1.0 drew other noise from the same seed
        }

    def about(self) -> dict[str, str]:
        """The model is named by the last part of its path, without the user's folders."""
        return {
            "pipeline": type(self.pipe).__name__,
            "network": fingerprint(self.pipe),
            "model": Path(str(getattr(self.pipe, "name_or_path", "") or "")).name,
            "scheduler": type(self.pipe.scheduler).__name__,
        }

    @contextmanager
    def quiet(self) -> Iterator[None]:
        before = dict(getattr(self.pipe, "_progress_bar_config", {}))
        self.pipe.set_progress_bar_config(**{**before, "disable": True})
        try:
            yield
        finally:
            self.pipe.set_progress_bar_config(**before)
