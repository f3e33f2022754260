"""The noise of a sample: it depends only on the run's seed and the index of the prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch


def sample_seed(run_seed: int, index: int) -> int:
    """A seed of 63 bits for the sample of one prompt. Seeds of adjacent prompts are unrelated."""
    digest = hashlib.sha256(f"thg-bench {run_seed} {index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generators(run_seed: int, indices: Iterable[int]) -> list[torch.Generator]:
    """One generator per sample, on the CPU, so that noise does not depend on the device, batch or process."""
    return [torch.Generator("cpu").manual_seed(sample_seed(run_seed, index)) for index in indices]
