# A copy of src/thg/plans/plan.py, made by comfyui/make_core.py: change it there.
"""A plan says at which steps of a run the network is evaluated, and what is done in between.

It is a value: frozen, hashable, without tensors, convertible to and from JSON. The loop that runs it makes no
decisions. The presets at the end are the settings of the paper's experiments, with the coarse grids that its appendix
prints (table "Obtained coarse timestep grid for different rho values", and the list of hyperparameters).
"""

from __future__ import annotations

import contextlib
import json
import math
import numbers
import operator
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal, get_args

from ..errors import PlanError

FORMAT = "thg-plan-2"
READ = (FORMAT, "thg-plan-1")  # the first had no `skips`
MOST_STEPS = 100_000  # no sampler has more: a file with more is corrupt

Skips = Literal["network", "unconditional"]
EVALUATED, CONDITIONAL, SKIPPED, UNGUIDED = "●", "·", "○", " "  # the marks of `Plan.strip`


@dataclass(frozen=True, repr=False)
class Plan:
    """At which of the `steps` of a run the network is evaluated with all its branches.

    Common arguments:
        steps: N, the steps of the fine grid.
        coarse: C, the step indices at which everything is evaluated; sorted, begins with `start`.
        skips: what does not run at the other steps. "unconditional" is the paper's: the conditional branch runs at each
            step, and the guidance term is predicted. "network": nothing runs, and the output that reaches the sampler
            is predicted; it needs no guidance, and has neither start, cutoff nor boost.

    Advanced arguments:
        start: before this index there is no guidance. 0 means from the first step on.
        cutoff: i_hi, from this index on there is no guidance. None or `steps` means never.
        boost: b, the factor on the guidance term during a leap of two or more steps.
        hare_order: 1 holds the last evaluation over a leap (the paper), 2 extrapolates from the last two.
        corrector: 0 is off. In (0, 1]: at a new evaluation this share of the error made by the leap before it is
            corrected. It costs no evaluation and needs a scheduler that is linear in the network's outputs.
        slope: the share of the extrapolated slope that hare_order=2 uses: 1 is the straight line, 0 holds the term.
    """

    steps: int
    coarse: tuple[int, ...]
    cutoff: int | None = None
    boost: float = 1.0
    hare_order: int = 2
    corrector: float = 0.0
    start: int = 0
    slope: float = 1.0
    skips: Skips = "unconditional"

    def __post_init__(self) -> None:
        steps = _whole("steps", self.steps)
        if not 1 <= steps <= MOST_STEPS:
            raise PlanError(f"steps must be at least 1 and at most {MOST_STEPS}, not {steps}")
        start = _whole("start", self.start)
        cutoff = steps if self.cutoff is None else _whole("cutoff", self.cutoff)
        if not 1 <= cutoff <= steps:
            raise PlanError(
                f"cutoff must lie between 1 and steps = {steps}, not {cutoff}; to run without guidance, "
                "set guidance_scale=1 in the pipeline's call instead"
            )
        if not 0 <= start < cutoff:
            raise PlanError(f"guidance must start between step 0 and its end at {cutoff}, not at start = {start}")
        coarse = _grid(self.coarse, steps, start)
        boost = _real("boost", self.boost)
        if boost <= 0:
            raise PlanError(f"boost must be above 0, not {boost:g}; 1 means no boost")
        if self.hare_order not in (1, 2) or isinstance(self.hare_order, bool):
            raise PlanError(f"hare_order must be 1 (held) or 2 (extrapolated), not {self.hare_order!r}")
        corrector = _real("corrector", self.corrector)
        if not 0 <= corrector <= 1:
            raise PlanError(f"corrector must lie between 0 (off) and 1 (undamped), not {corrector:g}")
        slope = _real("slope", self.slope)
        if not 0 <= slope <= 1:
            raise PlanError(f"slope must lie between 0 (the term is held) and 1 (the whole slope), not {slope:g}")
        if self.skips not in get_args(Skips):
            raise PlanError(f"skips must be 'network' or 'unconditional', not {self.skips!r}")
        if self.skips == "network" and (start, cutoff, boost) != (0, steps, 1.0):
            raise PlanError(
                "start, cutoff and boost change the guidance, which a plan with skips='network' does not know; "
                "write skips='unconditional', or set where guidance starts and ends in the pipeline's call"
            )
        for name, value in (
            ("steps", steps),
            ("coarse", coarse),
            ("cutoff", cutoff),
            ("boost", boost),
            ("hare_order", int(self.hare_order)),
            ("corrector", corrector),
            ("start", start),
            ("slope", slope),
        ):
            object.__setattr__(self, name, value)

    # -- what the plan costs

    @property
    def end_of_guidance(self) -> int:
        """i_hi: the cutoff as a number (`steps` when there is none)."""
        return self.steps if self.cutoff is None else self.cutoff

    @property
    def evaluations(self) -> int:
        """At how many steps everything is evaluated."""
        return bisect_right(self.coarse, self.end_of_guidance - 1)

    @property
    def nfe(self) -> int:
        """Network evaluations per sample with classifier-free guidance."""
        return 2 * self.evaluations if self.skips == "network" else self.steps + self.evaluations

    @property
    def cfg_nfe(self) -> int:
        """Network evaluations per sample of plain classifier-free guidance."""
        return 2 * self.steps

    @property
    def speedup(self) -> float:
        """The ideal speed-up over plain CFG, from the number of evaluations alone."""
        return self.cfg_nfe / self.nfe

    # -- what happens at a step

    def guides(self, step: int) -> bool:
        """Is there guidance at this step?"""
        return self.start <= step < self.end_of_guidance

    def evaluates(self, step: int) -> bool:
        """Is everything evaluated at this step?"""
        return step < self.end_of_guidance and step in self._evaluated

    def leaps(self) -> tuple[tuple[int, int], ...]:
        """(start, end) of each leap; one that crosses the cutoff ends there."""
        starts = self.coarse[: self.evaluations]
        ends = (*starts[1:], self.end_of_guidance)
        return tuple(zip(starts, ends, strict=True))

    def boost_at(self, step: int) -> float:
        """The factor on the guidance term at this step: `boost` within a leap of two or more steps, else 1."""
        if self.boost == 1 or not self.guides(step):
            return 1.0
        start, end = self.leaps()[bisect_right(self.coarse, step) - 1]
        return self.boost if end - start > 1 else 1.0

    @cached_property
    def _evaluated(self) -> frozenset[int]:
        return frozenset(self.coarse)

    def placed(self, start: int, steps: int) -> Plan:
        """This plan as part of a longer run: it guides the steps from `start` on."""
        if (start, steps) == (0, self.steps):
            return self
        return replace(
            self,
            steps=steps,
            coarse=tuple(start + i for i in self.coarse),
            start=start + self.start,
            cutoff=start + self.end_of_guidance,
        )

    # -- display

    def strip(self) -> str:
        """One mark per step: ● everything is evaluated, ○ nothing, · the conditional branch, blank without guidance."""
        between = SKIPPED if self.skips == "network" else CONDITIONAL
        return "".join(
            EVALUATED if self.evaluates(i) else between if self.guides(i) else UNGUIDED for i in range(self.steps)
        )

    def __repr__(self) -> str:
        shown = [f"steps={self.steps}", f"coarse={self.coarse}"]
        if self.start:
            shown.append(f"start={self.start}")
        if self.end_of_guidance != self.steps:
            shown.append(f"cutoff={self.cutoff}")
        shown += [
            f"{f.name}={getattr(self, f.name):g}"
            for f in fields(self)
            if f.name in ("boost", "corrector", "slope") and getattr(self, f.name) != f.default
        ]
        shown.append(f"hare_order={self.hare_order}")
        if self.skips != "unconditional":
            shown.append(f"skips={self.skips!r}")
        return f"Plan({', '.join(shown)})"

    def __str__(self) -> str:
        return f"[{self.strip()}]\n{self.nfe} of {self.cfg_nfe} evaluations, ideal speed-up {self.speedup:.2f}x"

    # -- JSON

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self), "coarse": list(self.coarse)}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise PlanError(f"this is not a plan: not valid JSON ({error})") from None
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        if not isinstance(data, dict):
            raise PlanError(f"a plan is a JSON object, not {type(data).__name__}")
        data = dict(data)
        found = data.pop("format", None)
        if found not in READ:
            raise PlanError(f"format must be {FORMAT!r}, not {found!r}: this file was not written by Plan.to_json")
        names = {f.name for f in fields(cls)}
        if unknown := sorted(set(data) - names):
            raise PlanError(f"unknown field {unknown[0]!r} in a plan; the fields are {', '.join(sorted(names))}")
        for needed in ("steps", "coarse"):
            if needed not in data:
                raise PlanError(f"the field {needed!r} is missing from the plan")
        return cls(**data)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            return operator.index(value)  # int, numpy integer or tensor with one element
    raise PlanError(f"{name} must be a whole number, not {value!r}")


