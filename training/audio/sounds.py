"""Stage 1: render the training set with a General MIDI sound font: waves and what they contain.

Every pitch is a multiple of the spectrogram's frame rate (50 Hz), so chords are in just intonation. A vocoder without a
noise input answers a constant spectrogram with a signal whose period is its stride; such pitches are the ones that it
can hold without beating.
"""

import argparse
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from thg.models.sounds import DRUMS, HOP, INSTRUMENTS, KINDS, SAMPLES, SAMPLING_RATE, Sound, all_sounds, log_mel
from training.loop import save_atomically

WORK = "build/training/audio"
"""The default folder of all intermediate files."""

DEBIAN_FONT = Path("/usr/share/sounds/sf2/FluidR3_GM.sf2")
"""Where the Debian package `fluid-soundfont-gm` puts the sound font."""

PROGRAMS = dict(zip(INSTRUMENTS, (0, 24, 12, 9, 19, 40, 52, 56, 71, 73, 81), strict=True))
DRUM_KEYS = dict(zip(DRUMS, (36, 38, 42, 45), strict=True))

PITCHES = ((100, 150, 200), (300, 350, 400), (600, 700, 800, 900, 1000))
"""In Hz, by register."""
CHORDS = (
    ((100, 150, 200), (150, 200, 250), (100, 150, 250)),
    ((300, 400, 500), (300, 450, 600), (350, 450, 550)),
    ((600, 750, 900), (600, 800, 1000), (800, 1000, 1200)),
)
INTERVALS = {"slow": (18, 22), "fast": (7, 9)}
"""Frames from one onset of a melody to the next, smallest and largest."""
GAP = 1
"""Silent frames before the next note of a melody."""
FIRST_ONSET = 2
LAST_ONSET = 58
NOTE_END = 52
"""Frame at which a note or chord is released."""
PEAKS = ((0.06, 0.1), (0.5, 0.8))
"""Of soft and loud sounds, in full scale."""
VELOCITIES = ((40, 60), (100, 120))

NO_REGISTER = -1
HELD_OUT_EVERY = 10
"""Each tenth melodic combination is never trained on."""
DRUM_SHARE = 0.15


def held_out() -> list[Sound]:
    """The combinations that no training example has."""
    return [s for n, s in enumerate(all_sounds()) if s.register is not None and n % HELD_OUT_EVERY == 7]


class Player:
    """Renders sounds with a sound font, in mono."""

    def __init__(self, font: Path):
        if not font.is_file():
            raise SystemExit(f"no sound font {font}: install the Debian package fluid-soundfont-gm or pass --font FILE")
        try:
            import tinysoundfont  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            raise SystemExit("no package tinysoundfont: pip install tinysoundfont") from None
        self.synth: Any = tinysoundfont.Synth(samplerate=SAMPLING_RATE)
        self.font = self.synth.sfload(str(font))

    def play(self, sound: Sound, dice: random.Random) -> np.ndarray:
        """One example of a sound: samples in [-1, 1]."""
        events = drum_events(sound, dice) if sound.register is None else melodic_events(sound, sound.register, dice)
        velocity = dice.randint(*VELOCITIES[sound.loudness])
        self.synth.sounds_off()
        pieces, position = [], 0
        for frame, starts, keys in events:
            pieces.append(self._render(frame * HOP - position))
            position = frame * HOP
            for channel, key in enumerate(keys):
                self._switch(sound, channel, key, velocity if starts else None)
        pieces.append(self._render(SAMPLES - position))
        wave = np.concatenate(pieces)
        peak = dice.uniform(*PEAKS[sound.loudness])
        return wave * (peak / max(float(np.abs(wave).max()), 1e-6))

    def _switch(self, sound: Sound, channel: int, key: float, velocity: int | None) -> None:
        """Start a note, or stop it if there is no velocity; each note of a chord has its own channel for its tuning."""
        nearest = round(key)
        if velocity is None:
            if KINDS[sound.kind] in INTERVALS:
                self.synth.sounds_off(channel)  # at once: a slow release would blur the beat
            else:
                self.synth.noteoff(channel, nearest)
            return
        if sound.register is None:
            self.synth.program_select(channel, self.font, 128, 0, is_drums=True)
        else:
            self.synth.program_select(channel, self.font, 0, PROGRAMS[INSTRUMENTS[sound.source]])
        self.synth.set_tuning(channel, key - nearest)
        self.synth.noteon(channel, nearest, velocity)

    def _render(self, samples: int) -> np.ndarray:
        if samples == 0:
            return np.zeros(0, np.float32)
        stereo = np.frombuffer(bytes(self.synth.generate(samples)), dtype=np.float32)
        return stereo.reshape(-1, 2).mean(1)


