"""Captions for a sound: varied plain English; a caption may leave out the register, the loudness or the tempo."""

import random

from thg.models.sounds import KINDS, LOUDNESSES, REGISTERS, SOURCES, WORDS, Sound

LEFT_OUT = 0.25
"""How often an attribute is not named."""

TEMPLATES = (
    "a {adjectives} {source} {noun}",
    "a {adjectives} {source} {noun}",
    "{adjectives} {source} {noun}",
    "the {adjectives} {source} {noun}",
    "{source} {noun}, {adjectives}",
    "a {adjectives} {noun} on the {source}",
    "a {source} playing a {adjectives} {noun}",
    "the sound of a {adjectives} {source} {noun}",
)


def caption(sound: Sound, dice: random.Random) -> str:
    """One caption."""
    moving = KINDS[sound.kind] in ("slow", "fast")
    drum = sound.register is None
    noun = ("pattern" if drum else "melody") if moving else KINDS[sound.kind]
    adjectives = [KINDS[sound.kind]] if moving else []
    adjectives.append(LOUDNESSES[sound.loudness])
    if sound.register is not None:
        adjectives.append(REGISTERS[sound.register])
    named = [_word(word, dice) for word in adjectives if dice.random() >= LEFT_OUT]
    if dice.random() < 0.3:
        dice.shuffle(named)
    text = dice.choice(TEMPLATES).format(
        adjectives=" ".join(named), source=_word(SOURCES[sound.source], dice), noun=_word(noun, dice)
    )
    return " ".join(text.split()).rstrip(" ,")


def _word(word: str, dice: random.Random) -> str:
    """The usual word half of the time, otherwise any."""
    words = WORDS.get(word, (word,))
    return words[0] if dice.random() < 0.5 else dice.choice(words)


def caption_words() -> list[str]:
    """Every word and sign that captions are made of."""
    texts = [*SOURCES, *KINDS, *LOUDNESSES, *REGISTERS, *(word for words in WORDS.values() for word in words)]
    texts += [template.format(adjectives="", source="", noun="").replace(",", " , ") for template in TEMPLATES]
    return sorted(set(" ".join(texts).replace("-", " - ").split()))
