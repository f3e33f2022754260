"""Metrics for the shipped sound model: is it the sound that the prompt asked for, does it sound real?

The judge is a classifier trained on rendered sounds (`thg.models.sound_judge`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from thg.bench.metrics.base import Batch, LastSeen, MeanMetric, Metric, MetricError
from thg.bench.metrics.frechet import FrechetMetric
from thg.models.sound_judge import SoundJudge, SoundVerdict
from thg.models.sounds import LOG_DEVIATION, Sound, all_sounds, log_mel, sound_prompt


class _Accuracy(MeanMetric):
    """Share of the sounds of which the judge hears an attribute as asked."""

    direction = "higher"
    needs = frozenset({"prompts"})
    hears = True
    attribute: str

    def __init__(self, listen: Callable[[Batch], SoundVerdict]):
        super().__init__()
        self._listen = listen

    def score(self, batch: Batch) -> torch.Tensor:
        return self._listen(batch).right(sounds_asked(batch.prompts))[self.attribute].double()


class SoundAccuracy(_Accuracy):
    """Share of the sounds of which everything is as asked: instrument, register, loudness and what is played."""

    name = "sound_accuracy"
    attribute = "all"


class InstrumentAccuracy(_Accuracy):
    """Share of the sounds with the instrument or drum that was asked for."""

    name = "instrument_accuracy"
    attribute = "source"


class SoundFrechet(FrechetMetric):
    """Frechet audio distance in the judge's features."""

    name = "sound_frechet"
    hears = True


class LogMelDistance(MeanMetric):
    """Mean absolute difference of the logarithmic mel spectrograms from plain CFG's, in decibels."""

    name = "log_mel"
    direction = "lower"
    needs = frozenset({"pairs"})
    hears = True

    def score(self, batch: Batch) -> torch.Tensor:
        difference = (log_mel(batch.sounds()) - log_mel(batch.reference_sounds())).abs().mean((1, 2))
        return difference.double() * LOG_DEVIATION * 20 / torch.log(torch.tensor(10.0))


def sound_metrics(judge: SoundJudge) -> list[Metric]:
    """The metrics of the judge, which listens once per batch."""
    listen_once = LastSeen(lambda batch: judge(batch.sounds().cpu()))
    return [
        SoundAccuracy(listen_once),
        InstrumentAccuracy(listen_once),
        SoundFrechet(lambda batch: listen_once(batch).features),
    ]


def sounds_asked(prompts: tuple[str, ...]) -> list[Sound]:
    """What each of the model's own prompts asks for."""
    known = {sound_prompt(sound): sound for sound in all_sounds()}
    if unknown := [prompt for prompt in prompts if prompt not in known]:
        raise MetricError(f"the prompt {unknown[0]!r} is none of the judge's; they are like {next(iter(known))!r}")
    return [known[prompt] for prompt in prompts]
