"""The vocabulary of the shipped models: the ten garments, their synonyms, and the three tones.

The training captions, the benchmark's prompts and the judge all use it.
"""

from collections.abc import Iterator
from typing import Final

import torch

SYNONYMS: Final = {
    "t-shirt": ("t-shirt", "tshirt", "t shirt", "tee"),
    "trousers": ("trousers", "trouser", "pants", "jeans"),
    "pullover": ("pullover", "sweater", "jumper"),
    "dress": ("dress", "gown", "frock"),
    "coat": ("coat", "jacket", "overcoat"),
    "sandal": ("sandal", "sandals"),
    "shirt": ("shirt", "blouse"),
    "sneaker": ("sneaker", "sneakers", "trainer", "running shoe"),
    "bag": ("bag", "handbag", "purse"),
    "ankle boot": ("ankle boot", "ankle boots", "boot", "boots"),
}
"""All names that the captions used for a garment."""

GARMENTS: Final = tuple(SYNONYMS)
"""One name for each, in the order of Fashion-MNIST's labels."""

TONE_WORDS: Final = {
    "dark": ("dark", "black"),
    "medium": ("medium", "grey", "gray"),
    "light": ("light", "bright", "white", "pale"),
}
"""All words that the captions used for a tone."""

TONES: Final = tuple(TONE_WORDS)
"""In order of increasing brightness."""

KNOWN_WORDS: Final = f"it draws garments ({', '.join(GARMENTS)}) that are {', '.join(TONES)}"
"""What a prompt may ask for."""

FOREGROUND: Final = 0.1
"""A pixel belongs to the garment when it is brighter than this (black is 0, white is 1)."""


def brightness(pictures: torch.Tensor) -> torch.Tensor:
    """Mean brightness of each garment without the background; `pictures` are (n, 1, height, width) in [-1, 1]."""
    values = pictures.clamp(-1.0, 1.0).add(1.0).div(2.0).flatten(1)
    inside = values > FOREGROUND
    return (values * inside).sum(1) / inside.sum(1).clamp(min=1)


def prompt_for(garment: str, tone: str | None = None) -> str:
    """The simplest prompt, such as "a dark coat", "trousers" or "an ankle boot"."""
    words = f"{tone} {garment}" if tone else garment
    if garment == "trousers":
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def benchmark_prompts(per_garment: int = 100) -> Iterator[tuple[str, int, int]]:
    """`per_garment` prompts for each garment, the tones in turn, as (prompt, garment's index, tone's index)."""
    for label, garment in enumerate(GARMENTS):
        for number in range(per_garment):
            tone = number % len(TONES)
            yield prompt_for(garment, TONES[tone]), label, tone


def prompts_in_turn(count: int) -> list[str]:
    """At least `count` prompts, the garments in turn, so that a short run includes all of them."""
    turns = -(-count // len(GARMENTS))
    return [prompt_for(garment, TONES[turn % len(TONES)]) for turn in range(turns) for garment in GARMENTS]


def mixed_prompts(count: int) -> list[str]:
    """`count` prompts over all garments and tones."""
    every = [prompt for prompt, *_ in benchmark_prompts(len(TONES))]
    return [every[7 * i % len(every)] for i in range(count)]  # 7 and 30 have no common factor: each has its turn


EXAMPLE_PROMPTS: Final = (
    "a dark ankle boot",
    "a light dress",
    "a medium pullover",
    "a light t-shirt",
    "dark trousers",
    "a light bag",
    "a medium sneaker",
    "a dark coat",
    "a light sandal",
    "a dark shirt",
)
"""Prompts that show what the models can do."""
