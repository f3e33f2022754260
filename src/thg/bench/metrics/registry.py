"""Metrics by name: available ones are loaded, the others are listed with the reason.

Other packages register metrics as entry points of the group `thg.bench.metrics`: a `Metric` class, or a function that
returns a metric; a parameter `device` gets the device to run on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, partial
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from thg.bench.metrics.base import LastSeen, Metric
from thg.bench.metrics.batch import MetricError
from thg.bench.metrics.clap import CLAP_MODEL, load_clap_score
from thg.bench.metrics.clip import CLIP_SCORE_MODEL, CMMD, CMMD_MODEL, load_clip_score, load_cmmd_embedder
from thg.bench.metrics.fidelity import PSNR, SSIM
from thg.bench.metrics.imagereward import TOKENIZER, load_image_reward
from thg.bench.metrics.inception import FID, KID, load_inception
from thg.bench.metrics.judge import Judge, judge_metrics
from thg.bench.metrics.lpips import load_lpips
from thg.bench.metrics.vggish import FAD, load_vggish
from thg.bench.metrics.weights import require_file
from thg.errors import MissingExtraError
from thg.models.judge import JUDGE_PATH
from thg.models.judge import Judge as ShippedJudge

GROUP = "thg.bench.metrics"
"""The group of entry points."""


@dataclass(frozen=True)
class Sources:
    """Where the networks come from. For None, the cache folder of thg is searched.

    The defaults are the networks of the paper. A hub id may also be a folder.
    """

    inception: Path | None = None
    lpips: Path | None = None
    vggish: Path | None = None
    image_reward: Path | None = None
    image_reward_tokenizer: str = TOKENIZER
    clip_score: str = CLIP_SCORE_MODEL
    cmmd: str = CMMD_MODEL
    clap_score: str = CLAP_MODEL
    judge: Judge | None = None
    """None: the judge that is shipped with the models."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The names that a configuration may use."""
        return tuple(source.name for source in fields(cls) if source.name != "judge")

    @classmethod
    def of(cls, networks: Mapping[str, str]) -> Sources:
        """From the strings of a configuration."""
        files = {source.name for source in fields(cls) if "Path" in str(source.type)}
        values: dict[str, Any] = {
            name: Path(value).expanduser() if name in files else value for name, value in networks.items()
        }
        return cls(**values)


@dataclass(frozen=True)
class Loaded:
    """Loaded metrics, and (name, reason) of those that are not available."""

    metrics: list[Metric] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def load_metrics(names: Iterable[str], sources: Sources | None = None, device: str = "cpu") -> Loaded:
    """Loads metrics. One whose weights or packages are missing is skipped with the reason.

    names: of `metric_names`, in the order in which the metrics are returned.
    sources: where the networks come from; by default the paper's networks.
    device: where the networks run. Sums are always kept on the CPU in float64.
    """
    makers = _makers(sources or Sources(), device)
    loaded = Loaded()
    for name in dict.fromkeys(names):
        if name not in makers:
            raise MetricError(f"there is no metric {name!r}; there are {', '.join(metric_names())}")
        try:
            loaded.metrics.append(makers[name]())
        except MissingExtraError as error:
            loaded.skipped.append((name, str(error)))
    return loaded


PAIRED = ("psnr", "ssim", "lpips")
"""Metrics of thg that compare with plain CFG on the same seed."""


def pair_metric_names(names: Iterable[str]) -> list[str]:
    """Those of the names that compare with plain CFG."""
    own = {entry.name: entry for entry in entry_points(group=GROUP)}
    return [
        name for name in names if name in PAIRED or (name in own and "pairs" in getattr(own[name].load(), "needs", ()))
    ]


def _makers(sources: Sources, device: str) -> dict[str, Callable[[], Metric]]:
    inception = cache(lambda: LastSeen(load_inception(sources.inception, device)))
    own = {entry.name: partial(_registered, entry, device) for entry in entry_points(group=GROUP)}
    judged = cache(lambda: {metric.name: metric for metric in judge_metrics(sources.judge or _shipped_judge())})
    return {
        "psnr": PSNR,
        "ssim": SSIM,
        "lpips": lambda: load_lpips(sources.lpips, device),
        "fid": lambda: FID(inception()),
        "kid": lambda: KID(inception()),
        "cmmd": lambda: CMMD(load_cmmd_embedder(sources.cmmd, device)),
        "clip_score": lambda: load_clip_score(sources.clip_score, device),
        "image_reward": lambda: load_image_reward(sources.image_reward, sources.image_reward_tokenizer, device),
        "fad": lambda: FAD(load_vggish(sources.vggish, device)),
        "clap_score": lambda: load_clap_score(sources.clap_score, device),
        "judge_accuracy": lambda: judged()["judge_accuracy"],
        "tone_accuracy": lambda: judged()["tone_accuracy"],
        "judge_frechet": lambda: judged()["judge_frechet"],
        **own,
    }


def _registered(entry: EntryPoint, device: str) -> Metric:
    make = entry.load()
    metric: Metric = make(device=device) if "device" in inspect.signature(make).parameters else make()
    return metric


def _shipped_judge() -> Judge:
    return ShippedJudge.load(require_file(JUDGE_PATH, "the judge", "Reinstall thg: the file belongs to the package."))


def metric_names() -> tuple[str, ...]:
    """All metrics: those of thg, and those that installed packages register."""
    return tuple(_makers(Sources(), "cpu"))
