"""The inputs of a benchmark (prompts, reference files, the pipeline), and the samples that the pipeline makes."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from thg.bench.config import BenchConfig, ModelTable
from thg.bench.tables import ConfigError, nearest
from thg.errors import NonFiniteError, UnsupportedPipelineError
from thg.media import Output, png_bytes, wav_bytes
from thg.models import SHIPPED, shipped_pipeline
from thg.models.pretrained import call_arguments, pretrained
from thg.processes import generators
from thg.prompts import DataError, hub_prompts, paired_files, read_prompts, take

RECORD_BYTES = 8192
"""Bytes of a record and of a timing on disk: a block each."""
PNG_BYTES_PER_BYTE = 0.65
"""File size per byte of a photograph's pixels."""
PICTURES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"})


# -- prompts and references


@dataclass(frozen=True)
class PromptList:
    """Prompts (more than `count` if a calibration uses them), and a digest of their source."""

    prompts: list[str]
    digest: str


def load_prompts(config: BenchConfig) -> PromptList:
    """The prompts that indices refer to; fewer than `count` is an error."""
    source, wanted = config.prompts, prompts_wanted(config)
    if source.file is not None:
        prompts = read_prompts(source.file, source.column)
        take(prompts, config.count, str(source.file))  # are there enough?
        return PromptList(prompts, _digest("\0".join(prompts)))
    if source.dataset is not None:
        prompts = hub_prompts(source.dataset, source.column, wanted, source.split)
        return PromptList(prompts, _digest(f"{source.dataset}\0{source.split}\0{source.column}"))
    assert config.model.shipped is not None  # the configuration has prompts otherwise
    return PromptList(SHIPPED[config.model.shipped].prompts(wanted), "shipped")


def prompts_wanted(config: BenchConfig) -> int:
    """How many prompts are needed: those that are sampled, or more for a calibration."""
    return max(config.count, *(int(method.options.get("calibrate", 0)) for method in config.methods))


@dataclass(frozen=True)
class ReferenceFiles:
    """The existing references, in order, and the names of missing ones."""

    paths: list[Path]
    missing: list[str]
    folder: Path

    @property
    def complaint(self) -> str:
        """What is missing, in a sentence; empty if nothing is."""
        if not self.folder.is_dir():
            return f"there is no reference folder {self.folder}"
        if not self.missing:
            return "" if self.paths else f"{self.folder} holds no references"
        shown = ", ".join(self.missing[:3]) + (" ..." if len(self.missing) > 3 else "")
        return (
            f"{len(self.missing)} of {len(self.missing) + len(self.paths)} reference files are missing in "
            f"{self.folder}: {shown}"
        )

    @property
    def identity(self) -> dict[str, str]:
        """What the measurements of the references depend on."""
        sizes = "\0".join(f"{path.name} {path.stat().st_size}" for path in self.paths)
        return {"folder": str(self.folder.resolve()), "files": _digest(sizes)}


def reference_files(config: BenchConfig) -> ReferenceFiles | None:
    """The files of [references]: those that belong to the prompts, or all in the folder. None without a folder."""
    references = config.references
    if references.folder is None:
        return None
    if references.file is None:
        return ReferenceFiles(files_below(references.folder), [], references.folder)
    if config.prompts.file is None:
        raise DataError(
            f"references.file = {references.file!r} takes columns of a prompt file; write [prompts] with file"
        )
    wanted = paired_files(config.prompts.file, config.prompts.column, references.file, config.count)
    existing = {name for name in wanted if (references.folder / name).is_file()}
    paths = [references.folder / name for name in wanted if name in existing]
    return ReferenceFiles(paths, [name for name in wanted if name not in existing], references.folder)


def files_below(folder: Path) -> list[Path]:
    """All pictures and sounds below a folder, in the order of their names."""
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES | {".wav"})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -- samples


@dataclass(frozen=True, eq=False)
class Samples:
    """The output of one call: pictures (batch, channels, h, w) in [0, 1] or sounds (batch, samples), on the CPU."""

    values: torch.Tensor
    sample_rate: int | None = None

    def file(self, row: int) -> tuple[str, bytes]:
        """The suffix and content of the file of one sample."""
        if self.sample_rate is not None:
            return ".wav", wav_bytes(self.values[row].numpy(), self.sample_rate)
        return ".png", png_bytes(self.values[row].permute(1, 2, 0).numpy())

    def bytes_on_disk(self) -> float:
        """The disk space of such a sample, with its record."""
        content = 2.0 if self.sample_rate is not None else PNG_BYTES_PER_BYTE
        return content * self.values[0].numel() + RECORD_BYTES


def load_pipeline(model: ModelTable, device: str) -> Any:
    """The pipeline of the configuration, with its scheduler, without progress bars."""
    dtype = getattr(torch, model.dtype)
    if model.shipped is not None:
        pipe: Any = shipped_pipeline(model.shipped, device=device, dtype=dtype)
    else:
        assert model.source is not None  # the configuration has one of the two
        pipe = pretrained(model.source, dtype, variant=model.variant, leave_out=model.leave_out).to(device)
    if model.scheduler is not None:
        pipe.scheduler = make_scheduler(model, pipe.scheduler.config)
    pipe.set_progress_bar_config(disable=True)
    _check_arguments(f"{type(pipe).__name__} takes no argument", model.call, pipe.__call__)
    return pipe


def make_scheduler(model: ModelTable, config: Any) -> Any:
    """The scheduler that a model is to run with. config: of the one that it came with."""
    import diffusers

    names = [name for name in dir(diffusers) if name.endswith("Scheduler")]
    if model.scheduler not in names:
        raise ConfigError(f"diffusers has no scheduler {model.scheduler!r}{nearest(str(model.scheduler), names)}")
    cls = getattr(diffusers, model.scheduler)
    _check_arguments(f"{model.scheduler} takes no option", model.scheduler_options, cls.__init__)
    return cls.from_config(config, **model.scheduler_options)


def _check_arguments(complaint: str, given: Iterable[str], function: Any) -> None:
    accepted = inspect.signature(function).parameters
    for key in given:
        if key not in accepted:
            raise ConfigError(f"{complaint} {key!r}{nearest(key, accepted)}")


def run_pipeline(
    pipe: Any, model: ModelTable, prompts: list[str], indices: range, seed: int, steps: int, guidance_scale: float
) -> Samples:
    """Samples for these prompts; the noise of each depends only on the run's seed and its index."""
    texts = [prompts[index] for index in indices]
    call = {"generator": generators(seed, indices), "output_type": "np", **model.call}
    with torch.inference_mode():
        result = pipe(**call_arguments(pipe, texts, steps=steps, guidance_scale=guidance_scale, **call))
    output = Output.of(result, pipe)
    if output.kind == "video":
        raise UnsupportedPipelineError(f"{type(pipe).__name__} makes videos; this measures pictures and sounds")
    values = torch.from_numpy(np.stack(output.items)).float()
    if not bool(torch.isfinite(values).all()):
        raise NonFiniteError(f"NaN or infinity in the samples {indices.start} to {indices.stop - 1}; try another dtype")
    if output.kind == "image":
        return Samples(values.permute(0, 3, 1, 2))
    return Samples(values.mean(1) if values.ndim == 3 else values, output.rate)  # without the channels of a sound
