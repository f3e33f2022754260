"""The nodes: one that puts the guidance on a model, one that reports what a run has cost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import comfy.model_patcher
import comfy.utils
from comfy_api.latest import ComfyExtension, io, ui

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


class TortoiseHareGuidance(io.ComfyNode):  # type: ignore[misc]
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TortoiseHareGuidance",
            display_name="Tortoise and Hare Guidance",
            category="model/patch",
            description="Classifier-free guidance with fewer network evaluations: the negative branch runs at some "
            "steps only and is predicted in between. Works with every sampler node; the picture stays the same.",
            search_aliases=["thg", "cfg", "speed", "skip uncond", "adaptive guidance", "negative prompt"],
            inputs=[
                io.Model.Input("model"),
                io.Float.Input(
                    "evaluations",
                    default=0.65,
                    min=0.5,
                    max=1.0,
                    step=0.01,
                    tooltip="Share of plain guidance's network evaluations. 0.65 saves about a third; 1.0 is plain "
                    "guidance, bit for bit.",
                ),
                io.Float.Input(
                    "start_percent",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    advanced=True,
                    tooltip="Before this part of the run, guidance is plain.",
                ),
                io.Float.Input(
                    "end_percent",
                    default=1.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    advanced=True,
                    tooltip="After this part of the run, guidance is plain.",
                ),
                io.Combo.Input(
                    "corrector",
                    options=["auto", "off"],
                    default="auto",
                    advanced=True,
                    tooltip="Take back what a prediction got wrong, at no cost. Samplers that add noise go without.",
                ),
                io.String.Input(
                    "steps",
                    default="",
                    advanced=True,
                    tooltip='Run the negative branch at these steps instead of a share, such as "0-4, 6, 9-28:3".',
                ),
                io.Boolean.Input("verbose", default=False, advanced=True, tooltip="Log the plan of each run."),
            ],
            outputs=[io.Model.Output(tooltip="The model, for any sampler.")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        evaluations: float,
        start_percent: float = 0.0,
        end_percent: float = 1.0,
        corrector: str = "auto",
        steps: str = "",
        verbose: bool = False,
    ) -> io.NodeOutput:
        settings = Settings(evaluations, start_percent, end_percent, corrector == "auto", step_list(steps), verbose)
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
            description="What the run that made these latents has cost, and what plain guidance would have cost.",
            inputs=[io.Latent.Input("samples", tooltip="The output of a sampler.")],
            outputs=[io.Latent.Output("latent", tooltip="The same latents."), io.String.Output("report")],
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
        return io.NodeOutput(samples, text, ui=ui.PreviewText(text))


class Nodes(ComfyExtension):  # type: ignore[misc]
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TortoiseHareGuidance, TortoiseHareReport]


async def comfy_entrypoint() -> Nodes:
    return Nodes()
