"""Captions for an emoji: its names in varied plain English, so that free wording works."""

import random
import re

from training.emoji.data import Emoji

TEMPLATES = (
    "{}",
    "{}",
    "{}",
    "{}",
    "a {}",
    "a {}",
    "the {}",
    "an emoji of a {}",
    "{} emoji",
    "a picture of a {}",
    "a drawing of a {}",
    "an icon of a {}",
    "show me a {}",
)

SYNONYMS = {
    "airplane": ("plane",),
    "automobile": ("car",),
    "bear": ("teddy",),
    "bicycle": ("bike",),
    "broken": ("shattered",),
    "cat": ("kitty", "kitten"),
    "chick": ("baby bird",),
    "crying": ("sad", "weeping"),
    "dog": ("puppy",),
    "enraged": ("furious", "angry"),
    "firefighter": ("fireman",),
    "frowning": ("sad", "unhappy"),
    "grinning": ("laughing", "happy"),
    "hamburger": ("burger",),
    "man": ("guy", "male"),
    "mouse": ("mice",),
    "motorcycle": ("motorbike",),
    "office": ("business",),
    "police": ("cop",),
    "rabbit": ("bunny",),
    "smiling": ("happy",),
    "soccer": ("football",),
    "technologist": ("programmer", "developer"),
    "woman": ("lady", "female"),
    "cook": ("chef",),
}

TONE_FORMS = (
    "{name}: {tone} skin tone",
    "{name}: {tone} skin tone",
    "{name} with {tone} skin",
    "{tone} skin tone {name}",
    "{name}, {tone} skin",
)

MISLEADING = {"black", "white", "heavy", "negative", "symbol", "sign"}
"""Words of the characters' own names that say how a character was once printed, not what the picture shows."""

EMPTY_WORDS = {"a", "an", "and", "in", "no", "of", "on", "s", "the", "with"}
"""Words that say nothing about a picture."""

SHORTENED = 0.1
"""Share of captions of which only some words are left, so that each word comes to mean something by itself."""

DROPOUT = 0.12
"""Share of captions replaced by the empty prompt, which so becomes the null condition of guidance."""


def _name(emoji: Emoji, dice: random.Random) -> str:
    other = emoji.character_names
    if other and not emoji.tone and not MISLEADING & set(other.split()) and dice.random() < 0.25:
        return other
    return emoji.name


def _with_synonym(text: str, dice: random.Random) -> str:
    words = text.split(" ")
    known = [index for index, word in enumerate(words) if word in SYNONYMS]
    if known:
        index = dice.choice(known)
        words[index] = dice.choice(SYNONYMS[words[index]])
    return " ".join(words)


def caption(emoji: Emoji, dice: random.Random) -> str:
    """One caption, empty with probability DROPOUT."""
    if dice.random() < DROPOUT:
        return ""
    if dice.random() < SHORTENED:
        words = re.findall("[a-z]+", emoji.full_name)
        return " ".join(word for word in words if dice.random() < 0.5) or dice.choice(words)
    if dice.random() < 0.35:
        return emoji.full_name
    name = _name(emoji, dice)
    if dice.random() < 0.3:
        name = _with_synonym(name, dice)
    if dice.random() < 0.1:
        name = name.replace(" face", "").replace(" with ", " ")
    if emoji.tone:
        name = dice.choice(TONE_FORMS).format(name=name, tone=emoji.tone)
    text = dice.choice(TEMPLATES).format(name)
    return f"{text}, {emoji.subgroup.split('-')[0]}" if dice.random() < 0.08 else text


def known_words(emoji: list[Emoji]) -> list[str]:
    """The words of the names of these emoji with their synonyms, without articles and prepositions."""
    names = [one.full_name for one in emoji]
    names += [one.character_names for one in emoji if not MISLEADING & set(one.character_names.split())]
    words = set(re.findall("[a-z]+", " ".join(names)))
    words.update(word for name in words & set(SYNONYMS) for text in SYNONYMS[name] for word in text.split())
    return sorted(words - EMPTY_WORDS)


def caption_words(emoji: list[Emoji]) -> list[str]:
    """Every word that captions of these emoji are made of."""
    texts = [*TEMPLATES, *TONE_FORMS, *SYNONYMS, *(word for words in SYNONYMS.values() for word in words)]
    for one in emoji:
        texts += [one.full_name, one.character_names, one.subgroup]
    return sorted(set(re.findall(r"[a-z]+", " ".join(texts).replace("{name}", "").replace("{tone}", ""))))
