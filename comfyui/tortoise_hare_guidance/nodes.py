"""The nodes: one makes a model's runs faster, one reports what a run has saved."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import comfy.model_patcher
import comfy.utils
from comfy_api.latest import ComfyExtension, io

from .core.errors import PlanError
from .report import Report, Reports, ancestors
from .session import KEY, OUTER_SAMPLE, Session
from .settings import DEFAULT_PRESET, PRESETS, Settings, step_list

NAME = "Tortoise and Hare Guidance"
SEARCH = ["thg", "tortoise", "hare", "faster", "speed", "accelerate", "skip", "cache", "cfg", "guidance"]
NO_RUN = (
    f"No run of {NAME} ended with these latents. Connect the output of the sampler that has the node's model, directly."
)

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
        report = session.report()
        log.info("%s: %s", NAME, report.text())
        reports.add(report, latents)
        return latents

    return outer_sample


def _known(kind: Any, *args: Any, **options: Any) -> Any:
    """An object of ComfyUI's interface, with those of the options that this version knows."""
    known = inspect.signature(kind).parameters
    return kind(*args, **{name: value for name, value in options.items() if name in known})


def _advanced(kind: Any, name: str, **options: Any) -> Any:
    """An input that few people need."""
    return _known(kind.Input, name, advanced=True, **options)


def _percent(name: str, default: float, tooltip: str) -> Any:
    """A position in the run, from 0 to 1."""
    return _advanced(io.Float, name, default=default, min=0.0, max=1.0, step=0.01, tooltip=tooltip)


class TortoiseHareGuidance(io.ComfyNode):  # type: ignore[misc]
    @classmethod
    def define_schema(cls) -> io.Schema:
        return _known(
            io.Schema,
            node_id="TortoiseHareGuidance",
            display_name=NAME,
            category="model/patch",
            description="Faster sampling: the network runs at some of the calls only, its output is predicted in "
            "between, and predictions are corrected. Works with guidance (cfg) and without, with any sampler that adds "
            "no noise. The picture stays nearly the same.",
            search_aliases=SEARCH,
            inputs=[
                io.Model.Input("model"),
                io.Combo.Input(
                    "preset",
                    options=list(PRESETS),
                    default=DEFAULT_PRESET,
                    tooltip="quality: closest to the picture without the node; balanced: a difference that is hard to "
                    "see; fast: a visible one. off: everything is evaluated.",
                ),
                _advanced(
                    io.Float,
                    "error",
                    default=0.0,
                    min=0.0,
                    max=0.5,
                    step=0.001,
                    round=0.0001,
                    tooltip="Instead of the preset: how far the result may be from the one without the node. 0.01 is "
                    "1 %, the preset balanced. More is faster. 0: the preset.",
                ),
                _advanced(
                    io.Float,
                    "evaluations",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="Instead of an error: the share of the network's calls to evaluate. 0.5 is twice as fast. "
                    "0: as many as the error needs.",
                ),
                _advanced(
                    io.String,
                    "steps",
                    default="",
                    tooltip='Instead of both: the steps at which the network runs, such as "0-4, 6, 9-28:3".',
                ),
                _percent("start_percent", 0.0, "Before this part of the run, everything is evaluated."),
                _percent("end_percent", 1.0, "After this part of the run, everything is evaluated."),
                _advanced(
                    io.Combo,
                    "corrector",
                    options=["auto", "off"],
                    default="auto",
                    tooltip="Correct the errors of predictions, at no cost, where the sampler allows it.",
                ),
                _advanced(io.Boolean, "verbose", default=False, tooltip="Log the plan of each run."),
            ],
            outputs=[io.Model.Output(tooltip="The model, for any sampler.")],
        )

    @classmethod
    def validate_inputs(cls, steps: str = "") -> bool | str:
        try:
            step_list(steps or "")
        except PlanError as error:
            return str(error)
        return True

    @classmethod
    def execute(
        cls,
        model: Any,
        preset: str = DEFAULT_PRESET,
        error: float = 0.0,
        evaluations: float = 0.0,
        steps: str = "",
        start_percent: float = 0.0,
        end_percent: float = 1.0,
        corrector: str = "auto",
        verbose: bool = False,
    ) -> io.NodeOutput:
        settings = Settings(
            error or PRESETS[preset],
            evaluations,
            step_list(steps),
            start_percent,
            end_percent,
            corrector == "auto",
            verbose,
        )
        patched = model.clone()
        patched.remove_wrappers_with_key(OUTER_SAMPLE, KEY)  # a second node on a model replaces the first
        patched.add_wrapper_with_key(OUTER_SAMPLE, KEY, guided(settings))
        return io.NodeOutput(patched)


class TortoiseHareReport(io.ComfyNode):  # type: ignore[misc]
    @classmethod
    def define_schema(cls) -> io.Schema:
        return _known(
            io.Schema,
            node_id="TortoiseHareReport",
            display_name="Tortoise and Hare Report",
            category="model/patch",
            description="What the run that made these latents has saved, and how far the result is from the one "
            "without the node, by estimate.",
            search_aliases=SEARCH,
            inputs=[io.Latent.Input("samples", tooltip="The output of a sampler.")],
            outputs=[io.Latent.Output("latent", tooltip="The same latents."), io.String.Output("report")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, samples: dict[str, Any]) -> io.NodeOutput:
        latents = samples["samples"]
        if latents.is_nested:
            latents, _ = comfy.utils.pack_latents(latents.unbind())
        hidden = cls.hidden
        nodes = ancestors(hidden.prompt, hidden.unique_id) if hidden is not None and hidden.prompt else set()
        report = reports.find(latents, nodes) or Report(note=NO_RUN)
        return io.NodeOutput(samples, report.text(), ui=report.shown())


class Nodes(ComfyExtension):  # type: ignore[misc]
    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TortoiseHareGuidance, TortoiseHareReport]


async def comfy_entrypoint() -> Nodes:
    return Nodes()