def _real(name: str, value: Any) -> float:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an int with hundreds of digits
            if math.isfinite(number := float(value)):
                return number
    raise PlanError(f"{name} must be a finite number, not {value!r}")


def _grid(coarse: Any, steps: int, start: int) -> tuple[int, ...]:
    if isinstance(coarse, str | bytes) or not isinstance(coarse, Iterable):
        raise PlanError(f"coarse must be a sequence of step indices, not {coarse!r}")
    grid = tuple(_whole("coarse", index) for index in coarse)
    begin = f"start = {start}" if start else "0"
    if not grid:
        raise PlanError(f"coarse is empty; it must contain {begin}, where the first guidance term comes from")
    if grid[0] != start:
        raise PlanError(
            f"coarse must begin with {begin}, not {grid[0]}; the first guidance term comes from step {start}"
            + ("" if start or grid[0] < 0 else f" (for guidance that starts later, write start={grid[0]})")
        )
    for before, after in pairwise(grid):
        if after <= before:
            raise PlanError(f"coarse must increase, but {after} follows {before}")
    if grid[-1] >= steps:
        raise PlanError(f"coarse index {grid[-1]} is outside the {steps} steps (the last index is {steps - 1})")
    return grid


@dataclass(frozen=True)
class Preset:
    """One model of the paper with the settings that it was run with."""

    name: str
    steps: int
    guidance_scale: float
    rho: float
    boost: float
    cutoff: int
    coarse: tuple[int, ...] | None  # None: the paper does not print the grid

    def plan(self) -> Plan:
        """The paper's plan: the hare is held over a leap."""
        if self.coarse is None:
            raise PlanError(
                f"the paper does not print the coarse grid of {self.name!r} "
                f"(steps={self.steps}, w={self.guidance_scale}, rho={self.rho}, boost={self.boost}, "
                f"cutoff={self.cutoff}); measure one: thg.calibrate(pipe, prompts, steps={self.steps}, "
                f"guidance_scale={self.guidance_scale}).planner(rho={self.rho}, boost={self.boost}, "
                f"cutoff={self.cutoff})"
            )
        return Plan(self.steps, self.coarse, self.cutoff, self.boost, hare_order=1)


_SD15_GRID = (*range(7), 8, 10, 12, 14, 17, 20, 23, 26, 28, 30, 32, 34, 36, *range(38, 50))
_SD35_GRID = (0, 1, 2, 4, 6, 9, 12, 15, 18, 20, 22, 23, 24, 25, 26)

PRESETS = {
    preset.name: preset
    for preset in (
        Preset("sd15", 50, 7.5, rho=1.1, boost=1.1, cutoff=38, coarse=_SD15_GRID),
        Preset("sd35-large", 28, 3.5, rho=1.0, boost=1.2, cutoff=21, coarse=_SD35_GRID),
        Preset("audioldm2", 50, 3.5, rho=0.9, boost=1.15, cutoff=39, coarse=None),
    )
}


def preset(name: str) -> Plan:
    """The plan of a named preset."""
    if name not in PRESETS:
        raise PlanError(f"there is no preset {name!r}; the presets are {', '.join(sorted(PRESETS))}")
    return PRESETS[name].plan()
