"""CLAP score: does the sound fit its text? (Wu et al., 2023)"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from thg.bench.metrics.base import MeanMetric
from thg.bench.metrics.batch import Batch
from thg.bench.metrics.hub import from_hub, load_model, pooled, transformers_class

CLAP_MODEL = "laion/clap-htsat-unfused"


class CLAPScore(MeanMetric):
    """cos(E_A, E_C) in [-1, 1], averaged over sounds.

    CLAP hears `max_length_s` seconds (10) and its processor cuts a longer sound at a random place; here the beginning
    is taken, so that the number can be reproduced.
    """

    name = "clap_score"
    direction = "higher"
    needs = frozenset({"prompts"})

    def __init__(self, model: Any, processor: Any, device: str = "cpu"):
        super().__init__()
        self._model, self._processor, self._device = model, processor, device

    def score(self, batch: Batch) -> torch.Tensor:
        listener = self._processor.feature_extractor
        sounds = batch.sounds_at(listener.sampling_rate)[:, : listener.nb_max_samples]
        heard = listener([sound.numpy() for sound in sounds], sampling_rate=listener.sampling_rate, return_tensors="pt")
        text_config = self._model.config.text_config
        longest = text_config.max_position_embeddings - text_config.pad_token_id - 1  # as Roberta counts positions
        read = self._processor.tokenizer(
            list(batch.prompts), padding=True, truncation=True, max_length=longest, return_tensors="pt"
        )
        sound = pooled(
            self._model.get_audio_features(
                input_features=heard["input_features"].to(self._device), is_longer=heard["is_longer"].to(self._device)
            )
        )
        text = pooled(
            self._model.get_text_features(
                input_ids=read["input_ids"].to(self._device), attention_mask=read["attention_mask"].to(self._device)
            )
        )
        return F.cosine_similarity(sound, text)


def load_clap_score(source: str = CLAP_MODEL, device: str = "cpu") -> CLAPScore:
    """CLAP score with a ClapModel from a hub id or a folder."""
    model = load_model("ClapModel", source, "CLAP score", device)
    processor = from_hub(transformers_class("ClapProcessor", "CLAP score").from_pretrained, source, "CLAP score")
    return CLAPScore(model, processor, device)
