"""vLLM-Omni: its own pipelines, and its adapter that runs diffusers pipelines.

`register` is called by vLLM-Omni in each of its processes (entry point `vllm_omni.general_plugins`). A worker runs one
batch of requests at a time; the state of a batch lives as long as its call of the pipeline. With step-wise execution
each request has a state of its own in the engine, and the run is part of it.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch

from thg.errors import PlanError, UnsupportedPipelineError
from thg.plans.planners import Planned
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

logger = logging.getLogger("vllm_omni.thg")  # the engine shows the lines of its own loggers

PREDICTIONS = ("predict_noise_maybe_with_cfg", "predict_noise_with_multi_branch_cfg")
EVALUATIONS, PLAIN_EVALUATIONS, ERROR = "thg.evaluations", "thg.plain_evaluations", "thg.estimated_error"


def register() -> None:
    """Follows each pipeline that this process loads, if the server is switched on."""
    setting = server_setting()
    if setting is None:
        return
    from vllm_omni.diffusion.worker.diffusion_model_runner import DiffusionModelRunner
    from vllm_omni.metrics.stats import OrchestratorAggregator

    def load_model(original: Callable[..., None], runner: Any, *args: Any, **kwargs: Any) -> None:
        original(runner, *args, **kwargs)
        if runner.pipeline is not None:
            follow(runner.pipeline, runner.od_config, setting)

    def accumulate(original: Callable[..., None], metrics: Any, stage: str, request: Any, outputs: Any) -> None:
        original(metrics, stage, request, outputs)
        for output in outputs if isinstance(outputs, list) else [outputs]:
            found = getattr(output, "stage_durations", None) or {}
            if EVALUATIONS in found:
                count_request(found[EVALUATIONS], found[PLAIN_EVALUATIONS])

    _wrap(DiffusionModelRunner, "load_model", load_model)
    _wrap(OrchestratorAggregator, "accumulate_diffusion_metrics", accumulate)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    """Replaces a method by `around`, which gets the method first."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    setattr(owner, name, method)


def follow(pipeline: Any, config: Any, setting: ServerSetting) -> None:
    """Says once, when a pipeline is loaded, what happens to it."""
    from vllm_omni.diffusion.models.diffusers_adapter.pipeline_diffusers_adapter import DiffusersAdapterPipeline

    adapter = isinstance(pipeline, DiffusersAdapterPipeline)
    name, obstacle = type(pipeline).__name__, "" if adapter else _obstacle(pipeline, config)
    if obstacle:
        logger.warning("thg: %s runs as it is: %s", name, obstacle)
        return
    logger.info("thg: %s follows %s=%s", name, VARIABLE, setting.text)
    kind = AdaptedPipeline if adapter else SteppedPipeline if config.step_execution else OwnPipeline
    kind(pipeline, setting)


def _obstacle(pipeline: Any, config: Any) -> str:
    """Why a pipeline cannot leap, if so."""
    if not any(hasattr(pipeline, name) for name in PREDICTIONS):
        return f"it has no method {PREDICTIONS[0]}"
    if config.parallel_config.pipeline_parallel_size > 1:
        return "only the last stage of the pipeline parallelism has the noise and the scheduler"
    if config.cache_backend not in (None, "none"):
        return "a cache inside the network counts its calls"
    return ""


class ServedPipeline:
    """A pipeline in a worker. Its `forward` is replaced, on the object alone."""

    def __init__(self, pipeline: Any, setting: ServerSetting) -> None:
        self._pipeline, self._setting = pipeline, setting
        self._forward = pipeline.forward
        pipeline.forward = self.forward

    def forward(self, batch: Any) -> Any:
        """A call for a batch of requests."""
        planned = None if batch.is_dummy_run() else self._of(batch)
        if planned is None:
            return self._forward(batch)
        result, report = self._accelerated(batch, planned)
        if report is not None:
            _publish(batch, result, report)
        return result

    def _of(self, batch: Any) -> Planned | None:
        """What the requests of a batch ask for."""
        first, *others = (self._asked(each.sampling_params) for each in batch.requests)
        if any(other != first for other in others):
            _as_it_is(batch.request_ids, "they share a batch and ask for different things")
            return None
        return first

    def _asked(self, parameters: Any) -> Planned | None:
        """What a request asks for."""
        from vllm_omni.errors import OmniClientError

        try:
            return self._setting.of_request(parameters.extra_args)
        except PlanError as error:
            raise OmniClientError(str(error)) from error

    def _accelerated(self, batch: Any, planned: Planned) -> tuple[Any, Report | None]:
        raise NotImplementedError


class AdaptedPipeline(ServedPipeline):
    """A diffusers pipeline."""

    def _accelerated(self, batch: Any, planned: Planned) -> tuple[Any, Report | None]:
        try:
            return accelerated(self._pipeline._pipeline, planned, lambda: self._forward(batch))
        except UnsupportedPipelineError as error:
            _as_it_is(batch.request_ids, str(error))
            return self._forward(batch), None


