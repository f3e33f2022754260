"""The vocabulary of the shipped sound model, and the log-mel spectrogram that it and its judge work on.

A sound is an instrument in a register with a note, a chord or a melody, or a drum pattern; each is soft or loud.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Final

import torch

SAMPLING_RATE: Final = 16_000
HOP: Final = 320
"""Samples between two frames of a spectrogram, and the stride of the vocoder."""
FRAMES: Final = 64
SAMPLES: Final = FRAMES * HOP
"""1.28 seconds."""
MELS: Final = 64
WINDOW: Final = 1024

FLOOR: Final = 3e-4
"""The smallest amplitude that a spectrogram shows (-70 dB of full scale)."""
LOG_MEAN: Final = -6.5
LOG_DEVIATION: Final = 2.0
"""About those of the training set; a spectrogram is normalised with them."""

INSTRUMENTS: Final = (
    "piano",
    "guitar",
    "marimba",
    "glockenspiel",
    "organ",
    "violin",
    "choir",
    "trumpet",
    "clarinet",
    "flute",
    "synthesizer",
)
DRUMS: Final = ("kick drum", "snare drum", "hi-hat", "tom")
SOURCES: Final = INSTRUMENTS + DRUMS
REGISTERS: Final = ("low", "middle", "high")
LOUDNESSES: Final = ("soft", "loud")
KINDS: Final = ("note", "chord", "slow", "fast")
"""What is played: a note, a chord, or a slow or fast melody (of a drum: a pattern)."""

WORDS: Final = {
    "soft": ("soft", "quiet"),
    "loud": ("loud", "strong"),
    "low": ("low", "deep"),
    "middle": ("middle", "medium"),
    "fast": ("fast", "quick"),
    "note": ("note", "tone"),
    "melody": ("melody", "phrase", "tune"),
    "pattern": ("pattern", "rhythm", "beat"),
    "synthesizer": ("synthesizer", "synth"),
    "kick drum": ("kick drum", "bass drum"),
    "snare drum": ("snare drum", "snare"),
}
"""All words that the captions used for a thing, if there are several."""

KNOWN_WORDS: Final = (
    f"it plays notes, chords and melodies of {', '.join(INSTRUMENTS)} ({', '.join(REGISTERS)}), and patterns of "
    f"{', '.join(DRUMS)}, {' or '.join(LOUDNESSES)}"
)
"""What a prompt may ask for."""

EXAMPLE_SOUNDS: Final = (
    "a loud low trumpet note",
    "a soft high flute note",
    "a loud middle piano chord",
    "a slow loud high marimba melody",
    "a fast loud hi-hat pattern",
    "a slow loud kick drum pattern",
)
"""Prompts that show what the model can do."""


@dataclass(frozen=True)
class Sound:
    """What a caption asks for, as indices into the lists above. A drum has no register (None)."""

    source: int
    register: int | None
    loudness: int
    kind: int


def all_sounds() -> list[Sound]:
    """Every combination: 264 of instruments and 16 of drums."""
    loudnesses, kinds = range(len(LOUDNESSES)), range(len(KINDS))
    instruments, drums = range(len(INSTRUMENTS)), range(len(INSTRUMENTS), len(SOURCES))
    moving = KINDS.index("slow"), KINDS.index("fast")
    melodic = [Sound(*each) for each in product(instruments, range(len(REGISTERS)), loudnesses, kinds)]
    patterns = [Sound(drum, None, loudness, kind) for drum, loudness, kind in product(drums, loudnesses, moving)]
    return melodic + patterns


def sound_prompt(sound: Sound) -> str:
    """The simplest prompt, such as "a soft low trumpet note" or "a fast loud hi-hat pattern"."""
    kind = KINDS[sound.kind]
    moving = kind in ("slow", "fast")
    words = [kind] if moving else []
    words.append(LOUDNESSES[sound.loudness])
    if sound.register is not None:
        words.append(REGISTERS[sound.register])
    words.append(SOURCES[sound.source])
    words.append(("pattern" if sound.register is None else "melody") if moving else kind)
    return "a " + " ".join(words)


def sound_prompts(count: int) -> Iterator[tuple[str, Sound]]:
    """`count` prompts with what they ask for, spread evenly over all combinations; 280 has each once."""
    sounds = all_sounds()
    step = 101  # has no common factor with their number, so neighbours differ and every combination has its turn
    for number in range(count):
        sound = sounds[number * step % len(sounds)]
        yield sound_prompt(sound), sound


def _mel(frequency: torch.Tensor) -> torch.Tensor:
    return 2595.0 * torch.log10(1.0 + frequency / 700.0)


@cache
@torch.inference_mode(False)  # kept, so also used by those who need gradients
def mel_filters() -> torch.Tensor:
    """Triangles of height one, evenly spaced in mel: (WINDOW / 2 + 1, MELS)."""
    frequencies = torch.linspace(0.0, SAMPLING_RATE / 2, WINDOW // 2 + 1)
    highest = float(_mel(torch.tensor(SAMPLING_RATE / 2)))
    position = _mel(frequencies) / highest * (MELS + 1)
    centres = torch.arange(1, MELS + 1)
    return (1.0 - (position[:, None] - centres).abs()).clamp(min=0.0)


def log_mel(waves: torch.Tensor) -> torch.Tensor:
    """The normalised log-mel spectrogram of waves (n, samples): (n, samples / HOP, MELS)."""
    margin = (WINDOW - HOP) // 2
    padded = torch.nn.functional.pad(waves[:, None], (margin, margin), mode="reflect")[:, 0]
    window = torch.hann_window(WINDOW, device=waves.device)
    spectrum = torch.stft(padded, WINDOW, HOP, window=window, center=False, return_complex=True)
    amplitude = spectrum.abs().transpose(1, 2) * (2.0 / float(window.sum()))
    mel = amplitude @ mel_filters().to(waves.device)
    return (mel.clamp(min=FLOOR).log() - LOG_MEAN) / LOG_DEVIATION
