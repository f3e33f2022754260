"""Captions for a picture: varied plain English from the garment and its tone, with words that mean nothing mixed in."""

import random
import string

from thg.models.garments import GARMENTS, SYNONYMS, TONE_WORDS, TONES

TONE_SHARE = 0.75
"""How often a caption names the tone, if the tone is clear."""

FILLER_SHARE = 0.3
"""How often a caption has a word that says nothing about the picture."""

TEMPLATES = (
    "{}",
    "{}",
    "a {}",
    "a {}",
    "a {}",
    "an {}",
    "the {}",
    "one {}",
    "my {}",
    "this is a {}",
    "a photo of a {}",
    "a photo of the {}",
    "photo of {}",
    "a picture of a {}",
    "picture of {}",
    "an image of a {}",
    "{} on a plain background",
    "a pair of {}",
)

FILLERS = (
    "nice",
    "new",
    "old",
    "beautiful",
    "cheap",
    "elegant",
    "simple",
    "stylish",
    "fashion",
    "cotton",
    "leather",
    "summer",
    "winter",
    "very",
    "really",
    "please",
    "small",
    "large",
)


def _described(garment: str, tone: str | None, dice: random.Random) -> str:
    if tone is None:
        return garment
    orders = (
        f"{tone} {garment}",
        f"{tone} {garment}",
        f"{tone} {garment}",
        f"{garment}, {tone}",
        f"{garment} in {tone}",
        f"{garment} that is {tone}",
        f"{tone} coloured {garment}",
    )
    return dice.choice(orders)


def _with_filler(caption: str, dice: random.Random) -> str:
    words = caption.split(" ")
    gibberish = "".join(dice.choices(string.ascii_lowercase, k=dice.randint(2, 6)))
    words.insert(dice.randint(0, len(words)), dice.choice((dice.choice(FILLERS), gibberish)))
    return " ".join(words)


def caption(label: int, tone: int | None, dice: random.Random) -> str:
    """One caption; `tone` is None when it is too near a border to be named."""
    garment = dice.choice(SYNONYMS[GARMENTS[label]])
    if dice.random() < 0.4:
        garment = GARMENTS[label]
    word = None
    if tone is not None and dice.random() < TONE_SHARE:
        word = TONES[tone] if dice.random() < 0.6 else dice.choice(TONE_WORDS[TONES[tone]])
    text = dice.choice(TEMPLATES).format(_described(garment, word, dice))
    return _with_filler(text, dice) if dice.random() < FILLER_SHARE else text


def caption_words() -> list[str]:
    """Every word and sign that captions are made of, gibberish left out."""
    texts = [*FILLERS, *GARMENTS, *TEMPLATES, "coloured that is in , -"]
    texts += [name for names in SYNONYMS.values() for name in names]
    texts += [word for words in TONE_WORDS.values() for word in words]
    separated = " ".join(texts).replace("{}", " ").replace("-", " - ")
    return sorted(set(separated.split()))
