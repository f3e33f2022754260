"""The policies by the names that a configuration uses, and how their options are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from thg.bench.errors import ConfigError
from thg.bench.methods import Adaptive, Guided, PlainCFG, Policy
from thg.bench.outside import CacheDiT, DeepCache, FasterCache
from thg.bench.policies import CFGCache, CFGCacheFFT, GuidanceInterval, SelectiveGuidance
from thg.bench.profiled import Calibrated
from thg.bench.table import Table
from thg.plans.plan import Plan
from thg.plans.planners import DEFAULT_CORRECTOR, Fixed, Planned, tapered, uniform
from thg.plans.presets import PRESETS, preset

Read = Callable[[Table, int], tuple[int | None, Policy]]
"""Takes a policy's options from the table of a method with so many steps; gives its budget, if any, and the policy."""


def read_policy(name: str, table: Table, steps: int) -> tuple[int | None, Policy, dict[str, Any]]:
    """The budget and the policy of a method, and its options as plain values."""
    before = set(table.asked)
    nfe, policy = POLICIES[name](table, steps)
    options = {key: table.given[key] for key in table.asked if key not in before and key in table.given}
    return nfe, policy, options


def _rival(cls: Any) -> Read:
    """A rival whose options are the fields of its class."""

    def read(table: Table, steps: int) -> tuple[int | None, Policy]:
        nfe = table.whole("nfe", at_least=1)
        options = _options(cls, table)
        return nfe, Guided(cls(nfe=nfe, **options), cls.paper)

    return read


def _outside(cls: Any) -> Read:
    def read(table: Table, steps: int) -> tuple[int | None, Policy]:
        return None, cls(**_options(cls, table))

    return read


def _options(cls: Any, table: Table) -> dict[str, Any]:
    read = {"int": table.whole, "float": table.number, "str": table.text}
    return {f.name: read[str(f.type)](f.name, f.default) for f in fields(cls) if f.name != "nfe"}


def _cfg(table: Table, steps: int) -> tuple[int | None, Policy]:
    return table.whole("nfe", None, at_least=2), PlainCFG()


def _adaptive(table: Table, steps: int) -> tuple[int | None, Policy]:
    nfe, threshold = table.whole("nfe", None), table.number("threshold", None)
    if (nfe is None) == (threshold is None):
        raise ConfigError("adaptive-guidance takes either nfe = 70 or threshold = 0.99, and one of them")
    return None, Adaptive(nfe, threshold)


def _thg(table: Table, steps: int) -> tuple[int | None, Policy]:
    """The paper's: a preset, a grid as printed, or Algorithm 2 on a measured profile."""
    ways = [way for way in ("preset", "coarse", "rho") if table.has(way)]
    if len(ways) != 1:
        raise ConfigError('thg takes one of preset = "sd15", coarse = [0, 1, 2, 4], or rho = 1.1')
    nfe = table.whole("nfe", None)
    if ways == ["preset"]:
        return nfe, Guided(Planned(Fixed(preset(table.choice("preset", tuple(PRESETS))))))
    cutoff, boost = table.whole("cutoff", None), table.number("boost", 1.0)
    if ways == ["coarse"]:
        plan = Plan(steps, table.wholes("coarse"), cutoff, boost, hare_order=1)
        return nfe, Guided(Planned(Fixed(plan)))
    planner = {"rho": table.number("rho"), "boost": boost, "cutoff": cutoff}
    return None, Calibrated(planner, table.path("profile"), table.whole("calibrate", 32, at_least=1), nfe)


def _uniform(table: Table, steps: int) -> tuple[int | None, Policy]:
    nfe = table.whole("nfe")
    planner = uniform(nfe=nfe, hare_order=table.whole("hare_order", 2), corrector=table.number("corrector", 0.0))
    return nfe, Guided(Planned(planner), "thg: uniform grid, linear prediction of the hare")


def _tapered(table: Table, steps: int) -> tuple[int | None, Policy]:
    nfe = table.whole("nfe")
    planner = tapered(
        nfe, hare_order=table.whole("hare_order", 2), corrector=table.number("corrector", DEFAULT_CORRECTOR)
    )
    return nfe, Guided(Planned(planner), "thg: the default, grid densest at the ends, linear prediction of the hare")


def _profile(table: Table, steps: int) -> tuple[int | None, Policy]:
    nfe = table.whole("nfe")
    planner = {
        "nfe": nfe,
        "method": table.choice("method", ("optimal", "algorithm2"), "optimal"),
        "hare_order": table.whole("hare_order", 2),
        "corrector": table.number("corrector", DEFAULT_CORRECTOR),
    }
    paper = "thg: grid from a calibration profile, linear prediction of the hare"
    return nfe, Calibrated(planner, table.path("profile"), table.whole("calibrate", 32, at_least=1), nfe, paper)


POLICIES: dict[str, Read] = {
    "cfg": _cfg,
    "cfg-cache": _rival(CFGCache),
    "cfg-cache-fft": _rival(CFGCacheFFT),
    "selective-guidance": _rival(SelectiveGuidance),
    "guidance-interval": _rival(GuidanceInterval),
    "adaptive-guidance": _adaptive,
    "thg": _thg,
    "uniform": _uniform,
    "tapered": _tapered,
    "profile": _profile,
    "deepcache": _outside(DeepCache),
    "fastercache": _outside(FasterCache),
    "cache-dit": _outside(CacheDiT),
}
