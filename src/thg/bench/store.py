"""Where samples and their measurements are kept: a store that runs share, and the folder of a run.

    STORE/series/<key>/series.json             what determines its samples: model, scheduler, prompts, seed, steps,
                                               policy and the results of its preparation
    STORE/series/<key>/samples/000123.png      a sample (.png or .wav), and
    STORE/series/<key>/samples/000123.json     its record: prompt, seed, evaluations; written last, so a sample is
                                               complete when its record exists
    STORE/series/<key>/timings/000120-*.json   seconds of the batch that begins with this sample; batches of several
                                               series that were timed in turns have the same name
    STORE/series/<key>/measured/<name>/*       rows of scores or features, a file for each measured batch
    STORE/series/<key>/measured/<name>.json    numbers that a package has measured on the files
    STORE/prepared/<key>.json                  results of the preparation (a threshold, a plan), or why it failed
    RUN/config.json                            the configuration, and the path of its store

A series is addressed by what determines its samples, so configurations that have a method in common share it. File
names follow from the content: processes and machines that share a store never write different content to the same file,
need no locks and never wait for each other.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from thg.bench.tables import digest
from thg.errors import THGError
from thg.files import write_atomically

DIGITS = 6


class RunFolderError(THGError):
    """A run folder that belongs to another run, is incomplete, or cannot be read."""


class RowFiles:
    """Rows of one kind (a metric's scores, a network's features) in a folder: a file for each measured batch.

    A file holds `samples` (their indices), `counts` (how many rows each has) and `values`. What is read does not depend
    on the batches or on the processes that measured them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, samples: Sequence[int], rows: Sequence[torch.Tensor]) -> None:
        """Stores the rows of these samples."""
        tensors = {
            "samples": torch.tensor(samples, dtype=torch.int64),
            "counts": torch.tensor([len(part) for part in rows], dtype=torch.int64),
            "values": torch.cat(list(rows)).contiguous(),
        }
        write_atomically(self.folder / f"{samples[0]:06d}-{samples[-1]:06d}.safetensors", save(tensors))

    def done(self) -> set[int]:
        """The samples that have been measured."""
        return set(self.by_sample())

    def by_sample(self) -> dict[int, torch.Tensor]:
        """The rows of each sample; none for one that could not be read."""
        rows: dict[int, torch.Tensor] = {}
        for path in sorted(path for path in self.folder.glob("*.safetensors") if not path.name.startswith(".")):
            try:
                tensors = load(path.read_bytes())
            except (OSError, SafetensorError) as error:
                raise RunFolderError(
                    f"{path} cannot be read ({error}); remove it, and its samples are measured again"
                ) from None
            parts = tensors["values"].split(tensors["counts"].tolist())
            rows |= dict(zip(tensors["samples"].tolist(), parts, strict=True))
        return rows

    def read(self, samples: Iterable[int]) -> torch.Tensor:
        """The rows of these samples, in their order; a missing one is an error."""
        rows = self.by_sample()
        try:
            wanted = [rows[index] for index in samples]
        except KeyError as error:
            raise RunFolderError(f"sample {error} is not measured yet in {self.folder}: run thg bench again") from None
        return torch.cat(wanted) if wanted else torch.empty(0)


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

    def write(self, index: int, suffix: str, content: bytes, record: Mapping[str, Any]) -> None:
        """Writes a sample and its record."""
        if not (self.path / "series.json").exists():
            write_json(self.path / "series.json", self._what)
        write_atomically(self._sample(index, suffix), content)
        write_json(self._sample(index, ".json"), record)

    def file(self, index: int) -> Path:
        """The file of a sample."""
        sound = self._sample(index, ".wav")
        return sound if sound.exists() else self._sample(index, ".png")

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

    def write_timing(self, index: int, turn: str, count: int, seconds: float) -> None:
        """turn: the same for all series that were made in turns."""
        write_json(self.path / "timings" / f"{index:0{DIGITS}d}-{turn}.json", {"count": count, "seconds": seconds})

    def seconds(self) -> dict[str, float]:
        """Seconds per sample of each batch that was timed, by its turn."""
        paths = sorted((self.path / "timings").glob("[0-9]*.json"))
        timings = {path.stem: timing for path in paths if (timing := read_json(path))}
        return {turn: timing["seconds"] / timing["count"] for turn, timing in timings.items()}

    def measured(self, name: str) -> RowFiles:
        return RowFiles(self.path / "measured" / name)

    def numbers(self, name: str) -> list[float] | None:
        """What a package has measured under this name, if it has."""
        found = read_json(self.path / "measured" / f"{name}.json")
        return None if found is None else found["values"]

    def write_numbers(self, name: str, values: Sequence[float]) -> None:
        write_json(self.path / "measured" / f"{name}.json", {"values": list(values)})

    def _sample(self, index: int, suffix: str) -> Path:
        return self.path / "samples" / f"{index:0{DIGITS}d}{suffix}"


class Store:
    """The folder that runs share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def series(self, what: Mapping[str, Any]) -> Series:
        """The series of samples with these settings."""
        return Series(self.path / "series" / digest(what), what)

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
