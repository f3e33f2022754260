"""Rows of numbers measured on samples, in files: one for each measured batch, written atomically.

A file holds `samples` (their indices), `counts` (how many rows each has) and `values`. What is read does not depend on
the batches or on the processes that measured them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save

from thg.bench.errors import RunFolderError
from thg.files import write_atomically


class RowFiles:
    """The rows of one kind (a metric's scores, a network's features) in a folder."""

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
        measured: set[int] = set()
        for path in self._paths():
            try:
                with safe_open(path, framework="pt") as file:
                    measured.update(file.get_tensor("samples").tolist())
            except (OSError, SafetensorError) as error:
                raise _unreadable(path, error) from None
        return measured

    def counts(self) -> dict[int, int]:
        """How many rows each sample has."""
        by_sample: dict[int, int] = {}
        for path in self._paths():
            with safe_open(path, framework="pt") as file:
                samples, counts = file.get_tensor("samples"), file.get_tensor("counts")
                by_sample.update(zip(samples.tolist(), counts.tolist(), strict=True))
        return by_sample

    def read(self, samples: Iterable[int]) -> torch.Tensor:
        """The rows of these samples, in their order; a missing one is an error."""
        by_sample: dict[int, torch.Tensor] = {}
        for path in self._paths():
            try:
                tensors = load(path.read_bytes())
            except (OSError, SafetensorError) as error:
                raise _unreadable(path, error) from None
            parts = tensors["values"].split(tensors["counts"].tolist())
            by_sample |= dict(zip(tensors["samples"].tolist(), parts, strict=True))
        try:
            wanted = [by_sample[index] for index in samples]
        except KeyError as error:
            raise RunFolderError(f"sample {error} is not measured yet in {self.folder}: run thg bench again") from None
        return torch.cat(wanted) if wanted else torch.empty(0)

    def _paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("*.safetensors") if not path.name.startswith("."))


def _unreadable(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(f"{path} cannot be read ({error}); remove it, and its samples are measured again")