class OwnPipeline(ServedPipeline):
    """A pipeline of vLLM-Omni: its guided predictions are those of a run."""

    def __init__(self, pipeline: Any, setting: ServerSetting) -> None:
        super().__init__(pipeline, setting)
        self._planned: Planned | None = None  # of the batch that runs
        self._run: ServedRun | None = None  # since its first prediction, when the time steps are known
        self._begin = 0
        for name in PREDICTIONS:
            if hasattr(pipeline, name):
                setattr(pipeline, name, functools.partial(self._predict, getattr(pipeline, name)))

    def _accelerated(self, batch: Any, planned: Planned) -> tuple[Any, Report | None]:
        self._planned, self._run = planned, None
        try:
            result = self._forward(batch)
            if self._run is not None:
                return result, self._run.report()
            _as_it_is(
                batch.request_ids, "its steps do not pass through the method of the guided noise, or have no scheduler"
            )
            return result, None
        finally:
            self._planned = self._run = None

    def _predict(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The guided prediction of a step."""
        scheduler: Any = getattr(self._pipeline, "scheduler", None)
        if self._planned is None or not hasattr(scheduler, "step_index"):
            return original(*args, **kwargs)
        asked = inspect.signature(original).bind(*args, **kwargs).arguments
        inputs = asked["branches_kwargs"] if "branches_kwargs" in asked else [asked["positive_kwargs"], None]
        branches = len(inputs) if asked["do_true_cfg"] else 1
        if self._run is None:
            self._begin = _next_step(scheduler)
            scale = asked["true_cfg_scale"]
            run = run_of(
                scheduler,
                scheduler.timesteps[self._begin :],
                branches=branches,
                guidance_scale=float(scale) if branches > 1 and isinstance(scale, int | float) else None,
            )
            self._run = ServedRun(self._planned, run)
        return self._run.step(
            _next_step(scheduler) - self._begin,
            lambda: original(*args, **kwargs),
            model=inputs[0].get("current_model"),
            branches=branches,
            state=inputs[0].get("hidden_states"),
        )


class SteppedPipeline(OwnPipeline):
    """The same with step-wise execution: requests share calls of the network, each at a step of its own."""

    def __init__(self, pipeline: Any, setting: ServerSetting) -> None:
        super().__init__(pipeline, setting)
        for method in (self.prepare_encode, self.denoise_step, self.post_decode):
            name = method.__name__
            setattr(pipeline, name, functools.partial(method, getattr(pipeline, name)))

    def prepare_encode(self, original: Callable[..., Any], request: Any, **kwargs: Any) -> Any:
        """A request arrives; an error here is its own."""
        self._asked(request.sampling)
        return original(request, **kwargs)

    def denoise_step(self, original: Callable[..., Any], batch: Any, *, states: Any = None, **kwargs: Any) -> Any:
        """The next step of each request: the network runs once, for those that evaluate theirs."""
        runs = [self._run_of(request, batch) for request in batch.states]
        if getattr(self._pipeline, "interrupt", False) or not any(runs):
            return original(batch, states=states, **kwargs)
        branches = _branches(batch)
        evaluating = [
            request
            for request, run in zip(batch.states, runs, strict=True)
            if run is None or run.evaluates(request.step_index, model=None, branches=branches, state=request.latents)
        ]
        outputs = {}
        if evaluating:
            part = batch if len(evaluating) == len(runs) else type(batch).make_batch(evaluating)
            rows = original(part, states=evaluating, **kwargs).split([len(request.latents) for request in evaluating])
            outputs = {request.request_id: row for request, row in zip(evaluating, rows, strict=True)}
        used: list[Any] = [
            outputs[request.request_id]
            if run is None
            else run.used(request.step_index, outputs.get(request.request_id), request.latents)
            for request, run in zip(batch.states, runs, strict=True)
        ]
        return torch.cat(used)

    def _run_of(self, request: Any, batch: Any) -> ServedRun | None:
        """The run of a request, since its first step."""
        state: dict[str, ServedRun | None] = request.extra
        if KEY not in state:
            state[KEY] = self._begun(request, batch)
        return state[KEY]

    def _begun(self, request: Any, batch: Any) -> ServedRun | None:
        from vllm_omni.diffusion.request import OmniDiffusionRequest

        planned = self._asked(request.sampling)
        if planned is None or OmniDiffusionRequest.is_dummy_run_request_id(request.request_id):
            return None
        if request.chunk_num_steps is not None or not hasattr(request.scheduler, "step_index"):
            _as_it_is([request.request_id], "its steps are those of several parts, or have no scheduler of their own")
            return None
        branches = _branches(batch)
        scale = batch.true_cfg_scale if branches > 1 else None
        return ServedRun(planned, run_of(request.scheduler, request.timesteps, branches=branches, guidance_scale=scale))

    def post_decode(self, original: Callable[..., Any], request: Any, **kwargs: Any) -> Any:
        """A request ends."""
        result = original(request, **kwargs)
        if run := request.extra.get(KEY):
            request.stage_durations.update(_numbers([request.request_id], run.report()))
        return result


def _branches(batch: Any) -> int:
    """Of a batch of steps."""
    return 2 if batch.do_true_cfg else 1


def _next_step(scheduler: Any) -> int:
    """The index of the scheduler's next step: of its own counter, so that a loop of another kind is noticed."""
    return int(scheduler.step_index if scheduler.step_index is not None else scheduler.begin_index or 0)


# -- the report


def _publish(batch: Any, result: Any, report: Report) -> None:
    """In the log, and among the numbers that reach the answers of a batch."""
    numbers = _numbers(batch.request_ids, report)
    for output in result if isinstance(result, list) else [result]:
        output.stage_durations = {**(output.stage_durations or {}), **numbers}


def _numbers(requests: Sequence[str], report: Report) -> dict[str, float]:
    """What a request's answer says; the log says more."""
    for name in requests:
        logger.info("thg: request %s: %s", name, report)
    numbers = {EVALUATIONS: float(report.evaluations), PLAIN_EVALUATIONS: float(report.plain_evaluations)}
    return numbers if report.estimated_error is None else {**numbers, ERROR: report.estimated_error}


def _as_it_is(requests: Sequence[str], reason: str) -> None:
    logger.info("thg: request %s runs as it is: %s", ", ".join(requests), reason)
