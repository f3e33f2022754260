"""Batches for the diffusion models: latents drawn from their moments, and tokenized captions with condition dropout."""

import random
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import CLIPTokenizer

from training.captions import caption
from training.latents import UNCLEAR
from training.tokenizer import MAX_LENGTH

DROPOUT = 0.12
"""Share of captions replaced by the empty prompt, which so becomes the null condition of guidance."""


class Batches:
    """Training batches as a function of a generator; latents are scaled to unit deviation."""

    def __init__(self, work: Path, tokenizer: CLIPTokenizer, *, shifted: bool):
        tensors = load_file(work / "latents.safetensors")
        self.scale = float(tensors["scale"])
        self.shift = float(tensors["shift"]) if shifted else 0.0
        self.mean, self.deviation = tensors["mean"], tensors["deviation"]
        self.labels, self.tones = tensors["labels"].tolist(), tensors["tones"].tolist()
        self.tokenizer = tokenizer

    def draw(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (size, 4, 8, 8) and token ids (size, MAX_LENGTH)."""
        picked = torch.randint(len(self.mean), (size,), generator=generator)
        noise = torch.randn((size, *self.mean.shape[1:]), generator=generator)
        latents = (self.mean[picked] + self.deviation[picked] * noise - self.shift) * self.scale
        dice = random.Random(int(torch.randint(2**62, (), generator=generator)))
        captions = [self._caption(index, dice) for index in picked.tolist()]
        tokens = self.tokenizer(
            captions, padding="max_length", max_length=MAX_LENGTH, truncation=True, return_tensors="pt"
        ).input_ids
        return latents, tokens

    def _caption(self, index: int, dice: random.Random) -> str:
        if dice.random() < DROPOUT:
            return ""
        tone = self.tones[index]
        return caption(self.labels[index], None if tone == UNCLEAR else tone, dice)
