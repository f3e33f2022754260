"""The reports of runs, kept for the report node.

A report belongs to its run: it is found by the node that ran the sampler and by the final latents, bit for bit (rounded
to half precision, in which a server may keep them).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import torch
from comfy_execution.utils import get_executing_context
from torch import Tensor

from .core.plans.plan import EVALUATED

KEPT = 64  # reports
VERDICTS = ((0.0105, "looks the same"), (0.03, "hardly differs"), (0.1, "differs a little"))
WORST = "differs visibly"


@dataclass(frozen=True)
class Report:
    """marks: one for each denoiser call. seconds: of the run. error: the estimated relative difference of the final
    latents, if known. note: remarks.
    """

    marks: str = ""
    seconds: float = 0.0
    error: float | None = None
    note: str = ""

    @property
    def evaluated(self) -> int:
        return self.marks.count(EVALUATED)

    def headline(self) -> str:
        if not self.marks:
            return "no report"
        if self.evaluated == len(self.marks):
            return "nothing saved"
        parts = [f"{1 - self.evaluated / len(self.marks):.0%} saved", f"{len(self.marks) / self.evaluated:.1f}x"]
        if self.error is not None:
            verdict = next((words for limit, words in VERDICTS if self.error <= limit), WORST)
            parts.append(f"{verdict} ({self.error:.1%})")
        return " · ".join(parts)

    def details(self) -> str:
        cost = f"the network ran at {self.evaluated} of {len(self.marks)} calls, in {self.seconds:.2f} s"
        return "\n".join(filter(None, (self.marks and cost, self.note)))

    def text(self) -> str:
        return f"{self.headline()}\n[{self.marks}]\n{self.details()}"

    def shown(self) -> dict[str, tuple[Any, ...]]:
        """What the page draws on the node (web/report.js)."""
        return {
            "text": (self.text(),),
            "headline": (self.headline(),),
            "strip": tuple(int(mark == EVALUATED) for mark in self.marks),
            "details": (self.details(),),
        }


@dataclass(frozen=True)
class Kept:
    report: Report
    node: str | None  # that ran the sampler; None outside of a server
    digest: bytes


class Reports:
    """The last reports, newest last."""

    def __init__(self) -> None:
        self._kept: deque[Kept] = deque(maxlen=KEPT)

    def add(self, report: Report, latents: Tensor) -> None:
        context = get_executing_context()
        node = context.node_id.split(".")[0] if context else None  # what a node expands to is named after it
        self._kept.append(Kept(report, node, digest(latents)))

    def find(self, latents: Tensor, nodes: Container[str]) -> Report | None:
        """The newest report of a run that ended with these latents, on one of these nodes."""
        own = digest(latents)
        found = (kept for kept in reversed(self._kept) if kept.digest == own)
        return next((kept.report for kept in found if kept.node is None or kept.node in nodes), None)


def digest(latents: Tensor) -> bytes:
    rounded = latents.detach().to("cpu", torch.float16).contiguous()
    return hashlib.blake2b(str(tuple(rounded.shape)).encode() + rounded.view(torch.uint8).numpy().tobytes()).digest()


def ancestors(prompt: dict[str, Any], node: str) -> set[str]:
    """The nodes on which this one depends, in a workflow of the API's format."""
    found: set[str] = set()
    todo = [node]
    while todo:
        inputs = prompt.get(todo.pop(), {}).get("inputs", {}).values()
        sources = {str(value[0]) for value in inputs if isinstance(value, list) and len(value) == 2}
        todo += sources - found
        found |= sources
    return found
