"""The loaded pipeline: its name, its arguments, the description of a run before it starts, and the Python script that
makes the same picture without the studio."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import thg
from thg.errors import THGError
from thg.models import SHIPPED
from thg.models.pretrained import USUAL_STEPS, Source, accepted, image_to_image
from thg.models.scheduler_choice import Schedulers
from thg.models.shipped import ShippedModel, about
from thg.pipelines.api import usual_guidance
from thg.pipelines.describe import known_run
from thg.pipelines.identity import fingerprint, remembered
from thg.plans.run_info import RunInfo
from thg.plans.tolerance import DEFAULT_ERROR, Tuned
from thg.profiles.planner import require_same_network
from thg.profiles.profile import Profile, shipped_profile
from thg.sampling import denoisers, run_from_picture
from thg.studio.specs import DefaultSpec, RunRequest, RunSettings

TUNING_SAMPLES = 16


class Model:
    """A pipeline, with what the page needs to know about it.

    source: the Python code that loads it. shipped: what it can do, if it is a shipped one. batch: the page's initial
    number of pictures. profile: its profile; by default the one that thg ships for such a network. key: its name in the
    list of models.
    """

    def __init__(
        self,
        pipe: Any,
        name: str,
        source: Sequence[str],
        *,
        shipped: ShippedModel | None = None,
        batch: int = 1,
        profile: Profile | None = None,
        key: str | None = None,
    ) -> None:
        with thg.enabled(pipe):  # an unsupported pipeline is refused at start-up
            denoisers(pipe)
        self.pipe = pipe
        self.name = name
        self.key = key or name
        self.source = tuple(source)
        self.shipped = shipped or ShippedModel()
        self.batch = batch
        self.network = fingerprint(pipe)
        self.profile = profile or shipped_profile(self.network)
        self.schedulers = Schedulers(pipe.scheduler)
        self.takes = accepted(pipe)
        self.from_picture = _from_picture(pipe)
        if "prompt" not in self.takes:
            raise THGError(f"the studio needs a pipeline with prompts, but {type(pipe).__name__} takes none")
        self._runs: dict[tuple[str | None, int, float | None], RunInfo] = {}
        if profile is not None:  # refused now if it is of another network
            settings = RunSettings(steps=profile.steps, guidance_scale=profile.about.guidance_scale)
            require_same_network(profile, self.run(settings))

    @classmethod
    def load(cls, source: Source, profile: Profile | None = None, key: str | None = None) -> Model:
        """The pipeline of a source, with its profile. key: its name in the list of models."""
        pipe, is_shipped = source.load(), source.model in SHIPPED
        return cls(
            pipe,
            f"shipped {source.model} model" if is_shipped else Path(source.model).name,
            source.python(pipe),
            shipped=about(source.model),
            batch=4 if is_shipped else 1,  # small results: larger batches use the device better
            profile=profile,
            key=source.model if is_shipped else key,
        )

    def run(self, settings: RunSettings) -> RunInfo:
        """The description of a run before it starts; Heun and PNDM call the network more often than it has steps."""
        key = settings.scheduler, settings.steps, settings.strength
        if key not in self._runs:
            scheduler = self.schedulers.make(settings.scheduler)
            if settings.strength is None:
                self._runs[key] = known_run(scheduler, settings.steps)
            elif self.from_picture is None:
                raise THGError(f"{type(self.pipe).__name__} cannot start from a picture: remove it")
            else:
                self._runs[key] = run_from_picture(self.from_picture, scheduler, settings.steps, settings.strength)
        return replace(self._runs[key], guidance_scale=settings.guidance_scale, network=self.network)

    def tuned(self, scheduler: str | None) -> Tuned | None:
        """What `thg.tune` has measured with this scheduler, here or elsewhere."""
        other = copy.copy(self.pipe)  # a run in another thread does not notice
        other.scheduler = self.schedulers.make(scheduler)
        return remembered(other)

    def describe(self) -> dict[str, Any]:
        """For the page."""
        return {
            "name": self.name,
            "key": self.key,
            "pipeline": type(self.pipe).__name__,
            "device": str(self.pipe.device),
            "guidance_scale": self.shipped.guidance_scale or usual_guidance(self.pipe),
            "steps": self.shipped.steps or USUAL_STEPS,
            "batch": self.batch,
            "examples": self.shipped.examples,
            "tuning": self.shipped.calibration(TUNING_SAMPLES),
            "schedulers": [{"name": name, "label": label} for name, label in self.schedulers.labels.items()],
            "negative_prompt": "negative_prompt" in self.takes,
            "default_plan": DefaultSpec(kind="default", error=DEFAULT_ERROR).model_dump(exclude_none=True),
            "profile": self.profile is not None,
            "sized": {"width", "height"} <= self.takes,
            "from_picture": self.from_picture is not None,
        }

    # -- the script

    def script(self, request: RunRequest, choice: str, kind: str, call: dict[str, Any]) -> str:
        """Load, enable, run with the same seeds, save.

        choice: the second argument of `thg.enable`. call: the arguments of the run.
        """
        lines = ["import thg, torch", *self.source, *self.schedulers.source(request.scheduler)]
        if request.image is not None:
            start = call["image"][0]
            opened = f"ImageOps.exif_transpose(Image.open({request.image_name or 'start.png'!r}))"
            lines += [
                "from diffusers import AutoPipelineForImage2Image",
                "from PIL import Image, ImageOps",
                "pipe = AutoPipelineForImage2Image.from_pipe(pipe)",
                f"start = {opened}.convert({start.mode!r}).resize({start.size})",
            ]
        lines.sort(key=lambda line: not line.startswith(("import ", "from ")))  # a stable sort: imports first
        lines.append(f"thg.enable(pipe, {choice})")
        lines.append(f"made = pipe({', '.join(self._written(request, call))})")
        return "\n".join([*lines, _saving(kind, request.seed)]) + "\n"

    def _written(self, request: RunRequest, call: dict[str, Any]) -> list[str]:
        """The arguments of the call as Python code."""
        several = f" * {request.batch}" if request.batch > 1 else ""
        arguments = []
        for name, value in call.items():
            if name == "image":
                arguments.append(f"image=[start]{several}" if several else "image=start")
            elif isinstance(value, list) and name != "generator":  # the same for each seed
                one = f"[{value[0]!r}]{several}" if several else repr(value[0])
                arguments.append(one if name == "prompt" else f"{name}={one}")
            elif name not in ("generator", "output_type"):
                arguments.append(f"{name}={value!r}")
        seeds = f"range({request.seeds.start}, {request.seeds.stop})"
        one = f"torch.Generator().manual_seed({request.seed})"
        many = f"[torch.Generator().manual_seed(seed) for seed in {seeds}]"
        return [*arguments, f"generator={many if several else one}"]


def _saving(kind: str, first: int) -> str:
    if kind == "image":
        return f'[image.save(f"thg-{{seed}}.png") for seed, image in enumerate(made.images, {first})]'
    if kind == "audio":
        return f"sounds = made.audios  # one array for each seed from {first}"
    return f"videos = made.frames  # the frames for each seed from {first}"


def _from_picture(pipe: Any) -> Any:
    """The same networks as a pipeline that starts from a picture; None if there is none."""
    try:
        other = image_to_image(pipe)
    except THGError:
        return None
    other.set_progress_bar_config(disable=True)
    return other if {"image", "strength"} <= accepted(other) and hasattr(other, "get_timesteps") else None


def local_models(folder: Path) -> list[str]:
    """The models below a folder, as paths relative to it: folders of pipelines, and .safetensors files."""
    found = []
    for path, folders, files in os.walk(folder):
        if "model_index.json" in files:
            found.append(Path(path))
            folders.clear()  # its parts are no models
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
            found += [Path(path) / name for name in files if name.endswith(".safetensors")]
    return sorted(path.relative_to(folder).as_posix() for path in found)
