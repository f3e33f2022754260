"""The pipeline of a benchmark: loading, calling, and its outputs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from thg.bench.config import Model
from thg.bench.errors import ConfigError
from thg.bench.strict import nearest
from thg.errors import NonFiniteError, UnsupportedPipelineError
from thg.models import shipped_pipeline
from thg.models.pretrained import pretrained, sampling_rate
from thg.seeds import generators


@dataclass(frozen=True, eq=False)
class Samples:
    """The output of one call: pictures (batch, channels, h, w) in [0, 1] or sounds (batch, samples), on the CPU.

    latents: of the pictures, if requested.
    """

    values: torch.Tensor
    sample_rate: int | None = None
    latents: torch.Tensor | None = None


def load_pipeline(model: Model, device: str) -> Any:
    """The pipeline of the configuration, with its scheduler, without progress bars."""
    dtype = getattr(torch, model.dtype)
    if model.shipped is not None:
        pipe: Any = shipped_pipeline("flow" if model.shipped == "flow" else "eps", device=device, dtype=dtype)
    else:
        assert model.source is not None  # the configuration has one of the two
        pipe = pretrained(model.source, dtype, variant=model.variant, leave_out=model.leave_out).to(device)
    if model.scheduler is not None:
        pipe.scheduler = make_scheduler(model, pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    accepted = inspect.signature(pipe.__call__).parameters
    for key in model.call:
        if key not in accepted:
            raise ConfigError(f"{type(pipe).__name__} takes no argument {key!r}{nearest(key, list(accepted))}")
    return pipe


def make_scheduler(model: Model, config: Any) -> Any:
    """The scheduler that a model is to run with. config: of the one that it came with."""
    import diffusers

    names = [name for name in dir(diffusers) if name.endswith("Scheduler")]
    if model.scheduler not in names:
        raise ConfigError(f"diffusers has no scheduler {model.scheduler!r}{nearest(str(model.scheduler), names)}")
    cls = getattr(diffusers, model.scheduler)
    accepted = inspect.signature(cls.__init__).parameters
    for key in model.scheduler_options:
        if key not in accepted:
            raise ConfigError(f"{model.scheduler} takes no option {key!r}{nearest(key, list(accepted))}")
    return cls.from_config(config, **model.scheduler_options)


def sample(
    pipe: Any,
    model: Model,
    prompts: list[str],
    indices: range,
    seed: int,
    steps: int,
    guidance_scale: float,
    latents: bool = False,
) -> Samples:
    """Samples for these prompts; the noise of each depends only on the run's seed and its index.

    latents: stop before the pipeline's decoder, decode with `decode`, and return latents and pictures.
    """
    arguments: dict[str, Any] = {
        "prompt": [prompts[index] for index in indices],
        "num_inference_steps": steps,
        "guidance_scale": guidance_scale,
        "generator": generators(seed, indices),
        "output_type": "latent" if latents else "pt",
        **model.call,
    }
    with torch.inference_mode():
        output = pipe(**arguments)
    kept = output.images if latents else None
    values = getattr(output, "images", None) if kept is None else decode(pipe, kept)
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
    return Samples(values, rate, None if kept is None else kept.detach().cpu())


def decode(pipe: Any, latents: torch.Tensor) -> torch.Tensor:
    """Decodes latents as pipelines with an autoencoder and an image processor do."""
    vae = pipe.vae
    scaled = latents.to(vae.device, vae.dtype) / vae.config.scaling_factor + (vae.config.get("shift_factor") or 0.0)
    with torch.inference_mode():
        pictures: torch.Tensor = pipe.image_processor.postprocess(vae.decode(scaled).sample.detach(), output_type="pt")
    return pictures


def check_decoder(pipe: Any, model: Model) -> None:
    """Raises an error if `decode` differs from the pipeline's own decoding."""
    short = (pipe, model, ["a test"], range(1), 0, 2, 2.0)
    if hasattr(pipe, "vae") and hasattr(pipe, "image_processor"):
        own, ours = sample(*short).values, sample(*short, latents=True).values
        if own.shape == ours.shape and torch.equal(own, ours):
            return
    raise ConfigError(
        f'storage.keep = "latents": the latents of {type(pipe).__name__} cannot be decoded separately; write '
        'keep = "files", "jpeg" or "features"'
    )
