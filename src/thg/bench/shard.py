"""Which part of the work is this process's: told by `--shard`, or by `accelerate launch` and `torchrun`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from thg.bench.errors import ConfigError

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
    """From `--shard 1/4`, or from the launcher, which tells each process its number.

    The numbers are all that is needed: processes never talk to each other, so none waits for a group or times out.
    """
    if written is not None:
        first, _, last = written.partition("/")
        if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
            raise ConfigError(f"--shard is written as 0/4 to 3/4, not {written!r}")
        return Shard(int(first), int(last), device or best_device())
    launched = [os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")]
    if not all(number.isdigit() for number in launched):
        return Shard(device=device or best_device())
    index, count, local = map(int, launched)
    best = best_device()
    return Shard(index, count, device or (f"cuda:{local}" if best == "cuda" else best))


def best_device() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def batches(count: int, size: int) -> list[range]:
    """Fixed runs of indices, whatever the number of processes."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
