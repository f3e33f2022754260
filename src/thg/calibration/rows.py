"""The rows measured so far: one file per finished batch, so that a killed measurement can resume.

A file holds one row per sample, and the rows of all files are joined in the order of the samples, so the result depends
neither on the batch size nor on the number of processes. Without a folder the rows are kept in memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from thg.errors import ProfileError
from thg.files import write_atomically

Rows = dict[str, NDArray[Any]]


class Shards:
    """Measured rows of several kinds, in memory or in a folder."""

    def __init__(self, folder: Path | None, settings: Mapping[str, Any], date: str = "") -> None:
        """settings: everything that the rows depend on; a folder with other settings is refused. date: of the first
        start."""
        self.folder = folder
        self.date = date if folder is None else _claim(folder, settings, date)
        self._memory: dict[str, list[Rows]] = {}

    def add(self, kind: str, samples: Sequence[int], rows: Rows) -> None:
        """Stores the rows of these samples."""
        content = {"index": np.asarray(samples, dtype=np.int64), **rows}
        if self.folder is None:
            self._memory.setdefault(kind, []).append(content)
            return
        data = {name: np.ascontiguousarray(values) for name, values in content.items()}
        write_atomically(self._path(self.folder, kind, samples), save(data))

    @staticmethod
    def _path(folder: Path, kind: str, samples: Sequence[int]) -> Path:
        return folder / f"{kind}-{samples[0]:06d}-{samples[-1]:06d}.safetensors"

    def has(self, kind: str, samples: Sequence[int]) -> bool:
        """Does a file of exactly these samples exist?"""
        return self.folder is not None and self._path(self.folder, kind, samples).exists()

    def done(self, kind: str) -> set[int]:
        """The samples that have been measured."""
        return {int(i) for content in self._read(kind) for i in content["index"]}

    def rows(self, kind: str) -> Rows:
        """All rows, in the order of the samples."""
        return _joined(self._read(kind))

    def _read(self, kind: str) -> list[Rows]:
        return self._memory.get(kind, []) if self.folder is None else _read_folder(self.folder, kind)


def stored_rows(folder: Path, kind: str = "samples") -> Rows:
    """The rows that a calibration has left in its folder, one per sample."""
    return _joined(_read_folder(folder, kind))


def _joined(contents: list[Rows]) -> Rows:
    if not contents:
        return {}
    index = np.concatenate([content["index"] for content in contents])
    _, order = np.unique(index, return_index=True)  # a sample in two files counts once
    return {name: np.concatenate([c[name] for c in contents])[order] for name in contents[0] if name != "index"}


def _read_folder(folder: Path, kind: str) -> list[Rows]:
    contents = []
    for path in sorted(folder.glob(f"{kind}-*.safetensors")):
        try:
            contents.append(dict(load(path.read_bytes())))
        except (OSError, SafetensorError) as error:
            raise ProfileError(
                f"{path} cannot be read ({error}); remove it, and its samples are measured again"
            ) from None
    return contents


def _claim(folder: Path, settings: Mapping[str, Any], date: str) -> str:
    """Creates the folder, or checks that its settings are the same. Returns the date of the first start."""
    key = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()
    manifest = folder / "calibration.json"
    try:
        stored = json.loads(manifest.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if manifest.exists():  # another process has written it meanwhile
            return _claim(folder, settings, date)
        if folder.exists() and any(not entry.name.startswith((".", manifest.name)) for entry in folder.iterdir()):
            raise ProfileError(f"{folder} is not empty and holds no calibration; choose another folder") from None
        stored = {"key": key, "date": date, "settings": dict(settings)}
        write_atomically(manifest, json.dumps(stored, default=str, indent=1).encode())
    except (OSError, ValueError) as error:
        raise ProfileError(f"{manifest} cannot be read ({error}); remove the folder to start again") from None
    if not isinstance(stored, dict) or stored.get("key") != key:
        if not any(folder.glob("*.safetensors")):  # that calibration failed before its first batch
            manifest.unlink(missing_ok=True)
            return _claim(folder, settings, date)
        before = stored.get("settings", {}) if isinstance(stored, dict) else {}
        differs = sorted(name for name in settings if str(before.get(name)) != str(settings[name]))
        raise ProfileError(
            f"{folder} holds batches of a calibration with other settings ({', '.join(differs) or 'unknown'}); remove "
            "it, or choose another folder"
        )
    return str(stored["date"])
