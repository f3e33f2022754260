"""SGLang-Diffusion: its own denoising stages, and its backend that runs diffusers pipelines.

`register` is called by SGLang in each of its processes (entry point `sglang.multimodal_gen.plugins`). The state of a
request lives in the context of its denoising loop, so requests share nothing.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from thg.errors import UnsupportedPipelineError
from thg.serving.request import (
    KEY,
    VARIABLE,
    Report,
    ServedRun,
    ServerSetting,
    accelerated,
    count_request,
    run_of,
    server_setting,
)

logger = logging.getLogger(__name__)

LOOP = "pipelines_core.stages.denoising.DenoisingStage"
GATE, RUN = "cfg_gate_state", "thg"  # the dictionary of the loop that reaches each prediction, and our key in it
SEEN = "thg_seen"  # in what belongs to the request: its loop has passed here
EXTRA = "diffusers_kwargs"  # the request's parameters that SGLang passes on as they are
HEADER = b"x-thg"  # of an HTTP answer


def register() -> None:
    """Registers the hooks, if the server is switched on."""
    setting = server_setting()
    if setting is None:
        return
    from sglang.multimodal_gen.runtime.platforms.plugins import HookRegistry, HookType

    logger.info("thg: %s=%s", VARIABLE, setting.text)
    hooks, after, around = Hooks(setting), HookType.AFTER, HookType.AROUND
    for target, hook, when in (
        (f"{LOOP}._init_cfg_gate_state", hooks.begin, after),
        (f"{LOOP}._predict_noise_with_cfg", hooks.predict, around),
        (f"{LOOP}._run_denoising_loop", hooks.end, after),
        ("pipelines.diffusers_pipeline.DiffusersExecutionStage.forward", hooks.pipeline, around),
        ("pipelines_core.executors.pipeline_executor.PipelineExecutor.execute_with_profiling", hooks.answered, after),
        ("utils.perf_logger.RequestMetrics.to_dict", add_report, after),
        ("entrypoints.http_server.create_app", add_header, after),
        ("entrypoints.openai.utils.add_common_data_to_response", note_report, after),
    ):
        HookRegistry.register(f"sglang.multimodal_gen.runtime.{target}", hook, when)


class Hooks:
    """What runs in SGLang's methods. A hook around a method gets the method first, one after it the result."""

    def __init__(self, setting: ServerSetting) -> None:
        self._setting = setting

    # -- SGLang's own stages

    def begin(self, _: None, stage: Any, ctx: Any, batch: Any, server_args: Any) -> None:
        """A loop begins: its time steps and scheduler are set."""
        batch.extra[SEEN] = True
        planned = self._setting.of_request(batch.extra.get(EXTRA))
        if planned is None or ctx.is_warmup:
            return
        if reason := _obstacle(stage, ctx, batch):
            _as_it_is(batch, reason)
            return
        branches = len(ctx.cfg_policy.branches) if ctx.cfg_policy is not None else 1
        scale = server_args.pipeline_config.get_classifier_free_guidance_scale(batch, batch.guidance_scale)
        run = run_of(
            ctx.scheduler,
            ctx.timesteps,
            branches=branches,
            guidance_scale=scale if branches > 1 else None,
            step_arguments=ctx.extra_step_kwargs,
        )
        ctx.extra[GATE][RUN] = ServedRun(planned, run)

    def predict(self, original: Callable[..., Any], stage: Any, *args: Any, **kwargs: Any) -> Any:
        """The guided prediction of a step."""
        served = (kwargs.get(GATE) or {}).get(RUN)
        if served is None:
            return original(stage, *args, **kwargs)
        return served.step(
            kwargs["timestep_index"],
            lambda: original(stage, *args, **kwargs),
            model=kwargs["current_model"],
            branches=len(kwargs["cfg_policy"].branches),
            state=kwargs["latents"],
        )

    def end(self, _: Any, stage: Any, ctx: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        """A loop has ended."""
        served = (ctx.extra.get(GATE) or {}).pop(RUN, None)
        if served is not None:
            self._publish(batch, served.report())

    # -- diffusers pipelines

    def pipeline(self, original: Callable[..., Any], stage: Any, batch: Any, server_args: Any) -> Any:
        """A call of a diffusers pipeline."""
        batch.extra[SEEN] = True
        extra = batch.extra.get(EXTRA)
        planned = self._setting.of_request(extra)
        if isinstance(extra, dict):
            extra.pop(KEY, None)  # the pipeline does not know it
        if planned is None or batch.is_warmup:
            return original(stage, batch, server_args)
        try:
            result, report = accelerated(stage.diffusers_pipe, planned, lambda: original(stage, batch, server_args))
        except UnsupportedPipelineError as error:
            _as_it_is(batch, str(error))
            return original(stage, batch, server_args)
        self._publish(batch, report)
        return result

    # -- every request

    def answered(self, _: Any, executor: Any, stages: Any, batch: Any, server_args: Any) -> None:
        """A request has passed all stages."""
        if batch.is_warmup or batch.extra.pop(SEEN, False) or self._setting.of_request(batch.extra.get(EXTRA)) is None:
            return
        names = ", ".join(type(stage).__name__ for stage in stages)
        _as_it_is(batch, f"SGLang's common denoising loop is in none of {names}")

    def _publish(self, batch: Any, report: Report) -> None:
        logger.info("thg: request %s: %s", _name(batch), report)
        if batch.metrics is not None:
            batch.metrics.thg = asdict(report)
        if _has_metrics():
            count_request(report.evaluations, report.plain_evaluations)


def _name(batch: Any) -> str:
    """Of a request; one that does not come from the server has none."""
    return str(batch.request_id or "-")


def _as_it_is(batch: Any, reason: str) -> None:
    logger.info("thg: request %s runs as it is: %s", _name(batch), reason)


def own_method(stage: type) -> str:
    """A method of the step that a stage has replaced, so that the hooks do not see what reaches its scheduler."""
    from sglang.multimodal_gen.runtime.pipelines_core.stages.denoising import DenoisingStage

    names = ("_run_denoising_step", "_predict_noise_with_cfg")
    return next((name for name in names if getattr(stage, name) is not getattr(DenoisingStage, name)), "")


def _obstacle(stage: Any, ctx: Any, batch: Any) -> str:
    """Why a request cannot leap, if so."""
    if own := own_method(type(stage)):
        return f"{type(stage).__name__} has a method {own} of its own"
    if (getattr(batch, "progressive_mode", None) or "fullres") != "fullres":
        return "its resolution grows within the run"
    if getattr(batch, "rollout", False):
        return "its rollout adds noise at every step"
    if stage._cache_dit_requested_for_batch(batch) or getattr(batch, "enable_teacache", False):
        return "a cache inside the network counts its calls"
    if ctx.extra[GATE]["active"]:
        return "its cfg_gate_step leaves evaluations out already"
    return ""


# -- the report


def _has_metrics() -> bool:
    """Does the server have a metrics endpoint to which this rank publishes?"""
    from sglang.multimodal_gen.runtime.observability.metrics import get_metrics

    return get_metrics() is not None


def add_report(result: dict[str, Any], metrics: Any) -> dict[str, Any]:
    """The metadata of a result in Python, and of the performance log."""
    return {**result, "thg": metrics.thg} if hasattr(metrics, "thg") else result


_answered: ContextVar[list[bytes]] = ContextVar("reports of the HTTP request that is being answered")


def note_report(_: Any, response: Any, request_id: str, result: Any) -> None:
    """The server makes an answer from a result. Its format has no field for the report, so that becomes a header."""
    if hasattr(result.metrics, "thg"):
        _answered.get([]).append(json.dumps(result.metrics.thg).encode())


def add_header(app: Any, *args: Any, **kwargs: Any) -> None:
    """The server makes its application."""
    app.add_middleware(ReportHeader)


class ReportHeader:
    """Adds the report to the headers of an answer (ASGI)."""

    def __init__(self, app: Callable[..., Any]) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Callable[..., Any]) -> None:
        found: list[bytes] = []
        _answered.set(found)

        async def with_header(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *((HEADER, report) for report in found)]}
            await send(message)

        await self._app(scope, receive, with_header)
