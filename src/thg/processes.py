"""This process among those of `accelerate launch` or `torchrun`, and the device it runs on.

The launcher gives each process its rank, and nothing else is needed: the processes share a folder and never
communicate, so none waits for a process group or times out.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


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
