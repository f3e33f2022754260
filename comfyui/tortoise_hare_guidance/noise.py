"""The calls at which a sampler that adds noise can do without a new guidance term.

New noise changes the term in ways that no prediction knows, and in the first half of a run such a change may lead to
another picture. So only calls of the later half are skipped, no two in a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

LATER = 0.5  # the share of the calls before that
LOUD = 2.0  # median weights; calls with more than that are not skipped


def skippable(weights: Sequence[float], most: int) -> set[int]:
    """Up to `most` calls, those with the least weights in the final state first."""
    sizes = np.abs(weights)
    first = math.ceil(LATER * len(sizes))
    quiet = [call for call in range(first, len(sizes)) if sizes[call] <= LOUD * np.median(sizes[first:])]
    skipped: set[int] = set()
    for call in sorted(quiet, key=lambda call: float(sizes[call])):
        if len(skipped) < most and not skipped & {call - 1, call + 1}:
            skipped.add(call)
    return skipped
