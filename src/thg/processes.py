"""How work is divided: processes, their devices, batches, and the noise of each sample, which depends on none of them.

The launcher (`accelerate launch` or `torchrun`) gives each process its rank, and nothing else is needed: the processes
share a folder and never communicate, so none waits for a process group or times out.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from thg.errors import THGError

Unit = TypeVar("Unit")

VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
SETTING = f"{VARIABLE}={VALUE}"
PROBE_SECONDS = 120

# The operations of a U-Net and of a transformer, at sizes for which oneDNN chooses its matrix kernels.
PROBE = """
import torch
from torch.nn import functional as F
def ones(*shape): return torch.ones(*shape, dtype=torch.bfloat16)
for batch in (1, 2):
    F.conv2d(ones(batch, 32, 32, 32), ones(32, 32, 3, 3), ones(32), padding=1)
    F.linear(ones(batch, 77, 64), ones(128, 64), ones(128))
    torch.bmm(ones(batch, 64, 64), ones(batch, 64, 64))
    F.scaled_dot_product_attention(*[ones(batch, 4, 64, 32) for _ in range(3)])
"""


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


# -- devices


def best_device() -> str:
    """The best device of this machine; with several processes on several GPUs, each has its own."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return choose_device(Process.current(), gpus, torch.backends.mps.is_available())


def choose_device(process: Process, gpus: int, mps: bool) -> str:
    """CUDA (or ROCm) before MPS before the CPU."""
    if gpus:
        return "cuda" if process.count == 1 else f"cuda:{process.local % gpus}"
    return "mps" if mps else "cpu"


def check_device(device: str) -> None:
    """Raises an error if nothing can run there."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise THGError(f"the device {device!r} cannot be used ({reason}); write --device cpu") from None


@functools.cache
def bfloat16_works(restricted: bool = False) -> bool:
    """Whether a child process computes in bfloat16 on the CPU and ends normally. restricted: with `SETTING`.

    On virtual machines whose CPU reports AMX although the host does not support it, oneDNN's bfloat16 kernels raise an
    illegal instruction. Restricting oneDNN to older instruction sets avoids it.
    """
    environment = {**os.environ, VARIABLE: VALUE} if restricted else None
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROBE], env=environment, capture_output=True, timeout=PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def bfloat16_remedy() -> str:
    """What to do if bfloat16 does not work."""
    if bfloat16_works(restricted=True):
        return f"set {SETTING} in the environment"
    return f"use float32 (setting {SETTING} does not help here)"


def require_bfloat16(dtype: torch.dtype, device: str) -> None:
    """Raises a one-line error instead of crashing the process."""
    if dtype == torch.bfloat16 and device.startswith("cpu") and not bfloat16_works():
        raise THGError(f"bfloat16 stops the process with an illegal instruction on this CPU; {bfloat16_remedy()}")


# -- shares, batches, noise


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


def sample_seed(run_seed: int, index: int) -> int:
    """A seed of 63 bits for the sample of one prompt. Seeds of adjacent prompts are unrelated."""
    digest = hashlib.sha256(f"thg-bench {run_seed} {index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generators(run_seed: int, indices: Iterable[int]) -> list[torch.Generator]:
    """One generator per sample, on the CPU, so that noise does not depend on the device, batch or process."""
    return [torch.Generator("cpu").manual_seed(sample_seed(run_seed, index)) for index in indices]
