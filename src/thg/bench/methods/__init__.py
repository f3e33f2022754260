"""The methods that a benchmark compares, by the names of their policies in a configuration.

A method is a dataclass whose fields are its options: a `Policy`, or anything with `guide(run)` (or `plan(run)`) that
`thg.enable` takes, or a class whose `policy(steps)` returns one of them. An own one is named by its file,
"my_methods.py:Fading", or registered by a package as an entry point of the group `thg.bench.methods`.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from thg.bench.methods import baselines, predictors, thg_plans, third_party
from thg.bench.methods.policy import EnabledPolicy, PlainCFG, Policy
from thg.bench.tables import ConfigError, from_file, is_file, nearest
from thg.plans.planners import guide_maker

GROUP = "thg.bench.methods"
"""The group of entry points."""

BUILT_IN: dict[str, type] = {
    "cfg": PlainCFG,
    "cfg-cache": baselines.CFGCache,
    "cfg-cache-fft": baselines.CFGCacheFFT,
    "cfg-gate": baselines.CFGGate,
    "selective-guidance": baselines.SelectiveGuidance,
    "step-ag": baselines.StepAG,
    "guidance-interval": baselines.GuidanceInterval,
    "adaptive-guidance": baselines.AdaptiveGuidance,
    "thg": thg_plans.PaperPlan,
    "uniform": thg_plans.UniformPolicy,
    "tapered": thg_plans.TaperedPolicy,
    "within": thg_plans.WithinPolicy,
    "profile": thg_plans.Profiled,
    "taylorseer": predictors.TaylorSeer,
    "hicache": predictors.HiCache,
    "spectrum": predictors.Spectrum,
    "deepcache": third_party.DeepCache,
    "fastercache": third_party.FasterCache,
    "cache-dit": third_party.CacheDiT,
}


@cache
def methods() -> dict[str, type]:
    """All methods with a name: those of thg, and those that installed packages register."""
    return BUILT_IN | {entry.name: entry.load() for entry in entry_points(group=GROUP)}


def method_class(name: Any, where: str, base: Path) -> type:
    """The dataclass of a policy. where: its place in the configuration, for errors; base: of the paths of files."""
    if isinstance(name, str) and is_file(name):
        found = from_file(name, base)
    elif isinstance(name, str) and name in methods():
        found = methods()[name]
    else:
        raise ConfigError(
            f"{where}.policy is {name!r}{nearest(str(name), methods())}; your own: policy = "
            '"my_methods.py:MyMethod", a dataclass with guide(run), in a file beside the configuration'
        )
    if not is_dataclass(found):
        raise ConfigError(f"{where}.policy = {name!r} is not a dataclass: write @dataclass before the class")
    assert isinstance(found, type)
    return found


def as_policy(method: Any, steps: int) -> Policy:
    """The policy of a method for a run with this number of steps."""
    if hasattr(method, "policy"):
        method = method.policy(steps)
    return method if isinstance(method, Policy) else EnabledPolicy(guide_maker(method))


def citation(cls: type) -> str:
    """What a report says of a method: its paper, or the first line of its docstring."""
    text = str(getattr(cls, "paper", "") or cls.__doc__ or cls.__name__)
    return text.strip().splitlines()[0].rstrip(".")
