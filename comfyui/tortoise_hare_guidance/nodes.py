"""The nodes: one applies the guidance to a model, one reports the cost of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import comfy.model_patcher
import comfy.utils
from comfy_api.latest import ComfyExtension, io, ui
from server import PromptServer

from .core.plans.fidelity import DEFAULT_ERROR
from .report import Reports, text_of
from .session import KEY, OUTER_SAMPLE, Session
from .settings import Settings, step_list

log = logging.getLogger(__name__)
reports = Reports()


def guided(settings: Settings) -> Callable[..., Any]:
    """A wrapper around a whole run."""

    def outer_sample(executor: Any, *args: Any, **kwargs: Any) -> Any:
        guider = executor.class_obj
        options = guider.model_options
        session = Session(settings)
        try:
            guider.model_options = comfy.model_patcher.create_model_options_clone(options)
            session.install(guider.model_options)
            latents = executor(*args, **kwargs)
        finally:
            guider.model_options = options
            session.release()
        text = text_of(session)
        log.info(text)
        reports.add(text, latents)
        return latents

    return outer_sample


def _percent(name: str, default: float, tooltip: str) -> Any:
    """A position in the run, from 0 to 1."""
    return io.Float.Input(name, default=default, min=0.0, max=1.0, step=0.01, advanced=True, tooltip=tooltip)


class TortoiseHareGuidance(io.ComfyNode):  # type: ignore[misc]
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TortoiseHareGuidance",
            display_name="Tortoise and Hare Guidance",
            category="model/patch",
            description="Classifier-free guidance with fewer network evaluations: the negative branch runs at some "
            "steps only and is predicted in between. Works with every sampler node; the picture stays nearly the same.",
            search_aliases=["thg", "cfg", "speed", "skip uncond", "adaptive guidance", "negative prompt"],
            inputs=[
                io.Model.Input("model"),
                io.Float.Input(
                    "error",
                    default=DEFAULT_ERROR,
                    min=0.0,
                    max=0.5,
                    step=0.001,
                    round=0.0001,
                    tooltip="How far the result may be from plain guidance: 0.01 is 1 %, which is hard to see. More "
                    "is faster. 0 is plain guidance, bit for bit.",
                ),
                io.Float.Input(
                    "evaluations",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    advanced=True,
                    tooltip="Instead of an error: the share of plain guidance's network evaluations to spend, from 0.5 "
                    "to 1. 0.65 saves about a third. 0: as many as the error needs.",
                ),
                io.String.Input(
                    "steps",
                    default="",
                    advanced=True,
                    tooltip='Instead of both: the steps at which the negative branch runs, such as "0-4, 6, 9-28:3".',
                ),
                _percent("start_percent", 0.0, "Before this part of the run, guidance is plain."),
                _percent("end_percent", 1.0, "After this part of the run, guidance is plain."),
                io.Combo.Input(
                    "corrector",
                    options=["auto", "off"],
                    default="auto",
                    advanced=True,
                    tooltip="Correct the errors of predictions, at no cost. Not used with samplers that add noise.",
                ),
                io.Boolean.Input("verbose", default=False, advanced=True, tooltip="Log the plan of each run."),
            ],
            outputs=[io.Model.Output(tooltip="The model, for any sampler.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        error: float = DEFAULT_ERROR,
        evaluations: float = 0.0,
        steps: str = "",
        start_percent: float = 0.0,
        end_percent: float = 1.0,
        corrector: str = "auto",
        verbose: bool = False,
    ) -> io.NodeOutput:
        settings = Settings(
            error, evaluations, step_list(steps), start_percent, end_percent, corrector == "auto", verbose
        )
        patched = model.clone()
        patched.remove_wrappers_with_key(OUTER_SAMPLE, KEY)  # a second node on a model replaces the first
        patched.add_wrapper_with_key(OUTER_SAMPLE, KEY, guided(settings))
        return io.NodeOutput(patched)


class TortoiseHareReport(io.ComfyNode):  # type: ignore[misc]
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TortoiseHareReport",
            display_name="Tortoise and Hare Report",
            category="model/patch",
            description="The cost of the run that made these latents, compared with plain guidance.",
            inputs=[io.Latent.Input("samples", tooltip="The output of a sampler.")],
            outputs=[io.Latent.Output("latent", tooltip="The same latents."), io.String.Output("report")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, samples: dict[str, Any]) -> io.NodeOutput:
        latents = samples["samples"]
        if latents.is_nested:
            latents, _ = comfy.utils.pack_latents(latents.unbind())
        text = reports.find(latents) or (
            "No run with Tortoise and Hare Guidance ended with these latents. Connect the sampler's output directly."
        )
        if cls.hidden is not None and cls.hidden.unique_id:  # in a server: shown on the node
            PromptServer.instance.send_progress_text(text, cls.hidden.unique_id)
        return io.NodeOutput(samples, text, ui=ui.PreviewText(text))


class Nodes(ComfyExtension):  # type: ignore[misc]
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TortoiseHareGuidance, TortoiseHareReport]


async def comfy_entrypoint() -> Nodes:
    return Nodes()
