# A copy of src/thg/plans/noise.py, made by comfyui/make_core.py: change it there.
"""Which evaluations a run that adds noise can do without.

New noise changes the guidance term in ways that no prediction knows, so even the shortest leap has an error, and what
counts is the weight of the skipped call in the final state. Early in a run an error may lead to another picture, and
nothing repairs one in the last step. So the light calls of the later half are skipped, no two in a row.
"""

from __future__ import annotations

import math

import numpy as np

from ..plans.guide import Run

LATER = 0.5  # the share of the calls before that
LOUD = 1.2  # median weights; calls with more than that are not skipped


def evaluated_despite_noise(run: Run, count: int) -> tuple[int, ...]:
    """At least `count` calls: all but the lightest."""
    sizes = np.abs(run.weights or (1.0,) * run.steps)
    first = math.ceil(LATER * run.steps)
    light = [call for call in range(first, run.steps - 1) if sizes[call] <= LOUD * np.median(sizes[first:])]
    skipped: set[int] = set()
    for call in sorted(light, key=lambda call: float(sizes[call])):
        if len(skipped) < run.steps - count and not skipped & {call - 1, call + 1}:
            skipped.add(call)
    return tuple(call for call in range(run.steps) if call not in skipped)
