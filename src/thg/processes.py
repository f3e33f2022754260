"""This process among those of `accelerate launch` or `torchrun`, and the device it runs on.

The launcher gives each process its rank, and nothing else is needed: the processes share a folder and never
communicate, so none waits for a process group or times out.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from thg.errors import THGError

Unit = TypeVar("Unit")


@dataclass(frozen=True)
class Process:
    """The number of a process, among `count` in all and on its own machine (`local`)."""

    rank: int = 0
    count: int = 1
    local: int = 0

    @classmethod
    def current(cls) -> Process:
        rank, count = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        if not (rank.isdigit() and count.isdigit()):
            return cls()
        return cls(int(rank), int(count), int(os.environ.get("LOCAL_RANK", rank)))


def best_device() -> str:
    """The best device of this machine; with several processes on several GPUs, each has its own."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return choose_device(Process.current(), gpus, torch.backends.mps.is_available())


def choose_device(process: Process, gpus: int, mps: bool) -> str:
    """CUDA (or ROCm) before MPS before the CPU."""
    if gpus:
        return "cuda" if process.count == 1 else f"cuda:{process.local % gpus}"
    return "mps" if mps else "cpu"


@dataclass(frozen=True)
class Shard:
    """One process's part of the work: each `count`-th unit, from the `index`-th on."""

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
            raise THGError(f"--shard is written as 0/4 to 3/4, not {written!r}")
        return Shard(int(first), int(last), device)
    process = Process.current()
    return Shard(process.rank, process.count, device)


def batches(count: int, size: int) -> list[range]:
    """Fixed ranges of indices, independent of the number of processes."""
    return [range(first, min(first + size, count)) for first in range(0, count, size)]
