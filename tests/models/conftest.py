"""The shipped pipelines, loaded once; pictures are made on one code path so that all tests ask for them alike."""

import os
from collections.abc import Callable

import pytest
import torch

from training.data import DEBIAN_FOLDER

os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest.importorskip("diffusers", reason="the shipped models need diffusers")

needs_dataset = pytest.mark.skipif(
    not DEBIAN_FOLDER.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed"
)


@pytest.fixture(scope="session", params=["eps", "flow"])
def pipe(request):
    from thg.models import shipped_pipeline

    pipe = shipped_pipeline(request.param)
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="session")
def draw() -> Callable[..., torch.Tensor]:
    """Pictures (n, 1, 32, 32) in [-1, 1] for prompts, each with its own seed; flow with short padding, to be quick."""

    def draw(pipe, prompts: list[str], *, seeds: list[int] | None = None, steps: int = 4, **extra) -> torch.Tensor:
        extra.setdefault("guidance_scale", 5.0)
        if hasattr(pipe, "transformer"):
            extra.setdefault("max_sequence_length", 1)
        seeds = seeds or list(range(len(prompts)))
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        result = pipe(prompts, generator=generators, num_inference_steps=steps, output_type="pt", **extra)
        return result.images * 2 - 1

    return draw
