"""Batches for the denoiser: latents of a scope's pictures, some of them recoloured, and tokenized captions."""

import random
from collections import defaultdict
from pathlib import Path

import torch
from transformers import CLIPTokenizer

from training.emoji.autoencoder import encode, load_autoencoder
from training.emoji.captions import caption, caption_words
from training.emoji.data import Emoji, Scope, in_scope, load_emoji, read_names
from training.emoji.recolour import recoloured
from training.tokenizer import MAX_LENGTH, build_tokenizer

FAMILY_EXPONENT = 0.8
"""A family of n pictures is drawn n ** 0.8 times as often as a single picture."""

RECOLOURED_SHARE = 0.25
"""Of the pictures drawn."""


def emoji_tokenizer() -> CLIPTokenizer:
    """One token for each word of the largest scope, so that a model can be trained further on more emoji."""
    return build_tokenizer(caption_words([emoji for emoji in read_names() if in_scope(emoji, "all")]))


class Batches:
    """Training batches as a function of a generator; held-out combinations never appear."""

    def __init__(self, work: Path, scope: Scope, tokenizer: CLIPTokenizer):
        emoji, pictures = load_emoji(scope)
        seen = [index for index, one in enumerate(emoji) if not one.held_out]
        real, pictures = [emoji[index] for index in seen], pictures[seen]
        others, other_pictures = recoloured(real, pictures)
        self.emoji = [*real, *others]
        self.pictures = torch.cat([pictures, other_pictures])
        self.latents = encode(load_autoencoder(work), self.pictures)
        self.tokenizer = tokenizer
        weights = family_weights(real)
        each = weights.sum() * RECOLOURED_SHARE / (1 - RECOLOURED_SHARE) / len(others)
        self.weights = torch.cat([weights, each.expand(len(others))])

    def draw(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Latents (size, 8, 16, 16) and token ids (size, MAX_LENGTH)."""
        picked, tokens = self.pick(size, generator)
        return self.latents[picked], tokens

    def pick(self, size: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices of pictures, and token ids of captions of theirs."""
        picked = torch.multinomial(self.weights, size, generator=generator)
        dice = random.Random(int(torch.randint(2**62, (), generator=generator)))
        captions = [caption(self.emoji[index], dice) for index in picked.tolist()]
        tokens = self.tokenizer(
            captions, padding="max_length", max_length=MAX_LENGTH, truncation=True, return_tensors="pt"
        ).input_ids
        return picked, tokens


def family_weights(emoji: list[Emoji]) -> torch.Tensor:
    """How often each picture is drawn."""
    members: dict[str, int] = defaultdict(int)
    for one in emoji:
        members[one.family] += 1
    return torch.tensor([members[one.family] ** (FAMILY_EXPONENT - 1) for one in emoji])
