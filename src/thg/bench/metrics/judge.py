"""Metrics for the shipped models: is it the garment, and the tone, that the prompt asked for; and do they look real?

The judge is a classifier trained on real pictures (`thg.models.judge.Judge`, or anything that answers like it). What a
prompt asks for is read from its words, by the vocabulary of the shipped models.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

import torch

from thg.bench.metrics.base import Batch, LastSeen, MeanMetric, Metric, MetricError
from thg.bench.metrics.frechet import FrechetMetric
from thg.models.garments import GARMENTS, SYNONYMS, TONE_WORDS, TONES
from thg.models.judge import Verdict

Judge = Callable[[torch.Tensor, torch.Tensor | None], Verdict]
"""Pictures (n, 1, height, width) in [-1, 1] and, where known, the garments that were asked for."""


class _Accuracy(MeanMetric):
    """Share of the pictures that the judge classifies as their prompt."""

    direction = "higher"
    needs = frozenset({"prompts"})

    def __init__(self, look: Callable[[Batch], Verdict]):
        super().__init__()
        self._look = look


class JudgeAccuracy(_Accuracy):
    """Share of the pictures that show the garment of their prompt."""

    name = "judge_accuracy"

    def score(self, batch: Batch) -> torch.Tensor:
        return (self._look(batch).garments.cpu() == garments_asked(batch.prompts)).double()


class ToneAccuracy(_Accuracy):
    """Share of the pictures with the tone of their prompt; prompts without a tone do not count."""

    name = "tone_accuracy"

    def score(self, batch: Batch) -> torch.Tensor:
        return (self._look(batch).tones.cpu() == self._asked(batch)).double()

    def measure(self, batch: Batch) -> list[torch.Tensor]:
        scores = super().measure(batch)
        return [score[:1] if tone >= 0 else score[:0] for score, tone in zip(scores, self._asked(batch), strict=True)]

    def _asked(self, batch: Batch) -> torch.Tensor:
        """Indices into TONES, -1 if the prompt names none."""
        asked = [find_word(prompt, TONE_WORDS) for prompt in batch.prompts]
        return torch.tensor([TONES.index(tone) if tone else -1 for tone in asked])


class JudgeFrechet(FrechetMetric):
    """Frechet distance in the judge's features."""

    name = "judge_frechet"


def judge_metrics(judge: Judge) -> list[Metric]:
    """The three metrics; the judge runs once per batch."""

    def look(batch: Batch) -> Verdict:
        grey = batch.pictures().mean(1, keepdim=True).cpu()
        return judge(2 * grey - 1, garments_asked(batch.prompts) if batch.prompts else None)

    look_once = LastSeen(look)
    return [JudgeAccuracy(look_once), ToneAccuracy(look_once), JudgeFrechet(lambda batch: look_once(batch).features)]


def garments_asked(prompts: tuple[str, ...]) -> torch.Tensor:
    """Index of the garment that each prompt names."""
    found = [find_word(prompt, SYNONYMS) for prompt in prompts]
    if None in found:
        raise MetricError(
            f"the prompt {prompts[found.index(None)]!r} names no garment: the judge knows {', '.join(GARMENTS)}"
        )
    return torch.tensor([GARMENTS.index(garment) for garment in found if garment])


def find_word(prompt: str, vocabulary: Mapping[str, tuple[str, ...]]) -> str | None:
    """The entry of the vocabulary whose word the prompt has first; of two at one place, the longer ("t-shirt")."""
    match = _pattern(tuple(word for words in vocabulary.values() for word in words)).search(prompt.lower())
    if match is None:
        return None
    return next(entry for entry, words in vocabulary.items() if match[0] in words)


@cache
def _pattern(words: tuple[str, ...]) -> re.Pattern[str]:
    longest_first = sorted(words, key=len, reverse=True)
    return re.compile(r"(?<![\w-])(?:" + "|".join(map(re.escape, longest_first)) + r")(?![\w-])")