Event = tuple[int, bool, tuple[float, ...]]
"""A frame, whether notes start there (or end), and their MIDI keys, with fractions for the tuning."""


def midi_key(frequency: float) -> float:
    return 69.0 + 12.0 * math.log2(frequency / 440.0)


def onsets(kind: str, dice: random.Random) -> list[int]:
    """The frames at which the notes of a melody or pattern start: an even beat."""
    return list(range(FIRST_ONSET, LAST_ONSET, dice.randint(*INTERVALS[kind])))


def drum_events(sound: Sound, dice: random.Random) -> list[Event]:
    key = float(DRUM_KEYS[DRUMS[sound.source - len(INSTRUMENTS)]])
    return [(frame, True, (key,)) for frame in onsets(KINDS[sound.kind], dice)]


def melodic_events(sound: Sound, register: int, dice: random.Random) -> list[Event]:
    kind = KINDS[sound.kind]
    if kind in ("note", "chord"):
        pitches = (dice.choice(PITCHES[register]),) if kind == "note" else dice.choice(CHORDS[register])
        keys = tuple(midi_key(pitch) for pitch in pitches)
        return [(FIRST_ONSET, True, keys), (NOTE_END, False, keys)]
    events: list[Event] = []
    last: tuple[float, ...] | None = None
    for frame in onsets(kind, dice):
        choices = [(midi_key(pitch),) for pitch in PITCHES[register] if (midi_key(pitch),) != last]
        if last is not None:
            events.append((frame - GAP, False, last))
        last = dice.choice(choices)
        events.append((frame, True, last))
    return events


def render(player: Player, sounds: list[Sound], count: int, seed: int) -> dict[str, torch.Tensor]:
    """`count` examples: waves as 16-bit integers, and their sounds as indices, one column to an attribute."""
    dice = random.Random(seed)
    melodic = [sound for sound in sounds if sound.register is not None]
    drums = [sound for sound in sounds if sound.register is None]
    chosen = [dice.choice(drums if drums and dice.random() < DRUM_SHARE else melodic) for _ in range(count)]
    waves = np.stack([(player.play(sound, dice) * 32767).round().astype(np.int16) for sound in chosen])
    return {"waves": torch.from_numpy(waves), "sounds": torch.tensor([columns(sound) for sound in chosen])}


def columns(sound: Sound) -> list[int]:
    """A sound as numbers: source, register (or NO_REGISTER), loudness, kind."""
    return [sound.source, NO_REGISTER if sound.register is None else sound.register, sound.loudness, sound.kind]


def sound_of(row: list[int]) -> Sound:
    """The inverse of `columns`."""
    return Sound(row[0], None if row[1] == NO_REGISTER else row[1], row[2], row[3])


def load_sounds(work: Path, split: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    """Waves (n, SAMPLES) in [-1, 1] and their sounds (n, 4); `split` is "train" or "test"."""
    file = work / f"sounds.{split}.safetensors"
    if not file.exists():
        raise SystemExit(f"no {file}: run python -m training.audio.sounds first")
    tensors = load_file(file)
    return tensors["waves"].float() / 32767.0, tensors["sounds"]


def log_mels(waves: torch.Tensor) -> torch.Tensor:
    """The spectrograms of many waves: (n, FRAMES, MELS)."""
    return torch.cat([log_mel(part) for part in waves.split(500)])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(WORK))
    parser.add_argument("--font", type=Path, default=DEBIAN_FONT, help="a General MIDI sound font")
    parser.add_argument("--count", type=int, default=9000, help="training examples; a tenth as many for tests")
    options = parser.parse_args(arguments)
    player = Player(options.font)
    hidden = set(held_out())
    train = [sound for sound in all_sounds() if sound not in hidden]
    for split, sounds, count, seed in (
        ("train", train, options.count, 0),
        ("test", all_sounds(), options.count // 10, 1),
    ):
        save_atomically(render(player, sounds, count, seed), options.work / f"sounds.{split}.safetensors")
        print(f"{split}: {count} sounds", flush=True)


if __name__ == "__main__":
    main()
