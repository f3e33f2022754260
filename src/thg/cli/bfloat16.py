"""Does bfloat16 work on this CPU? Probed in a child process, because a failure kills the process.

On virtual machines whose CPU reports AMX although the host does not support it, oneDNN's bfloat16 kernels raise an
illegal instruction. Restricting oneDNN to older instruction sets avoids it.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import torch

from thg.errors import THGError

VARIABLE, VALUE = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
SETTING = f"{VARIABLE}={VALUE}"
SECONDS = 120

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


@functools.cache
def bfloat16_works(setting: str | None = None) -> bool:
    """Whether a child process computes in bfloat16 on the CPU and ends normally. setting: such as `SETTING`."""
    environment = dict(os.environ)
    if setting is not None:
        name, _, value = setting.partition("=")
        environment[name] = value
    try:
        done = subprocess.run([sys.executable, "-c", PROBE], env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def remedy() -> str:
    """What to do if bfloat16 does not work."""
    if bfloat16_works(SETTING):
        return f"set {SETTING} in the environment"
    return f"use float32 (setting {SETTING} does not help here)"


def require_bfloat16(dtype: torch.dtype, device: str) -> None:
    """Raises a one-line error instead of crashing the process."""
    if dtype == torch.bfloat16 and device.startswith("cpu") and not bfloat16_works():
        raise THGError(f"bfloat16 stops the process with an illegal instruction on this CPU; {remedy()}")
