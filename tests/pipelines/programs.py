"""Other people's caches and hooks on tiny pipelines, each as a block within which it is on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import diffusers
import pytest
import torch

from tests.pipelines.families import FAMILIES, Case
from tests.pipelines.families.video import cogvideox, wan21

STEPS = 8
LAYERS = 3

SwitchedOn = Callable[[Case], AbstractContextManager[None]]


def package(name: str) -> Any:
    """A package that only the development environment has; the test is left out without it."""
    return pytest.importorskip(name, reason=f"{name} is not installed (make test installs it)")


@contextmanager
def deepcache(case: Case, interval: int = 3) -> Iterator[None]:
    helper = package("DeepCache").DeepCacheSDHelper(pipe=case.pipe)
    helper.set_params(cache_interval=interval, cache_branch_id=0)
    helper.enable()
    try:
        yield
    finally:
        helper.disable()


@contextmanager
def cache_dit(case: Case, threshold: float = 0.9) -> Iterator[None]:
    program = package("cache_dit")
    config = program.DBCacheConfig(Fn_compute_blocks=1, residual_diff_threshold=threshold, max_warmup_steps=2)
    program.enable_cache(case.pipe, cache_config=config)
    try:
        yield
    finally:
        program.disable_cache(case.pipe)


def hooks(name: str, **options: Any) -> SwitchedOn:
    """A cache of diffusers, by the name of its configuration."""

    @contextmanager
    def switched_on(case: Case) -> Iterator[None]:
        if not hasattr(diffusers, name):
            pytest.skip(f"this diffusers has no {name}")
        more = {"current_timestep_callback": lambda: 500} if name.startswith(("Pyramid", "Faster")) else {}
        case.pipe.transformer.enable_cache(getattr(diffusers, name)(**options, **more))
        try:
            yield
        finally:
            case.pipe.transformer.disable_cache()

    return switched_on


BATCHED, TWO_CALLS = (lambda: cogvideox(layers=LAYERS)), (lambda: wan21(layers=LAYERS))
RATIOS = {"num_inference_steps": STEPS, "mag_ratios": [1.0] * STEPS, "retention_ratio": 0.2}
FASTER = hooks("FasterCacheConfig", attention_weight_callback=lambda _: 0.5, tensor_format="BFCHW")

# name: the pipeline, and the cache on it
CACHES: dict[str, tuple[Callable[[], Case], SwitchedOn]] = {
    "DeepCache, SD 1.5": (FAMILIES["SD 1.5"], deepcache),
    "DeepCache, SDXL": (FAMILIES["SDXL"], deepcache),
    "cache-dit, SD3": (FAMILIES["SD3"], cache_dit),
    "cache-dit, Wan": (TWO_CALLS, cache_dit),
    **{
        f"{name}, {place}": (case, hooks(f"{name}Config", **options))
        for name, options in {
            "FirstBlockCache": {"threshold": 10.0},
            "TaylorSeerCache": {
                "cache_interval": 3,
                "disable_cache_before_step": 2,
                "cache_identifiers": [r".*blocks\.\d+\.(attn1|attn2|ff|ffn)"],
            },
            "MagCache": RATIOS,
            "PyramidAttentionBroadcast": {"spatial_attention_block_skip_range": 3},
        }.items()
        for place, case in {"CogVideoX": BATCHED, "Wan": TWO_CALLS}.items()
    },
    "SeaCache, Wan": (TWO_CALLS, hooks("SeaCacheConfig", threshold=10.0)),
    "FasterCache, CogVideoX": (BATCHED, FASTER),
}


@contextmanager
def counted(case: Case) -> Iterator[list[int]]:
    """Multiplications in the linear and convolution layers of the network that really ran, in one number."""
    work = [0]

    def count(layer: Any, args: Any, output: torch.Tensor) -> None:
        work[0] += output.numel() * math.prod(layer.weight.shape[1:])

    layers = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.Conv3d)
    networks = [getattr(case.pipe, name) for name in case.networks]
    found = [layer for network in networks for layer in network.modules() if isinstance(layer, layers)]
    handles = [layer.register_forward_hook(count) for layer in found]
    try:
        yield work
    finally:
        for handle in handles:
            handle.remove()
