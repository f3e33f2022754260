"""What the emoji model can be asked for: its names, the words of its captions, and examples."""

import json
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from thg.errors import THGError

NAMES_PATH: Final = Path(__file__).parent / "emoji" / "names.json"

KNOWN_WORDS: Final = (
    "it draws emoji by their names: hearts, circles and squares in nine colours, smileys, cats and other mammals, "
    "fruit, people at work, such as 'blue heart', 'winking face', 'purple fox' or 'woman farmer: dark skin tone'"
)
"""What a prompt may ask for."""

EMOJI_PROMPTS: Final = (
    "red heart",
    "blue heart",
    "yellow heart",
    "broken heart",
    "sparkling heart",
    "green circle",
    "orange square",
    "grinning face",
    "winking face",
    "smiling face with halo",
    "smiling face with sunglasses",
    "nerd face",
    "partying face",
    "cowboy hat face",
    "ghost",
    "alien",
    "robot",
    "pile of poo",
    "grinning cat",
    "cat with tears of joy",
    "dog face",
    "cat face",
    "lion",
    "tiger face",
    "horse face",
    "unicorn",
    "cow face",
    "pig face",
    "fox",
    "panda",
    "koala",
    "woman farmer: dark skin tone",
    "man cook: medium skin tone",
    "woman scientist: light skin tone",
    "watermelon",
    "red apple",
    "banana",
    "strawberry",
    "pineapple",
    "lemon",
)
"""Forty prompts that show what the emoji model can do; all are names that it was trained on."""

EXAMPLE_EMOJI: Final = (
    "red heart",
    "smiling face with sunglasses",
    "panda",
    "strawberry",
    "robot",
    "cat with tears of joy",
    "green circle",
    "lion",
    "watermelon",
    "ghost",
)
"""Suggestions to begin with."""


@dataclass(frozen=True)
class EmojiNames:
    """Unicode's names of the emoji: those that the model has seen, combinations that were kept from it, others that it
    was not trained on; and all words of its captions."""

    trained: tuple[str, ...]
    held_out: tuple[str, ...]
    others: tuple[str, ...]
    words: frozenset[str]

    @property
    def captions(self) -> list[str]:
        """Those that the judge ranks."""
        return [*self.trained, *self.held_out, *self.others]


@cache
def emoji_names(path: Path = NAMES_PATH) -> EmojiNames:
    """The names that belong to the shipped model."""
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
        trained, held_out, others = (tuple(lists[part]) for part in ("trained", "held_out", "others"))
        return EmojiNames(trained, held_out, others, frozenset(lists["words"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise THGError(f"cannot read the names of the emoji in {path} ({error}); reinstall thg") from error


def emoji_prompts(count: int) -> list[str]:
    """`count` names, trained and held-out ones mixed; after the last they begin anew."""
    names = [*emoji_names().trained, *emoji_names().held_out]
    random.Random(0).shuffle(names)
    return [names[number % len(names)] for number in range(count)]
