"""Third-party caches, through their own public API, with their own defaults unless configured.

They are optional: a cache that is not installed, or that does not support the pipeline, is skipped with the reason.
Because they skip parts of the network and not whole evaluations, they take no exact budget; their cost is counted here,
in network evaluations, by the work in the network's layers. Each can be combined with thg: the option `thg` is the
number of evaluations of thg's plan.
"""

from __future__ import annotations

import importlib
import logging
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from thg.bench.methods.policy import Counted, Pilot, Policy, Prepared
from thg.errors import MissingExtraError, THGError, UnsupportedPipelineError
from thg.pipelines import enabled
from thg.plans.planners import tapered
from thg.sampling import counted_work


class CacheError(THGError):
    """A third-party cache that is missing or failed on this pipeline; its row in the table stays empty."""


@dataclass(frozen=True)
class ThirdPartyCache(Policy):
    """A third-party cache. thg: evaluations of the `tapered` plan combined with it; None: the cache alone."""

    thg: int | None = None

    @property
    def needs_preparation(self) -> bool:
        return True

    @contextmanager
    @abstractmethod
    def switched_on(self, pipe: Any) -> Iterator[None]:
        """Enables the cache on the pipeline within a block."""
        yield

    @contextmanager
    def applied(self, pipe: Any, prepared: Prepared) -> Iterator[Counted]:
        with self.switched_on(pipe), nullcontext() if self.thg is None else enabled(pipe, tapered(self.thg)):
            yield lambda size: [prepared["nfe"]] * size

    def prepare(self, pilot: Pilot) -> dict[str, Any]:
        """Counts its cost on the pilot, in a separate run, so that counting does not slow timed runs."""
        with counted_work(pilot.pipe) as plain:
            pilot.run()
        try:
            with self.applied(pilot.pipe, {}), counted_work(pilot.pipe) as work:
                pilot.run()
        except THGError as error:
            raise CacheError(str(error)) from error
        except Exception as error:  # third-party code may raise anything; the other methods continue
            reason = " ".join(str(error).split())[:200]
            raise CacheError(
                f"{type(self).__name__} fails on {type(pilot.pipe).__name__} ({type(error).__name__}: {reason})"
            ) from error
        return {"nfe": 2 * pilot.steps * work.count / plain.count}


@dataclass(frozen=True)
class DeepCache(ThirdPartyCache):
    """Ma et al., DeepCache, 2024: caches deep features of a U-Net and runs only its outer layers between full steps."""

    interval: int = 3
    branch: int = 0
    paper: ClassVar[str] = "Ma et al., DeepCache, 2024 (package DeepCache)"
    packages: ClassVar[tuple[str, ...]] = ("DeepCache",)

    @contextmanager
    def switched_on(self, pipe: Any) -> Iterator[None]:
        if getattr(pipe, "unet", None) is None:
            raise UnsupportedPipelineError(f"DeepCache works on UNets; {type(pipe).__name__} has none")
        helper = _module("DeepCache").DeepCacheSDHelper(pipe=pipe)
        helper.set_params(cache_interval=self.interval, cache_branch_id=self.branch)
        helper.enable()
        try:
            yield
        finally:
            helper.disable()


@dataclass(frozen=True)
class FasterCache(ThirdPartyCache):
    """Lv et al., FasterCache, 2024, as implemented in diffusers: CFG-Cache combined with skipped attention."""

    uncond_interval: int = 5
    attention_interval: int = 2
    tensor_format: str = "BCHW"
    paper: ClassVar[str] = "Lv et al., FasterCache, 2024 (diffusers.apply_faster_cache)"

    @contextmanager
    def switched_on(self, pipe: Any) -> Iterator[None]:
        transformer: Any = getattr(pipe, "transformer", None)
        if not hasattr(transformer, "enable_cache"):
            raise UnsupportedPipelineError(
                f"FasterCache of diffusers needs a transformer with enable_cache; {type(pipe).__name__} has none"
            )
        hooks = _module("diffusers.hooks")
        config = hooks.FasterCacheConfig(
            spatial_attention_block_skip_range=self.attention_interval,
            unconditional_batch_skip_range=self.uncond_interval,
            attention_weight_callback=lambda _: 0.3,  # the value of diffusers' own example
            current_timestep_callback=lambda: float(pipe.current_timestep),
            tensor_format=self.tensor_format,
        )
        with _quiet(logging.WARNING):  # it warns on each use that it is experimental
            transformer.enable_cache(config)
        try:
            yield
        finally:
            transformer.disable_cache()


@dataclass(frozen=True)
class CacheDiT(ThirdPartyCache):
    """cache-dit's DBCache: skips the middle blocks of a transformer while its first blocks' residual hardly changes.

    order: of its TaylorSeer calibrator, which extrapolates the residual of the skipped blocks; 0: it is held constant.
    """

    first_blocks: int = 1
    last_blocks: int = 0
    threshold: float = 0.08
    warmup: int = 8
    order: int = 0
    paper: ClassVar[str] = "cache-dit, DBCache (package cache-dit)"
    packages: ClassVar[tuple[str, ...]] = ("cache-dit",)

    @contextmanager
    def switched_on(self, pipe: Any) -> Iterator[None]:
        if getattr(pipe, "transformer", None) is None:
            raise UnsupportedPipelineError(f"cache-dit works on transformers; {type(pipe).__name__} has a UNet")
        cache_dit = _module("cache_dit")
        config = cache_dit.DBCacheConfig(
            Fn_compute_blocks=self.first_blocks,
            Bn_compute_blocks=self.last_blocks,
            residual_diff_threshold=self.threshold,
            max_warmup_steps=self.warmup,
        )
        calibrator = None
        if self.order:  # no residual of the text to extrapolate if the last block drops the text (SD3)
            calibrator = cache_dit.TaylorSeerCalibratorConfig(
                taylorseer_order=self.order, enable_encoder_calibrator=False
            )
        with _quiet(logging.INFO):
            cache_dit.enable_cache(pipe, cache_config=config, calibrator_config=calibrator)
        try:
            yield
        finally:
            with _quiet(logging.INFO):
                cache_dit.disable_cache(pipe)


@contextmanager
def _quiet(level: int) -> Iterator[None]:
    """Without what a library logs for each batch, up to this level."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.replace("_", "-").split(".")[0]
        raise MissingExtraError(f"{package} is not installed: pip install {package}") from error
