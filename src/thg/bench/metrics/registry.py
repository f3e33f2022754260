"""Metrics by name: what can be measured here is made ready, what cannot is named together with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

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


@dataclass(frozen=True)
class Sources:
    """Where the networks come from. A path that is None is looked for in `~/.cache/thg`.

    The defaults are the networks of the paper. What few people touch: the hub ids, which may also be folders.
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


@dataclass(frozen=True)
class Loaded:
    """Metrics that are ready, and (name, reason) of those that are not."""

    metrics: list[Metric] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)


def load_metrics(names: Iterable[str], sources: Sources | None = None, device: str = "cpu") -> Loaded:
    """Make metrics ready. One whose weights or packages are missing is skipped with the reason; the others go on.

    - `names`: of METRIC_NAMES, in the order in which the metrics are returned.
    - `sources`: where the networks come from; the paper's networks unless said otherwise.
    - `device`: where the networks run. Sums are always kept on the CPU in float64.
    """
    makers = _makers(sources or Sources(), device)
    loaded = Loaded()
    for name in dict.fromkeys(names):
        if name not in makers:
            raise MetricError(f"there is no metric {name!r}; there are {', '.join(METRIC_NAMES)}")
        try:
            loaded.metrics.append(makers[name]())
        except MissingExtraError as error:
            loaded.skipped.append((name, str(error)))
    return loaded


def _makers(sources: Sources, device: str) -> dict[str, Callable[[], Metric]]:
    inception = cache(lambda: LastSeen(load_inception(sources.inception, device)))
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
    }


def _shipped_judge() -> Judge:
    return ShippedJudge.load(require_file(JUDGE_PATH, "the judge", "Reinstall thg: the file belongs to the package."))


METRIC_NAMES = tuple(_makers(Sources(), "cpu"))
"""All metrics, in the order of the report's columns."""
