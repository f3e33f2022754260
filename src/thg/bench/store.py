"""Where samples and their measurements are kept: a store that runs share, and the folder of a run.

    STORE/series/<key>/series.json             what determines its samples: model, scheduler, prompts, seed, steps,
                                               policy and the results of its preparation
    STORE/series/<key>/samples/000123.png      a sample (.png, .jpg, .wav, or its latents in .safetensors), and
    STORE/series/<key>/samples/000123.json     its record: prompt, seed, evaluations; written last, so a sample is
                                               complete when its record exists
    STORE/series/<key>/timings/000120.json     seconds of the batch that begins with this sample
    STORE/series/<key>/measured/<name>/*       rows of scores or features, a file for each measured batch
    STORE/references/<key>/measured/<name>/*   the same for reference files
    STORE/prepared/<key>.json                  results of the preparation (a threshold, a plan), or why it failed
    RUN/config.json                            the configuration, and the path of its store

A series is addressed by what determines its samples, so configurations that have a method in common share it. File
names follow from the content: processes and machines that share a store never write different content to the same file,
need no locks and never wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from thg.bench.errors import RunFolderError
from thg.bench.rows import RowFiles
from thg.files import write_atomically

DIGITS = 6
SUFFIXES = (".png", ".jpg", ".wav", ".safetensors")


class Series:
    """The samples of one method with the same settings, by the index of the prompt."""

    def __init__(self, path: Path, what: Mapping[str, Any]) -> None:
        self.path = path
        self._what = what

    @property
    def key(self) -> str:
        return self.path.name

    def done(self) -> set[int]:
        """The indices of the existing samples, by listing the folder once."""
        return {int(name[:-5]) for name in _names(self.path / "samples") if name.endswith(".json")}

    def write(self, index: int, suffix: str, content: bytes | None, record: Mapping[str, Any]) -> None:
        """Writes a sample and its record; without content, the record alone."""
        if not (self.path / "series.json").exists():
            write_json(self.path / "series.json", self._what)
        if content is not None:
            write_atomically(self._sample(index, suffix), content)
        write_json(self._sample(index, ".json"), record)

    def file(self, index: int) -> Path | None:
        """The file of a sample, if one was kept."""
        return next((path for suffix in SUFFIXES if (path := self._sample(index, suffix)).exists()), None)

    def any_record(self) -> dict[str, Any] | None:
        """The record of the first existing sample, if any."""
        return read_json(self._sample(min(done), ".json")) if (done := self.done()) else None

    def records(self, count: int) -> Iterator[dict[str, Any]]:
        """The records of the first `count` samples, in order. A missing one is an error."""
        for index in range(count):
            record = read_json(self._sample(index, ".json"))
            if record is None:
                raise RunFolderError(f"sample {index} is missing in {self.path}: run thg bench again")
            yield record

    def write_timing(self, index: int, count: int, seconds: float) -> None:
        write_json(self.path / "timings" / f"{index:0{DIGITS}d}.json", {"count": count, "seconds": seconds})

    def seconds_per_sample(self) -> float | None:
        """The mean over all batches that were timed."""
        timings = [read_json(path) or {} for path in sorted((self.path / "timings").glob("[0-9]*.json"))]
        samples = sum(timing.get("count", 0) for timing in timings)
        return math.fsum(timing.get("seconds", 0.0) for timing in timings) / samples if samples else None

    def measured(self, name: str) -> RowFiles:
        return RowFiles(self.path / "measured" / name)

    def _sample(self, index: int, suffix: str) -> Path:
        return self.path / "samples" / f"{index:0{DIGITS}d}{suffix}"


class Store:
    """The folder that runs share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def series(self, what: Mapping[str, Any]) -> Series:
        """The series of samples with these settings."""
        return Series(self.path / "series" / digest(what), what)

    def references(self, what: Mapping[str, Any], name: str) -> RowFiles:
        """Rows measured on reference files."""
        return RowFiles(self.path / "references" / digest(what) / "measured" / name)

    def prepared(self, what: Mapping[str, Any]) -> dict[str, Any]:
        return read_json(self.path / "prepared" / f"{digest(what)}.json") or {}

    def write_prepared(self, what: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        write_json(self.path / "prepared" / f"{digest(what)}.json", values)

    def parts(self, what: Mapping[str, Any]) -> Path:
        """A folder for the intermediate results of a long preparation."""
        return self.path / "prepared" / digest(what)


class RunFolder:
    """The folder of a run, with its configuration and report."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, config: Mapping[str, Any], identity: str, base: Path, store: Path) -> None:
        """Starts or resumes a run; a folder that holds another one is an error."""
        stored = read_json(self.path / "config.json")
        if stored is not None and stored.get("identity") != identity:
            raise RunFolderError(
                f"{self.path} holds another run ({stored.get('config', {}).get('title')!r}), whose pictures differ "
                "from this one's; choose another folder with --out"
            )
        document = {"identity": identity, "config": config, "base": str(base), "store": str(store.resolve())}
        write_json(self.path / "config.json", document)

    def stored(self) -> dict[str, Any]:
        """What `open` has written."""
        stored = read_json(self.path / "config.json")
        if stored is None or not isinstance(stored.get("config"), dict) or not isinstance(stored.get("store"), str):
            raise RunFolderError(f"{self.path} is not the folder of a run: there is no readable config.json in it")
        return stored


def digest(what: Mapping[str, Any]) -> str:
    """Sixteen hex digits of a value."""
    text = json.dumps(what, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def open_picture(path: Path) -> Image.Image:
    try:
        with Image.open(path) as picture:
            picture.load()
            return picture
    except (OSError, SyntaxError, ValueError) as error:
        raise RunFolderError(f"cannot read {path} ({error}); delete its .json and run thg bench again") from None


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=1, sort_keys=True, default=str) + "\n").encode())


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in a file; None if the file is missing or not readable."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _names(folder: Path) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except FileNotFoundError:
        return []
