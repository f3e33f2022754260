"""Counters for the metrics endpoint of an engine, which publishes what prometheus_client has registered."""

from __future__ import annotations

import functools
from typing import Any


def count(evaluations: float, plain_evaluations: float) -> None:
    """Adds what a request has cost, and what it would have cost."""
    made, skipped = _counters()
    made.inc(evaluations)
    skipped.inc(plain_evaluations - evaluations)


@functools.cache
def _counters() -> tuple[Any, Any]:
    """A process registers a name once."""
    from prometheus_client import Counter

    return (
        Counter("thg:network_evaluations", "Network evaluations that were made."),
        Counter("thg:network_evaluations_skipped", "Network evaluations that were predicted instead."),
    )
