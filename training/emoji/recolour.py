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

NOT_RECOLOURED = {"heart", "person-role"}
"""Subgroups: hearts, which are held out in some colours, and people, whose colours are skin tones."""

NOT_RECOLOURED_SHAPES = {"circle", "square", "button"}
"""Words: the other shapes that are held out in some colours, and what looks like them."""


def painted(pictures: torch.Tensor, paint: tuple[int, int, int]) -> torch.Tensor:
    """Pictures (n, 3, h, w) in bytes in shades of one colour: white stays white, the object's median becomes it."""
    grey = pictures.float().mean(1, keepdim=True) / 255
    inside = grey.flatten(1).masked_fill(grey.flatten(1) > 0.95, torch.nan)
    middle = inside.nanmedian(1).values.clamp(0.2, 0.9)[:, None, None, None]
    colour = torch.tensor(paint)[:, None, None] / 255
    darker, lighter = colour * grey / middle, colour + (1 - colour) * (grey - middle) / (1 - middle)
    return torch.where(grey < middle, darker, lighter).clamp(0, 1).mul(255).round().byte()


def recoloured(emoji: list[Emoji], pictures: torch.Tensor) -> tuple[list[Emoji], torch.Tensor]:
    """Every smiley, animal, fruit, diamond and triangle in every paint, unless that is itself an emoji."""
    taken = {one.name for one in read_names()}
    found: list[Emoji] = []
    parts = []
    for index, one in enumerate(emoji):
        words = one.name.split()
        if one.subgroup in NOT_RECOLOURED or NOT_RECOLOURED_SHAPES & set(words):
            continue
        for colour, paint in PAINTS.items():
            coloured = [colour if word in PAINTS else word for word in words]
            name = " ".join(coloured if colour in coloured else [colour, *words])
            if name not in taken:
                taken.add(name)
                found.append(replace(one, name=name, characters=""))
                parts.append(painted(pictures[index : index + 1], paint))
    return found, torch.cat(parts)
