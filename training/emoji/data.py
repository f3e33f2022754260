"""The emoji of Debian's `fonts-noto-color-emoji`, with the names and groups of Debian's `unicode-data`.

This module reads both, decides which pictures belong to a scope and which combinations are held out. It knows nothing
of captions. Noto's pictures (SIL Open Font License 1.1) are read on the machine that trains, never copied into the
repository.
"""

import hashlib
import io
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from fontTools.ttLib import TTFont
from PIL import Image

FONT = Path("/usr/share/fonts/truetype/noto/NotoColorEmoji.ttf")
NAMES = Path("/usr/share/unicode/emoji/emoji-test.txt")
SIZE = 64

Scope = Literal["basic", "core", "all"]

BASIC_SUBGROUPS = {
    "animal-mammal",
    "cat-face",
    "face-costume",
    "face-glasses",
    "face-hat",
    "face-smiling",
    "food-fruit",
    "geometric",
    "heart",
}
BASIC_ROLES = {"artist", "cook", "farmer", "police officer", "scientist", "teacher"}
"""What "basic" contains: a small scope for the first hours of training, and people in a few roles, in all genders and
skin tones. Only roles of which the judge tells the real pictures apart (88 % or more of each role's) are among them."""

CORE_GROUPS = {"Smileys & Emotion", "Animals & Nature", "Food & Drink"}
CORE_SUBGROUPS = {
    "geometric",
    "musical-instrument",
    "person-role",
    "sport",
    "transport-air",
    "transport-ground",
    "transport-water",
}
"""What "core" contains, beside the groups: things that everybody recognises, and the families with combinations."""

LEFT_OUT_SUBGROUPS = {"alphanum", "family", "keycap", "country-flag", "subdivision-flag", "time"}
"""In no scope: letters and clocks that cannot be read at this size, flags, and families of many small figures."""

GENDERS = ("person", "man", "woman")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "brown", "black", "white")
COLOURED = ("heart", "circle", "square")
HELD_OUT_COLOURED = {"green heart", "brown heart", "orange circle", "purple circle", "blue square", "yellow square"}
HELD_OUT_SHARE = 0.15
"""Of the people with a gender and a skin tone; their role, gender and tone are each seen in other combinations."""


@dataclass(frozen=True)
class Emoji:
    """One picture's entry in Unicode's list. `name`: without the skin tone; `tone`: such as "dark", or empty."""

    characters: str
    name: str
    tone: str
    group: str
    subgroup: str

    @cached_property
    def full_name(self) -> str:
        """Unicode's name, as in "woman firefighter: dark skin tone"."""
        return f"{self.name}: {self.tone} skin tone" if self.tone else self.name

    @cached_property
    def gender(self) -> str:
        """The first of GENDERS in the name, or empty."""
        return next((word for word in self.name.split() if word in GENDERS), "")

    @cached_property
    def family(self) -> str:
        """The same for all genders, tones and colours of one thing; training draws families evenly."""
        words = [word for word in self.name.split() if word not in GENDERS]
        if len(words) == 2 and words[0] in COLOURS and words[1] in COLOURED:
            words = words[1:]
        return " ".join(words) or "person"

    @cached_property
    def character_names(self) -> str:
        """The Unicode character's own name, often another word for the same thing; empty for sequences."""
        characters = self.characters.replace("\ufe0f", "")
        return unicodedata.name(characters, "").lower() if len(characters) == 1 else ""

    @cached_property
    def held_out(self) -> bool:
        """Whether this combination is kept from training."""
        if self.tone and self.gender:
            return hashlib.sha256(self.full_name.encode()).digest()[0] < 256 * HELD_OUT_SHARE
        return self.name in HELD_OUT_COLOURED


