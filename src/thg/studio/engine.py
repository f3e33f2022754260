"""Runs one comparison: plain CFG, then thg, from the same seeds, with an event for each step."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Literal

import torch

from thg.counting import counted_rows
from thg.distribution import versions
from thg.pipelines import api
from thg.plans.plan import Plan
from thg.profiles.profile import Profile
from thg.studio import plans
from thg.studio.jobs import Cancelled, Emit
from thg.studio.media import Output, psnr
from thg.studio.model import Model
from thg.studio.previews import Previews
from thg.studio.script import reproduce
from thg.studio.specs import PlanRequest, RunRequest

Side = Literal["plain", "thg", "fewer"]
KEPT = 4  # cached results of plain CFG: when only the plan changes, only thg runs again


@dataclass(frozen=True)
class Result:
    """The result of one side. nfe: network evaluations per sample; seconds: without the previews.

    note, error: of thg's run; error is its estimated distance from plain CFG, for each seed.
    """

    output: Output
    nfe: int
    seconds: float
    note: str = ""
    error: tuple[float, ...] | None = None


class Engine:
    """The model and its runs. `compare` is called from one thread only; `plan` from any."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._plain: OrderedDict[str, Result] = OrderedDict()
        self._warm = False

    def plan(self, request: PlanRequest) -> tuple[Plan, str]:
        """The plan, and a note on it (may be empty)."""
        run = self.model.run(request.scheduler, request.steps, request.guidance_scale)
        plan = plans.make_plan(request.plan, run, self.model.profile)
        return plan, plans.note(request.plan, plan, run, self.model.profile)

    def profile_for_page(self, profile: Profile) -> dict[str, Any]:
        """The charts of the profile tab, and the initial ratio of its slider."""
        run = self.model.run(None, profile.steps, profile.about.guidance_scale)
        return {**plans.profile_for_page(profile), "rho": plans.first_rho(profile, run)}

    def compare(self, request: RunRequest, plan: Plan, emit: Emit, cancelled: threading.Event) -> None:
        """Both sides; raises `Cancelled` at the next call of the network once the event is set."""
        self._warm_up(request, emit, cancelled)
        drawn = plans.for_page(request.plan, plan)
        emit("started", {**drawn, "seeds": list(request.seeds)})
        key = request.model_dump_json(exclude={"plan", "fewer_steps"})
        plain = self._plain.get(key)
        remembered = plain is not None
        if plain is None:
            plain = self._side("plain", request, None, emit, cancelled)
            self._remember(key, plain)
        _tell(emit, "plain", plain, self._about(request, plain), remembered)
        hare = self._side("thg", request, plan, emit, cancelled)
        _tell(emit, "thg", hare, self._about(request, hare, plan))
        script = reproduce(self.model, request, drawn["python"], hare.output.kind)
        done: dict[str, Any] = {
            "psnr": psnr(hare.output, plain.output),
            "script": script,
            "note": ". ".join(filter(None, [self.model.objection(request.prompt), hare.note])),
            "estimated_error": hare.error,
        }
        if request.fewer_steps:
            steps = math.ceil(request.steps * hare.nfe / plain.nfe)  # never fewer evaluations than thg's
            shorter = request.model_copy(update={"steps": steps})
            fewer = self._side("fewer", shorter, None, emit, cancelled)
            _tell(emit, "fewer", fewer, self._about(shorter, fewer))
            done["psnr_fewer"] = psnr(fewer.output, plain.output)
        emit("done", done)

    def _warm_up(self, request: RunRequest, emit: Emit, cancelled: threading.Event) -> None:
        """Two steps before the first run: the first steps are slow and would count for plain CFG."""
        if not self._warm:
            emit("warming", {})
            short = request.model_copy(update={"steps": 2, "scheduler": None})
            self._side("plain", short, None, lambda name, data: None, cancelled)
            self._warm = True

    def _remember(self, key: str, result: Result) -> None:
        self._plain[key] = result
        while len(self._plain) > KEPT:
            self._plain.popitem(last=False)

    def _side(
        self, side: Side, request: RunRequest, plan: Plan | None, emit: Emit, cancelled: threading.Event
    ) -> Result:
        pipe = self.model.pipe
        calls = self.model.run(request.scheduler, request.steps, request.guidance_scale).steps
        pipe.scheduler = self.model.schedulers.make(request.scheduler)
        previews = Previews(pipe)

        def stop_if_cancelled(*call: Any) -> None:
            if cancelled.is_set():
                raise Cancelled

        def after_step(step: int, latents: Any) -> None:
            stop_if_cancelled()  # nothing else is called at a step that the network skips
            emit("step", {"side": side, "step": step + 1, "of": calls, "previews": previews.after(step, latents)})

        arguments = self._arguments(request) | self._callback(after_step)
        hook = self.model.denoiser.register_forward_pre_hook(stop_if_cancelled)
        started = time.perf_counter()
        try:
            if plan is None:
                with counted_rows(pipe) as rows:
                    result = pipe(**arguments)
                nfe, note, error = rows.count // request.batch, "", None
            else:
                with api.enabled(pipe, plan):
                    result, report = pipe(**arguments), api.summary(pipe)
                nfe, note, error = report.nfe, report.note, report.estimated_error
        finally:
            hook.remove()
            pipe.scheduler = self.model.schedulers.own
        stop_if_cancelled()
        seconds = time.perf_counter() - started - previews.seconds
        output = Output.of(result, pipe)
        if plan is None and output.kind == "video":  # the rows of a video may be its frames
            nfe = 2 * calls
        return Result(output, nfe, seconds, note, error)

    def _about(self, request: RunRequest, result: Result, plan: Plan | None = None) -> list[dict[str, Any]]:
        """How each picture of a side was made, for its metadata."""
        common = {
            "model": self.model.name,
            "prompt": request.prompt,
            "negative_prompt": request.negative_prompt,
            "scheduler": request.scheduler or self.model.schedulers.own_name,
            "steps": request.steps,
            "guidance_scale": request.guidance_scale,
            "dtype": str(self.model.pipe.dtype).removeprefix("torch."),
            "nfe": result.nfe,
            "plan": None if plan is None else plan.to_dict(),
            "versions": versions(),
        }
        return [{**common, "seed": seed} for seed in request.seeds]

    def _arguments(self, request: RunRequest) -> dict[str, Any]:
        takes, several = self.model.takes, request.batch > 1
        generators = [torch.Generator().manual_seed(seed) for seed in request.seeds]
        arguments: dict[str, Any] = {
            "prompt": [request.prompt] * request.batch if several else request.prompt,
            "num_inference_steps": request.steps,
            self.model.guidance_name: request.guidance_scale,
            "generator": generators if several else generators[0],
            "output_type": "np",
            **self.model.call,
        }
        if (negative := self.model.negative(request.negative_prompt)) is not None:
            arguments["negative_prompt"] = [negative] * request.batch if several else negative
        for name, value in (("width", request.width), ("height", request.height)):
            if value is not None and name in takes:
                arguments[name] = value
        return arguments

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


def _tell(emit: Emit, side: Side, result: Result, how: list[dict[str, Any]], remembered: bool = False) -> None:
    emit(
        "side",
        {
            "side": side,
            "nfe": result.nfe,
            "seconds": result.seconds,
            "remembered": remembered,
            "items": result.output.for_page(how),
        },
    )
