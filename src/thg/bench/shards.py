"""This process's part of the work, from `--shard`, or from `accelerate launch` and `torchrun`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from thg.bench.tables import ConfigError
from thg.processes import Process, best_device

Unit = TypeVar("Unit")


@dataclass(frozen=True)
class Shard:
    """The part of one process: each `count`-th unit of work, from the `index`-th on."""

    index: int = 0
    count: int = 1
    device: str = "cpu"

    def of(self, units: Sequence[Unit]) -> Sequence[Unit]:
        return units[self.index :: self.count]


def find_shard(written: str | None, device: str | None) -> Shard:
    """From `--shard 1/4`, or from the launcher, which sets the rank of each process."""
    device = device or best_device()
    if written is not None:
        first, _, last = written.partition("/")
        if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
            raise ConfigError(f"--shard is written as 0/4 to 3/4, not {written!r}")
        return Shard(int(first), int(last), device)
    process = Process.current()
    return Shard(process.rank, process.count, device)


def batches(count: int, size: int) -> list[range]:
    """Fixed ranges of indices, independent of the number of processes."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
