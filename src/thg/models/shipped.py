"""The table of the shipped models: what each makes, how it is called, which words it knows, and where its files are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from thg.errors import THGError
from thg.models import emoji_prompts, garments, sounds

ShippedName = Literal["eps", "flow", "emoji", "audio"]


@dataclass(frozen=True)
class ShippedModel:
    """One model. steps, guidance_scale: recommended, and those at which it was measured; 0 is the pipeline's default.

    makes: a clause for people, "it draws ..."; names: the words for things that it was trained on.
    prompts, calibration: that many prompts for a benchmark, for a calibration. call: further arguments of each call.
    """

    steps: int = 0
    guidance_scale: float = 0.0
    makes: str = ""
    names: Callable[[], Iterable[str]] = lambda: ()
    examples: tuple[str, ...] = ()
    prompts: Callable[[int], list[str]] = lambda count: []
    calibration: Callable[[int], list[str]] = lambda count: []
    call: Mapping[str, Any] = field(default_factory=dict)

    def knows(self, prompt: str) -> bool:
        """Does the prompt name a thing that the model was trained on?"""
        words = f" {' '.join(re.findall('[a-z]+', prompt.lower()))} "
        return any(f" {name.replace('-', ' ')} " in words for name in self.names())

    def objection(self, prompt: str) -> str:
        """A sentence about a prompt that a shipped model cannot follow; empty if it can."""
        if not self.makes or self.knows(prompt):
            return ""
        return f"{prompt!r} has no word that this model knows; {self.makes}"


def _garments(steps: int, guidance_scale: float, **call: Any) -> ShippedModel:
    return ShippedModel(
        steps=steps,
        guidance_scale=guidance_scale,
        makes=garments.KNOWN_WORDS,
        names=lambda: chain(*garments.SYNONYMS.values()),
        examples=garments.EXAMPLE_PROMPTS,
        prompts=garments.prompts_in_turn,
        calibration=garments.mixed_prompts,
        call=call,
    )


SHIPPED: Final[dict[ShippedName, ShippedModel]] = {
    "eps": _garments(50, 5.0),
    "flow": _garments(28, 4.0, max_sequence_length=1),  # no T5, whose padding would only cost time
    "emoji": ShippedModel(
        steps=30,
        guidance_scale=5.0,
        makes=emoji_prompts.KNOWN_WORDS,
        names=lambda: emoji_prompts.emoji_names().words,
        examples=emoji_prompts.EXAMPLE_EMOJI,
        prompts=emoji_prompts.emoji_prompts,
        calibration=emoji_prompts.emoji_prompts,
    ),
    "audio": ShippedModel(
        steps=50,
        guidance_scale=3.5,
        makes=sounds.KNOWN_WORDS,
        names=lambda: chain(*(sounds.WORDS.get(source, (source,)) for source in sounds.SOURCES)),
        examples=sounds.EXAMPLE_SOUNDS,
        prompts=lambda count: [prompt for prompt, _ in sounds.sound_prompts(count)],
        calibration=lambda count: [prompt for prompt, _ in sounds.sound_prompts(count)],
    ),
}


def about(model: str) -> ShippedModel:
    """The entry of a shipped model; of another model an empty one, which leaves everything to its pipeline."""
    return SHIPPED[model] if model in SHIPPED else ShippedModel()


def shipped_path(name: ShippedName = "eps") -> Path:
    """The folder of a shipped model, in the layout that diffusers' `from_pretrained` reads."""
    if name not in SHIPPED:
        known = " or ".join(f'shipped_pipeline("{each}")' for each in SHIPPED)
        raise THGError(f"there is no shipped model {name!r}; write {known}")
    return Path(__file__).parent / name
