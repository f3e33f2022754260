"""Rows of measurements, kept by sample: a file for each finished batch, so that a killed measurement can resume.

What is read depends neither on the batches nor on the processes that measured them. Without a folder the rows are kept
in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from thg.errors import ProfileError, THGError
from thg.files import write_atomically
from thg.processes import Process, batches

Rows = dict[str, NDArray[Any]]


class RowFiles:
    """Rows of one kind. prefix: of the names of its files, where kinds share a folder. error: for damaged files."""

    def __init__(self, folder: Path | None, prefix: str = "", error: type[THGError] = THGError) -> None:
        self.folder = folder
        self._prefix = prefix
        self._error = error
        self._memory: list[Rows] = []

    def add(self, samples: Sequence[int], rows: Rows, counts: Sequence[int] | None = None) -> None:
        """Stores the rows of these samples: one each, or as many as `counts` says."""
        counts = [1] * len(samples) if counts is None else counts
        content = {"index": np.array(samples, np.int64), "counts": np.array(counts, np.int64), **rows}
        if self.folder is None:
            self._memory.append(content)
        else:
            data = {name: np.ascontiguousarray(values) for name, values in content.items()}
            write_atomically(self.folder / self._name(samples), save(data))

    def has(self, samples: Sequence[int]) -> bool:
        """Does a file of exactly these samples exist?"""
        return self.folder is not None and (self.folder / self._name(samples)).exists()

    def done(self) -> set[int]:
        """The samples that have been measured."""
        return {int(sample) for content in self._contents() for sample in content["index"]}

    def read(self, samples: Iterable[int] | None = None) -> Rows:
        """The rows of these samples (default: of all) in their order; a missing one is an error."""
        by_sample: dict[int, Rows] = {}
        for content in self._contents():
            index, ends = content.pop("index"), np.cumsum(content.pop("counts"))[:-1]
            parts = {name: np.split(values, ends) for name, values in content.items()}
            by_sample |= {int(s): {name: part[k] for name, part in parts.items()} for k, s in enumerate(index)}
        wanted = sorted(by_sample) if samples is None else list(samples)
        if missing := [sample for sample in wanted if sample not in by_sample]:
            raise self._error(f"sample {missing[0]} is not measured yet in {self.folder}: run the same command again")
        found = [by_sample[sample] for sample in wanted]
        return {name: np.concatenate([rows[name] for rows in found]) for name in (found[0] if found else ())}

    def _name(self, samples: Sequence[int]) -> str:
        return f"{self._prefix}{samples[0]:06d}-{samples[-1]:06d}.safetensors"

    def _contents(self) -> list[Rows]:
        if self.folder is None:
            return [dict(content) for content in self._memory]
        contents = []
        for path in sorted(self.folder.glob(f"{self._prefix}[0-9]*.safetensors")):
            try:
                contents.append(dict(load(path.read_bytes())))
            except FileNotFoundError:  # removed by another process
                continue
            except (OSError, SafetensorError) as error:
                raise self._error(
                    f"{path} cannot be read ({error}); remove it, and its samples are measured again"
                ) from None
        return contents


class RowFolder:
    """The rows of one measurement, of several kinds, in memory or in a folder.

    settings: everything that the rows depend on; a folder with other settings is refused. date: of the first start.
    """

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], date: str = "") -> None:
        self.date = date if folder is None else _claim(folder, settings, date)
        self._folder = folder
        self._kinds: dict[str, RowFiles] = {}

    def __getitem__(self, kind: str) -> RowFiles:
        return self._kinds.setdefault(kind, RowFiles(self._folder, f"{kind}-", ProfileError))

    def missing(self, kinds: Sequence[str], samples: int, batch_size: int) -> list[tuple[str, list[int]]]:
        """The batches that are not measured yet: the share of this process, then those of the others.

        Batches are assigned by their index, whether done or not, so that processes that start at different times agree.
        A process that has finished its share works on those of the others, from their ends, instead of waiting: each
        process ends with all rows, also if another one was killed.
        """
        process = Process.current()
        every = [(kind, batch) for kind in kinds for batch in batches(samples, batch_size)]
        done = {kind: self[kind].done() for kind in kinds}
        shares = [every[rank :: process.count] for rank in range(process.count)]
        own = shares.pop(process.rank)
        ordered = [*own, *(unit for share in shares for unit in reversed(share))]
        left = ((kind, [i for i in batch if i not in done[kind]]) for kind, batch in ordered)
        return [(kind, samples) for kind, samples in left if samples]


def _claim(folder: Path, settings: Mapping[str, Any], date: str) -> str:
    """Creates the folder, or checks that its settings are the same. Returns the date of the first start."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    manifest = folder / "calibration.json"
    # listed first: another process that starts now writes the manifest before anything else
    others = [entry for entry in folder.glob("*") if not entry.name.startswith((".", manifest.name))]
    try:
        stored = json.loads(manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if others:
            raise ProfileError(f"{folder} is not empty and holds no calibration; choose another folder") from None
        stored = {}
    except (OSError, ValueError) as error:
        raise ProfileError(f"{manifest} cannot be read ({error}); remove the folder to start again") from None
    before = stored if isinstance(stored, dict) else {}
    if before.get("key") == key:
        return str(before["date"])
    if any(folder.glob("*.safetensors")):
        known = before.get("settings", {})
        differs = sorted(name for name in settings if str(known.get(name)) != str(settings[name]))
        raise ProfileError(
            f"{folder} holds batches of a calibration with other settings ({', '.join(differs) or 'unknown'}); remove "
            "it, or choose another folder"
        )
    claim = {"key": key, "date": date, "settings": dict(settings)}  # also in place of one that failed before any batch
    write_atomically(manifest, json.dumps(claim, default=str, indent=1).encode())
    return date
