"""Runs one comparison: plain CFG, then thg, from the same seeds, with an event for each step. Also tunes, and loads
another model."""

from __future__ import annotations

import hashlib
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image, UnidentifiedImageError

from thg.calibration import tune
from thg.distribution import versions
from thg.errors import THGError
from thg.models import SHIPPED
from thg.models.pretrained import Source, call_arguments
from thg.plans.plan import Plan
from thg.plans.planners import Choice
from thg.profiles.profile import Profile
from thg.sampling import SeededRun, denoisers, seeded_run, steps_at_cost
from thg.studio import planning
from thg.studio.jobs import Cancelled, Emit
from thg.studio.model import Model, local_models
from thg.studio.results import Previews, decibels, for_page
from thg.studio.specs import PlanRequest, RunRequest, RunSettings, TunedSpec, TuneRequest

Side = Literal["plain", "thg", "fewer"]
MOST_PIXELS = 50_000_000  # of a picture to start from
KEPT = 4  # cached results of plain CFG: when only the plan changes, only thg runs again


class Engine:
    """The model and its runs. `compare`, `tune` and `switch` are called from one thread only; `plan` from any.

    source: how the model was loaded, for others like it. library: a folder of further models.
    """

    def __init__(self, model: Model, source: Source | None = None, library: Path | None = None) -> None:
        self.model = model
        self._first, self._profile = model.key, model.profile
        self._source = source
        self._library = library
        self._plain: OrderedDict[str, SeededRun] = OrderedDict()
        self._warm = False

    def plan(self, request: PlanRequest) -> tuple[Plan, str]:
        """The plan, and a note on it (may be empty)."""
        model, run = self.model, self.model.run(request)
        tuned = model.tuned(request.scheduler) if isinstance(request.plan, TunedSpec) else None
        plan = planning.make_plan(request.plan, run, model.profile, tuned)
        return plan, planning.note(request.plan, plan, run, model.profile, tuned)

    def profile_for_page(self, profile: Profile) -> dict[str, Any]:
        """The charts of the profile tab, and the initial ratio of its slider."""
        run = self.model.run(RunSettings(steps=profile.steps, guidance_scale=profile.about.guidance_scale))
        return {**planning.profile_for_page(profile), "rho": planning.first_rho(profile, run)}

    # -- models

    def models(self) -> dict[str, Source]:
        """The models that can be chosen, by name: the first one, the shipped ones, those below the folder."""
        if self._source is None:
            return {}
        others = {str(name): str(name) for name in SHIPPED}
        if self._library is not None:
            others |= {name: f"{self._library}/{name}" for name in local_models(self._library)}
        others.pop(self._first, None)
        return {self._first: self._source} | {name: _like(self._source, model) for name, model in others.items()}

    def switch(self, name: str, emit: Emit, cancelled: threading.Event) -> None:
        """Loads another model of the list; the present one stays if that fails."""
        source = self.models().get(name)
        if source is None:
            raise THGError(f"there is no model {name!r} here")
        emit("loading", {"name": name})
        model = Model.load(source, self._profile if name == self._first else None, key=name)
        self.model, self._warm = model, False
        self._plain.clear()
        emit("done", model.describe())

    # -- tuning

    def tune(self, request: TuneRequest, emit: Emit, cancelled: threading.Event) -> None:
        """Compares runs with plain ones, and says what was reached."""
        with self._prepared(self.model.pipe, request, cancelled) as pipe:
            tuned = tune(
                pipe,
                request.prompts,
                request.error,
                steps=request.steps,
                guidance_scale=request.guidance_scale,
                call=self.model.shipped.call,
                progress=lambda done, most: emit("tuning", {"done": done, "of": most}),
            )
        emit("done", {"sentence": f"{tuned}.".capitalize(), "kept": tuned.kept})

    # -- runs

    def compare(self, request: RunRequest, plan: Plan, emit: Emit, cancelled: threading.Event) -> None:
        """Both sides; raises `Cancelled` at the next call of the network once the event is set."""
        self._warm_up(request, emit, cancelled)
        drawn = planning.for_page(request.plan, plan)
        emit("started", {**drawn, "seeds": list(request.seeds)})
        key = hashlib.sha256(request.model_dump_json(exclude={"plan", "fewer_steps"}).encode()).hexdigest()
        plain = self._plain.get(key)
        remembered = plain is not None
        if plain is None:
            plain = self._plain[key] = self._side("plain", request, False, emit, cancelled)
            while len(self._plain) > KEPT:
                self._plain.popitem(last=False)
        _tell(emit, "plain", plain, self._about(request, plain), remembered)
        tuned = self.model.tuned(request.scheduler) if isinstance(request.plan, TunedSpec) else None
        ours = self._side("thg", request, tuned or plan, emit, cancelled)
        assert ours.summary is not None
        _tell(emit, "thg", ours, self._about(request, ours))
        notes = self.model.shipped.objection(request.prompt), ours.summary.note
        done: dict[str, Any] = {
            "psnr": decibels(ours.output, plain.output),
            "script": self.model.script(request, drawn["python"], ours.output.kind, self._arguments(request)),
            "note": ". ".join(f"{note[0].upper()}{note[1:]}" for note in notes if note),
            "estimated_error": ours.summary.estimated_error,
        }
        if request.fewer_steps:
            steps = steps_at_cost(request.steps, ours.nfe, plain.nfe)
            shorter = request.model_copy(update={"steps": steps})
            fewer = self._side("fewer", shorter, False, emit, cancelled)
            _tell(emit, "fewer", fewer, self._about(shorter, fewer))
            done["psnr_fewer"] = decibels(fewer.output, plain.output)
        emit("done", done)

    def _warm_up(self, request: RunRequest, emit: Emit, cancelled: threading.Event) -> None:
        """Two steps before the first run: the first steps are slow and would count for plain CFG."""
        if not self._warm:
            emit("warming", {})
            strength = None if request.strength is None else 1.0
            short = request.model_copy(update={"steps": 2, "scheduler": None, "strength": strength})
            self._side("plain", short, False, lambda name, data: None, cancelled)
            self._warm = True

    @contextmanager
    def _prepared(self, pipe: Any, settings: RunSettings, cancelled: threading.Event) -> Iterator[Any]:
        """The pipeline with the scheduler of the settings; a call of its network raises `Cancelled` if it is."""

        def stop_if_cancelled(*call: Any) -> None:
            if cancelled.is_set():
                raise Cancelled

        own, pipe.scheduler = pipe.scheduler, self.model.schedulers.make(settings.scheduler)
        hooks = [network.register_forward_pre_hook(stop_if_cancelled) for network in denoisers(pipe)]
        try:
            yield pipe
            stop_if_cancelled()
        finally:
            for hook in hooks:
                hook.remove()
            pipe.scheduler = own

    def _side(
        self, side: Side, request: RunRequest, plan: Choice | bool, emit: Emit, cancelled: threading.Event
    ) -> SeededRun:
        """One side; plan: False is plain CFG."""
        calls = self.model.run(request).steps
        call = self._arguments(request)
        with self._prepared(self._pipe(request), request, cancelled) as pipe:
            previews = Previews(pipe, calls)

            def after_step(step: int, latents: Any) -> None:
                if cancelled.is_set():  # nothing else is called at a step that the network skips
                    raise Cancelled
                emit("step", {"side": side, "step": step + 1, "of": calls, "previews": previews.after(step, latents)})

            done = seeded_run(pipe, {**call, **self._callback(after_step)}, request.seeds, plan)
        return replace(done, seconds=done.seconds - previews.seconds)

    def _pipe(self, request: RunRequest) -> Any:
        return self.model.pipe if request.image is None else self.model.from_picture

    def _about(self, request: RunRequest, result: SeededRun) -> list[dict[str, Any]]:
        """How each picture of a side was made, for its metadata."""
        common = {
            "model": self.model.name,
            "prompt": request.prompt,
            "negative_prompt": request.negative_prompt,
            "scheduler": request.scheduler or self.model.schedulers.original_name,
            "steps": request.steps,
            "guidance_scale": request.guidance_scale,
            **({} if request.width is None else {"width": request.width}),
            **({} if request.height is None else {"height": request.height}),
            **({"image": request.image_name, "strength": request.strength} if request.image is not None else {}),
            "dtype": str(self.model.pipe.dtype).removeprefix("torch."),
            "versions": versions(),
        }
        return [{**common, "seed": seed, **result.cost(number)} for number, seed in enumerate(request.seeds)]

    def _arguments(self, request: RunRequest) -> dict[str, Any]:
        taken = {name: getattr(request, name) for name in ("width", "height") if name in self.model.takes}
        negative = request.negative_prompt if "negative_prompt" in self.model.takes else ""
        return call_arguments(
            self._pipe(request),
            [request.prompt] * request.batch,
            steps=request.steps,
            guidance_scale=request.guidance_scale,
            negative_prompt=negative or None,
            start=None if request.image is None else _picture(request.image),
            strength=request.strength,
            **taken,
            **self.model.shipped.call,
        )

    def _callback(self, after_step: Any) -> dict[str, Any]:
        """The pipeline's own callback after each step; without one there is no progress."""
        if "callback_on_step_end" in self.model.takes:

            def on_step_end(pipe: Any, step: int, time: Any, tensors: dict[str, Any]) -> dict[str, Any]:
                after_step(step, tensors.get("latents"))
                return tensors

            return {"callback_on_step_end": on_step_end}
        if "callback" in self.model.takes:
            return {"callback": lambda step, time, latents: after_step(step, latents), "callback_steps": 1}
        return {}


def _like(source: Source, model: str) -> Source:
    """Another model on the same device, in the same precision."""
    other = replace(source, model=model, variant=None, lora=())
    return other if other.single else replace(other, config=None)


def _tell(emit: Emit, side: Side, result: SeededRun, how: list[dict[str, Any]], remembered: bool = False) -> None:
    emit(
        "side",
        {
            "side": side,
            "nfe": result.nfe,
            "seconds": result.seconds,
            "remembered": remembered,
            "items": for_page(result.output, how),
        },
    )


def _picture(file: bytes) -> Image.Image:
    """A picture of a client: of the usual formats only, and not larger than the memory."""
    try:
        with Image.open(io.BytesIO(file), formats=("PNG", "JPEG", "WEBP")) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise THGError(f"the picture has more than {MOST_PIXELS // 10**6} million pixels: make it smaller")
            picture.load()
            return picture
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError):
        raise THGError("this file is not a picture: drop a PNG, JPEG or WebP") from None
