"""The folder of a run: one file for each sample and method, written whole or not at all.

    config.json                       the configuration
    samples/<method>/000123.png       a picture (or .wav), and
    samples/<method>/000123.json      its record: prompt, seed, evaluations, scores; written last, so a sample is done
                                      when its record is there
    timings/<method>/000120.json      seconds of the batch that begins with this sample
    prepared/<method>.json            what was measured before the comparison (a threshold, a plan), or why not

Names follow from the sample, so processes and machines that share a folder never write the same file with other
content, and need no locks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from thg.bench.config import BenchConfig
from thg.bench.errors import RunFolderError
from thg.files import write_atomically
from thg.media import png_bytes, wav_bytes

DIGITS = 6


class RunFolder:
    """Where a run keeps its samples."""

    def __init__(self, path: Path) -> None:
        self.path = path

    # -- the configuration

    def open(self, config: BenchConfig) -> None:
        """Starts or resumes a run; a folder that holds samples of another one is an error."""
        stored = self.read_json(self.path / "config.json")
        if stored is not None and stored.get("identity") != config.identity():
            raise RunFolderError(
                f"{self.path} holds another run ({stored.get('title')!r}), whose pictures differ from this one's; "
                "choose another folder with --out"
            )
        document = {
            "identity": config.identity(),
            "title": config.title,
            "config": config.source,
            "base": str(config.base),
        }
        self.write_json(self.path / "config.json", document)

    def stored_config(self) -> dict[str, Any]:
        stored = self.read_json(self.path / "config.json")
        if stored is None or not isinstance(stored.get("config"), dict) or not isinstance(stored.get("base"), str):
            raise RunFolderError(f"{self.path} is not the folder of a run: there is no readable config.json in it")
        return stored

    # -- samples

    def sample_path(self, slug: str, index: int, suffix: str) -> Path:
        return self.path / "samples" / slug / f"{index:0{DIGITS}d}{suffix}"

    def is_done(self, slug: str, index: int) -> bool:
        return self.sample_path(slug, index, ".json").exists()

    def done(self, slug: str, count: int) -> int:
        """How many of the first `count` samples are there."""
        return sum(self.is_done(slug, index) for index in range(count))

    def write_picture(self, slug: str, index: int, picture: torch.Tensor, record: dict[str, Any]) -> None:
        """A picture (channels, height, width) in [0, 1]."""
        self._write_sample(slug, index, ".png", png_bytes(picture.permute(1, 2, 0).numpy()), record)

    def write_sound(self, slug: str, index: int, sound: torch.Tensor, rate: int, record: dict[str, Any]) -> None:
        """A sound (samples,) in [-1, 1], as 16-bit wav."""
        self._write_sample(slug, index, ".wav", wav_bytes(sound.numpy(), rate), record)

    def _write_sample(self, slug: str, index: int, suffix: str, content: bytes, record: dict[str, Any]) -> None:
        write_atomically(self.sample_path(slug, index, suffix), content)
        self.write_json(self.sample_path(slug, index, ".json"), record)

    def records(self, slug: str, count: int) -> Iterator[dict[str, Any]]:
        """The records of the first `count` samples, in order. A missing one is an error."""
        for index in range(count):
            record = self.read_json(self.sample_path(slug, index, ".json"))
            if record is None:
                raise RunFolderError(f"sample {index} of {slug} is missing in {self.path}: run thg bench again")
            yield record

    def read_picture(self, slug: str, index: int) -> Image.Image:
        path = self.sample_path(slug, index, ".png")
        try:
            with Image.open(path) as picture:
                picture.load()
                return picture
        except (OSError, SyntaxError, ValueError) as error:
            raise RunFolderError(f"cannot read {path} ({error}); delete its .json and run thg bench again") from None

    # -- timings and preparations

    def write_timing(self, slug: str, index: int, count: int, seconds: float) -> None:
        self.write_json(self.path / "timings" / slug / f"{index:0{DIGITS}d}.json", {"count": count, "seconds": seconds})

    def seconds_per_sample(self, slug: str) -> float | None:
        """The mean over all batches that were timed."""
        timings = [self.read_json(path) or {} for path in sorted((self.path / "timings" / slug).glob("*.json"))]
        samples = sum(timing.get("count", 0) for timing in timings)
        return math.fsum(timing.get("seconds", 0.0) for timing in timings) / samples if samples else None

    def prepared(self, slug: str) -> dict[str, Any]:
        return self.read_json(self.path / "prepared" / f"{slug}.json") or {}

    def write_prepared(self, slug: str, values: dict[str, Any]) -> None:
        self.write_json(self.path / "prepared" / f"{slug}.json", values)

    # -- files

    @staticmethod
    def write_json(path: Path, value: Any) -> None:
        write_atomically(path, (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode())

    @staticmethod
    def read_json(path: Path) -> dict[str, Any] | None:
        """The object in a file; None if there is none, or no readable one."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return value if isinstance(value, dict) else None
