"""Metrics for the shipped emoji model: which of 500 captions fits a picture best, and does it look real?

The judge is a joint embedding of pictures and captions trained on real pictures (`thg.models.emoji_judge`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from thg.bench.metrics.base import Batch, LastSeen, MeanMetric, Metric, MetricError
from thg.bench.metrics.frechet import FrechetMetric
from thg.models.emoji_judge import EmojiJudge
from thg.models.emoji_prompts import EmojiNames


class _Recall(MeanMetric):
    """Share of the pictures for which the judge ranks their prompt among the best captions."""

    direction = "higher"
    needs = frozenset({"prompts"})
    best: int

    def __init__(self, ranks: Callable[[Batch], torch.Tensor]):
        super().__init__()
        self._ranks = ranks

    def score(self, batch: Batch) -> torch.Tensor:
        return (self._ranks(batch) < self.best).double()


class RecallAt1(_Recall):
    """Share of the pictures that fit their prompt better than all other captions."""

    name = "emoji_recall_1"
    best = 1


class RecallAt5(_Recall):
    """Share of the pictures whose prompt is among the five captions that fit best."""

    name = "emoji_recall_5"
    best = 5


class EmojiFrechet(FrechetMetric):
    """Frechet distance in the judge's features."""

    name = "emoji_frechet"


def emoji_metrics(judge: EmojiJudge, names: EmojiNames) -> list[Metric]:
    """The metrics of the judge; the captions are the model's names and others."""
    captions = names.captions

    def ranks(batch: Batch) -> torch.Tensor:
        if unknown := [prompt for prompt in batch.prompts if prompt not in captions]:
            raise MetricError(f"the prompt {unknown[0]!r} is none of the judge's captions, such as {captions[0]!r}")
        return judge.ranks(_scaled(batch), [captions.index(prompt) for prompt in batch.prompts], captions)

    ranks_once = LastSeen(ranks)
    return [RecallAt1(ranks_once), RecallAt5(ranks_once), EmojiFrechet(lambda batch: judge.features(_scaled(batch)))]


def _scaled(batch: Batch) -> torch.Tensor:
    return 2 * batch.pictures().cpu() - 1
