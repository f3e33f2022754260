"""Recoloured pictures ("blue panda"), from which the denoiser learns that a colour is a word of its own."""

from dataclasses import replace

import torch

from training.emoji.data import Emoji, read_names

PAINTS = {
    "red": (229, 57, 53),
    "orange": (251, 140, 0),
    "yellow": (253, 216, 53),
    "green": (104, 159, 56),
    "blue": (30, 136, 229),
    "purple": (156, 57, 186),
    "brown": (121, 85, 72),
    "black": (66, 66, 66),
    "pink": (244, 120, 170),
}

NOT_RECOLOURED = {"geometric", "heart", "person-role"}
"""Subgroups with held-out combinations of colour and shape, and people, whose colours are skin tones."""


def painted(pictures: torch.Tensor, paint: tuple[int, int, int]) -> torch.Tensor:
    """Pictures (n, 3, h, w) in bytes in shades of one colour: white stays white, the object's median becomes it."""
    grey = pictures.float().mean(1, keepdim=True) / 255
    inside = grey.flatten(1).masked_fill(grey.flatten(1) > 0.95, torch.nan)
    middle = inside.nanmedian(1).values.clamp(0.2, 0.9)[:, None, None, None]
    colour = torch.tensor(paint)[:, None, None] / 255
    darker, lighter = colour * grey / middle, colour + (1 - colour) * (grey - middle) / (1 - middle)
    return torch.where(grey < middle, darker, lighter).clamp(0, 1).mul(255).round().byte()


def recoloured(emoji: list[Emoji], pictures: torch.Tensor) -> tuple[list[Emoji], torch.Tensor]:
    """Every smiley, animal and fruit without a colour in its name in every paint, unless that is itself an emoji."""
    own = {one.name for one in read_names()}
    kept = [
        index
        for index, one in enumerate(emoji)
        if one.subgroup not in NOT_RECOLOURED and not set(one.name.split()) & set(PAINTS)
    ]
    found: list[Emoji] = []
    parts = []
    for word, paint in PAINTS.items():
        new = [index for index in kept if f"{word} {emoji[index].name}" not in own]
        found += [replace(emoji[index], name=f"{word} {emoji[index].name}", characters="") for index in new]
        parts.append(painted(pictures[new], paint))
    return found, torch.cat(parts)
