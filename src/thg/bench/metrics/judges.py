"""Metrics by the judges of the shipped models: is a sample what its prompt asked for, and does it look or sound real?

A judge is a network that was trained on real pictures or sounds (`thg.models.judge`, `emoji_judge`, `sound_judge`), or
anything that answers like it. It is loaded with the first batch, and runs once per batch, for all of its metrics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

import torch
from torch import Tensor

from thg.bench.metrics.base import Batch, MeanMetric, Metric, MetricError
from thg.bench.metrics.frechet import FrechetMetric
from thg.models.emoji_prompts import emoji_names
from thg.models.garments import GARMENTS, SYNONYMS, TONE_WORDS, TONES
from thg.models.judge import EmojiJudge, SoundJudge, SoundVerdict, Verdict
from thg.models.sounds import Sound, all_sounds, sound_prompt

GarmentJudge = Callable[[Tensor, Tensor | None], Verdict]
"""Pictures (n, 1, height, width) in [-1, 1] and, where known, the garments that were asked for."""


class AsAsked(MeanMetric):
    """Share of the samples that are as asked.

    right: one number per sample, 1 or 0, or NaN for a prompt that does not ask for it and so does not count.
    """

    direction = "higher"
    needs = frozenset({"prompts"})

    def __init__(self, name: str, right: Callable[[Batch], Tensor], hears: bool = False) -> None:
        super().__init__()
        self.name, self.hears = name, hears
        self._right = right

    def score(self, batch: Batch) -> Tensor:
        return self._right(batch)

    def measure(self, batch: Batch) -> list[Tensor]:
        return [row[~row.isnan()] for row in super().measure(batch)]


def garment_metrics(load: Callable[[], GarmentJudge]) -> list[Metric]:
    """Share of the pictures with the garment and the tone of their prompt, and the distance from real ones."""

    @lru_cache(maxsize=1)
    def look(batch: Batch) -> Verdict:
        grey = batch.pictures().mean(1, keepdim=True).cpu()
        return load()(2 * grey - 1, garments_asked(batch.prompts) if batch.prompts else None)

    def tones(batch: Batch) -> Tensor:
        asked = [find_word(prompt, TONE_WORDS) for prompt in batch.prompts]
        wanted = torch.tensor([TONES.index(tone) if tone else -1 for tone in asked])
        return (look(batch).tones.cpu() == wanted).double().where(wanted >= 0, torch.nan)

    return [
        AsAsked("judge_accuracy", lambda batch: look(batch).garments.cpu() == garments_asked(batch.prompts)),
        AsAsked("tone_accuracy", tones),
        FrechetMetric(lambda batch: look(batch).features, "judge_frechet"),
    ]


def emoji_metrics(load: Callable[[], EmojiJudge]) -> list[Metric]:
    """Share of the pictures whose prompt is the best, or of the best five, of all captions; distance from real ones."""

    @lru_cache(maxsize=1)
    def ranks(batch: Batch) -> Tensor:
        captions = emoji_names().captions
        if unknown := [prompt for prompt in batch.prompts if prompt not in captions]:
            raise MetricError(f"the prompt {unknown[0]!r} is none of the judge's captions, such as {captions[0]!r}")
        return load().ranks(scaled(batch), [captions.index(prompt) for prompt in batch.prompts], captions)

    def scaled(batch: Batch) -> Tensor:
        return 2 * batch.pictures().cpu() - 1

    return [
        AsAsked("emoji_recall_1", lambda batch: ranks(batch) < 1),
        AsAsked("emoji_recall_5", lambda batch: ranks(batch) < 5),
        FrechetMetric(lambda batch: load().features(scaled(batch)), "emoji_frechet"),
    ]


def sound_metrics(load: Callable[[], SoundJudge]) -> list[Metric]:
    """Share of the sounds of which everything (instrument, register, loudness, what is played) or the instrument is as
    asked, and the distance from real ones."""

    @lru_cache(maxsize=1)
    def listen(batch: Batch) -> SoundVerdict:
        return load()(batch.sounds().cpu())

    def right(attribute: str) -> Callable[[Batch], Tensor]:
        return lambda batch: listen(batch).right(sounds_asked(batch.prompts))[attribute]

    return [
        AsAsked("sound_accuracy", right("all"), hears=True),
        AsAsked("instrument_accuracy", right("source"), hears=True),
        FrechetMetric(lambda batch: listen(batch).features, "sound_frechet", hears=True),
    ]


# -- what prompts ask for


def garments_asked(prompts: tuple[str, ...]) -> Tensor:
    """Index of the garment that each prompt names."""
    found = [find_word(prompt, SYNONYMS) for prompt in prompts]
    if None in found:
        raise MetricError(
            f"the prompt {prompts[found.index(None)]!r} names no garment: the judge knows {', '.join(GARMENTS)}"
        )
    return torch.tensor([GARMENTS.index(garment) for garment in found if garment])


def find_word(prompt: str, vocabulary: Mapping[str, tuple[str, ...]]) -> str | None:
    """The entry of the vocabulary whose word the prompt has first; of two at one place, the longer ("t-shirt")."""
    entries = {word: entry for entry, words in vocabulary.items() for word in words}
    longest_first = sorted(entries, key=len, reverse=True)
    match = re.search(rf"(?<![\w-])(?:{'|'.join(map(re.escape, longest_first))})(?![\w-])", prompt.lower())
    return None if match is None else entries[match[0]]


def sounds_asked(prompts: tuple[str, ...]) -> list[Sound]:
    """What each of the model's own prompts asks for."""
    known = {sound_prompt(sound): sound for sound in all_sounds()}
    if unknown := [prompt for prompt in prompts if prompt not in known]:
        raise MetricError(f"the prompt {unknown[0]!r} is none of the judge's; they are like {next(iter(known))!r}")
    return [known[prompt] for prompt in prompts]