def read_names(path: Path = NAMES) -> list[Emoji]:
    """Unicode's list of emoji, those with two skin tones left out."""
    if not path.is_file():
        raise SystemExit(f"no list of emoji names in {path}: install the Debian package unicode-data")
    entries, group, subgroup = [], "", ""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# group: "):
            group = line.removeprefix("# group: ")
        elif line.startswith("# subgroup: "):
            subgroup = line.removeprefix("# subgroup: ")
        match = re.match(r"([0-9A-F ]+); fully-qualified +# \S+ E[\d.]+ (.+)", line)
        if not match:
            continue
        characters = "".join(chr(int(code, 16)) for code in match[1].split())
        name, _, detail = match[2].lower().replace("’", "'").replace("“", "").replace("”", "").partition(": ")
        tones = [part.removesuffix(" skin tone") for part in detail.split(", ") if part.endswith(" skin tone")]
        rest = " ".join(part for part in detail.split(", ") if part and not part.endswith(" skin tone"))
        if len(tones) < 2:
            full = f"{name} with {rest}" if rest else name
            entries.append(Emoji(characters, full, tones[0] if tones else "", group, subgroup))
    return entries


def in_scope(emoji: Emoji, scope: Scope) -> bool:
    """Whether an emoji belongs to a scope. Skin tones only where the family shows a person in a role."""
    if emoji.subgroup in LEFT_OUT_SUBGROUPS or (emoji.tone and emoji.subgroup != "person-role"):
        return False
    if scope == "all":
        return True
    if scope == "basic":
        return emoji.subgroup in BASIC_SUBGROUPS or emoji.family in BASIC_ROLES
    return emoji.group in CORE_GROUPS or emoji.subgroup in CORE_SUBGROUPS


class Font:
    """The font's bitmaps by characters."""

    def __init__(self, path: Path = FONT):
        if not path.is_file():
            raise SystemExit(f"no emoji font in {path}: install the Debian package fonts-noto-color-emoji")
        font = TTFont(path)
        self.glyphs: dict[int, str] = font.getBestCmap()
        self.bitmaps = font["CBDT"].strikeData[0]
        self.ligatures: dict[tuple[str, ...], str] = {}
        for lookup in font["GSUB"].table.LookupList.Lookup:
            for table in lookup.SubTable if lookup.LookupType == 4 else ():
                for first, ligatures in table.ligatures.items():
                    self.ligatures |= {(first, *one.Component): one.LigGlyph for one in ligatures}

    def bitmap(self, characters: str) -> bytes | None:
        """The PNG file of a character or sequence, None if the font has no picture of it."""
        names = tuple(self.glyphs.get(ord(character), "") for character in characters if character != "\ufe0f")
        name = names[0] if len(names) == 1 else self.ligatures.get(names, "")
        return self.bitmaps[name].imageData if name in self.bitmaps else None


def _picture(png: bytes) -> torch.Tensor:
    bitmap = Image.open(io.BytesIO(png)).convert("RGBA")
    side = max(bitmap.size)
    canvas = Image.new("RGBA", (side, side), "white")
    canvas.alpha_composite(bitmap, ((side - bitmap.width) // 2, (side - bitmap.height) // 2))
    small = canvas.convert("RGB").resize((SIZE, SIZE), Image.Resampling.LANCZOS)
    return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1)


def drawn_emoji(scope: Scope) -> list[tuple[Emoji, bytes]]:
    """The emoji of a scope that the font has, held-out ones included, each with its PNG file."""
    font = Font()
    found = [(emoji, font.bitmap(emoji.characters)) for emoji in read_names() if in_scope(emoji, scope)]
    return [(emoji, png) for emoji, png in found if png is not None]


def load_emoji(scope: Scope) -> tuple[list[Emoji], torch.Tensor]:
    """The emoji of a scope, held-out ones included, and their pictures as bytes (n, 3, 64, 64) on white."""
    kept = drawn_emoji(scope)
    return [emoji for emoji, _ in kept], torch.stack([_picture(png) for _, png in kept])


def as_floats(pictures: torch.Tensor) -> torch.Tensor:
    """Bytes to [-1, 1]."""
    return pictures.float().div(127.5).sub(1.0)
