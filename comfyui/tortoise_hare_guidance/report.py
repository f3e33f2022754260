"""The reports of runs, kept for the report node.

A report is found by the final latents of its run, of which a few values are kept.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .session import Session

KEPT = 64  # reports
NUMBERS = 64  # of the latents of each
TOLERANCE = 1e-2  # relative; latents may be kept in half precision


@dataclass(frozen=True)
class Report:
    text: str
    shape: tuple[int, ...]
    numbers: tuple[float, ...]

    def distance(self, numbers: tuple[float, ...]) -> float:
        return max(abs(a - b) / (1 + abs(b)) for a, b in zip(numbers, self.numbers, strict=True))


class Reports:
    """The last reports, newest last."""

    def __init__(self) -> None:
        self._reports: deque[Report] = deque(maxlen=KEPT)

    def add(self, text: str, latents: Tensor) -> None:
        self._reports.append(Report(text, tuple(latents.shape), numbers_of(latents)))

    def find(self, latents: Any) -> str | None:
        """The report of the run that ended closest to these latents, and the newest of several equal ones."""
        shape, found = tuple(latents.shape), numbers_of(latents)
        distances = [(r.distance(found), r.text) for r in reversed(self._reports) if r.shape == shape]
        distance, text = min(distances, key=lambda pair: pair[0], default=(math.inf, ""))
        return text if distance <= TOLERANCE else None


def numbers_of(latents: Tensor) -> tuple[float, ...]:
    """Some values, and the mean: a mask may leave few values that differ between two runs."""
    flat = latents.reshape(-1).float().nan_to_num()
    places = np.random.default_rng(0).integers(0, flat.numel(), NUMBERS)
    return (*flat[torch.from_numpy(places)].tolist(), float(flat.mean()))


def text_of(session: Session) -> str:
    """The report of a run: its cost, a mark for each denoiser call, and notes."""
    first, *rest = str(session.summary()).splitlines()
    return "\n".join([first, f"[{''.join(session.marks)}]", *rest])
