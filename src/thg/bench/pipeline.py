"""The pipeline of a benchmark: how it is loaded, called, and what comes out of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from thg.bench.config import BenchConfig, Model
from thg.bench.data import hub_prompts, read_prompts
from thg.bench.data.errors import DataError
from thg.bench.errors import ConfigError
from thg.bench.strict import nearest
from thg.errors import NonFiniteError, UnsupportedPipelineError
from thg.models import benchmark_prompts, shipped_pipeline
from thg.models.pretrained import pretrained, sampling_rate
from thg.seeds import generators


@dataclass(frozen=True, eq=False)
class Samples:
    """What one call has made: pictures (batch, channels, h, w) in [0, 1] or sounds (batch, samples), on the CPU."""

    values: torch.Tensor
    sample_rate: int | None = None


def load_pipeline(model: Model, device: str) -> Any:
    """The pipeline of the configuration, with its scheduler, silent."""
    dtype = getattr(torch, model.dtype)
    if model.shipped is not None:
        pipe: Any = shipped_pipeline("flow" if model.shipped == "flow" else "eps", device=device, dtype=dtype)
    else:
        assert model.source is not None  # the configuration has one of the two
        pipe = pretrained(model.source, dtype, variant=model.variant, leave_out=model.leave_out).to(device)
    if model.scheduler is not None:
        pipe.scheduler = _scheduler(model, pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    known = inspect.signature(pipe.__call__).parameters
    for key in model.call:
        if key not in known:
            raise ConfigError(f"{type(pipe).__name__} takes no argument {key!r}{nearest(key, list(known))}")
    return pipe


def _scheduler(model: Model, config: Any) -> Any:
    import diffusers

    names = [name for name in dir(diffusers) if name.endswith("Scheduler")]
    if model.scheduler not in names:
        raise ConfigError(f"diffusers has no scheduler {model.scheduler!r}{nearest(str(model.scheduler), names)}")
    cls = getattr(diffusers, model.scheduler)
    known = inspect.signature(cls.__init__).parameters
    for key in model.scheduler_options:
        if key not in known:
            raise ConfigError(f"{model.scheduler} takes no option {key!r}{nearest(key, list(known))}")
    return cls.from_config(config, **model.scheduler_options)


def load_prompts(config: BenchConfig) -> list[str]:
    """`count` prompts; fewer than that is an error."""
    source = config.prompts
    if source.file is not None:
        return read_prompts(source.file, source.column, config.count)
    if source.dataset is not None:
        return hub_prompts(source.dataset, source.column, config.count, source.split)
    # of the shipped models: the garments in turn, so that a short run sees all of them
    prompts = [prompt for prompt, _, _ in benchmark_prompts(-(-config.count // 10))]
    per_garment = len(prompts) // 10
    turns = [prompts[garment * per_garment + turn] for turn in range(per_garment) for garment in range(10)]
    if len(turns) < config.count:
        raise DataError(f"the shipped models have {len(turns)} prompts, {config.count} were asked for")
    return turns[: config.count]


def sample(
    pipe: Any, model: Model, prompts: list[str], indices: range, seed: int, steps: int, guidance_scale: float
) -> Samples:
    """Samples for these prompts; the noise of each follows from the run's seed and its index alone."""
    arguments: dict[str, Any] = {
        "prompt": [prompts[index] for index in indices],
        "num_inference_steps": steps,
        "guidance_scale": guidance_scale,
        "generator": generators(seed, indices),
        "output_type": "pt",
        **model.call,
    }
    with torch.inference_mode():
        output = pipe(**arguments)
    values = getattr(output, "images", None)
    rate = None
    if values is None:
        values, rate = getattr(output, "audios", None), sampling_rate(pipe)
    if values is None:
        raise UnsupportedPipelineError(
            f"{type(pipe).__name__} returns neither images nor audios; the benchmark needs one"
        )
    values = torch.as_tensor(values).detach().float().cpu()
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(f"NaN or infinity in the samples {indices.start} to {indices.stop - 1}; try another dtype")
    if rate is not None and values.ndim == 3:
        values = values.mean(1)  # channels of a sound
    return Samples(values, rate)
