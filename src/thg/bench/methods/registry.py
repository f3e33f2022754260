"""The methods by the names of their policies in a configuration.

Other packages register methods as entry points of the group `thg.bench.methods`: a dataclass with `guide(run)`, or a
`MethodTable`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from pydantic import Field, model_validator

from thg.bench.errors import ConfigError
from thg.bench.methods.adaptive_guidance import AdaptiveGuidancePolicy
from thg.bench.methods.calibrated import Calibrated
from thg.bench.methods.cfg_cache import CFGCache, CFGCacheFFT
from thg.bench.methods.limited_guidance import GuidanceInterval, SelectiveGuidance
from thg.bench.methods.ours import Guided, PlainCFG
from thg.bench.methods.outside import CacheDiT, DeepCache, FasterCache
from thg.bench.methods.policy import Policy
from thg.bench.methods.tables import MethodTable, guided, outside
from thg.bench.strict import FilePath, Wholes, nearest
from thg.plans.fidelity import DEFAULT_ERROR, within
from thg.plans.plan import Plan
from thg.plans.planners import CORRECTOR, Fixed, Planned, tapered, uniform
from thg.plans.presets import PRESETS, preset

GROUP = "thg.bench.methods"
"""The group of entry points."""


class CFGTable(MethodTable):
    """Plain CFG; with `nfe`, in fewer steps."""

    nfe: int | None = Field(None, ge=2)

    def make_policy(self, steps: int) -> Policy:
        return PlainCFG()


class AdaptiveGuidanceTable(MethodTable):
    nfe: int | None = None
    threshold: float | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> AdaptiveGuidanceTable:
        if (self.nfe is None) == (self.threshold is None):
            raise ConfigError("adaptive-guidance takes exactly one of nfe = 70 and threshold = 0.99")
        return self

    @property
    def budget(self) -> None:
        """None: it is met on average only."""

    def make_policy(self, steps: int) -> Policy:
        return AdaptiveGuidancePolicy(self.nfe, self.threshold)


class ProfiledTable(MethodTable):
    """A plan from a profile: from a file, or measured on `calibrate` prompts."""

    nfe: int | None = None
    profile: FilePath | None = None
    calibrate: int = Field(32, ge=1)


class PaperTable(ProfiledTable):
    """The paper's method: a preset, a printed grid, or Algorithm 2 on a measured profile."""

    preset: str | None = None
    coarse: Wholes | None = None
    rho: float | None = None
    cutoff: int | None = None
    boost: float = 1.0

    @model_validator(mode="after")
    def _one_way(self) -> PaperTable:
        ways = [self.preset, self.coarse, self.rho]
        if sum(way is not None for way in ways) != 1:
            raise ConfigError('thg takes one of preset = "sd15", coarse = [0, 1, 2, 4], or rho = 1.1')
        if self.preset is not None and self.preset not in PRESETS:
            raise ConfigError(f"{self.name}: there is no preset {self.preset!r}{nearest(self.preset, PRESETS)}")
        return self

    def make_policy(self, steps: int) -> Policy:
        if self.rho is not None:
            planner = {"rho": self.rho, "boost": self.boost, "cutoff": self.cutoff}
            return Calibrated(planner, self.profile, self.calibrate, self.nfe)
        if self.preset is not None:
            return Guided(Planned(Fixed(preset(self.preset))))
        assert self.coarse is not None
        return Guided(Planned(Fixed(Plan(steps, self.coarse, self.cutoff, self.boost, hare_order=1))))


class UniformTable(MethodTable):
    nfe: int
    hare_order: Literal[1, 2] = 2
    corrector: float = 0.0

    def make_policy(self, steps: int) -> Policy:
        planner = uniform(nfe=self.nfe, hare_order=self.hare_order, corrector=self.corrector)
        return Guided(Planned(planner), "thg: uniform grid, linear prediction of the hare")


class TaperedTable(MethodTable):
    nfe: int

    def make_policy(self, steps: int) -> Policy:
        return Guided(Planned(tapered(self.nfe)), "thg: leaps of the whole network, shortest at both ends")


class WithinTable(MethodTable):
    error: float = Field(default=DEFAULT_ERROR, gt=0, lt=1)

    def make_policy(self, steps: int) -> Policy:
        paper = f"thg: the default, the evaluations that keep results within {self.error:.1%} of plain CFG's"
        return Guided(Planned(within(self.error)), paper)


class ProfileTable(ProfiledTable):
    nfe: int
    method: Literal["optimal", "algorithm2"] = "optimal"
    hare_order: Literal[1, 2] = 2
    corrector: float = CORRECTOR

    def make_policy(self, steps: int) -> Policy:
        names = ("nfe", "method", "hare_order", "corrector")
        planner = {name: getattr(self, name) for name in names}
        paper = "thg: grid from a calibration profile, linear prediction of the hare"
        return Calibrated(planner, self.profile, self.calibrate, self.nfe, paper)


BUILT_IN: dict[str, type[MethodTable]] = {
    "cfg": CFGTable,
    "cfg-cache": guided(CFGCache),
    "cfg-cache-fft": guided(CFGCacheFFT),
    "selective-guidance": guided(SelectiveGuidance),
    "guidance-interval": guided(GuidanceInterval),
    "adaptive-guidance": AdaptiveGuidanceTable,
    "thg": PaperTable,
    "uniform": UniformTable,
    "tapered": TaperedTable,
    "within": WithinTable,
    "profile": ProfileTable,
    "deepcache": outside(DeepCache),
    "fastercache": outside(FasterCache),
    "cache-dit": outside(CacheDiT),
}


@cache
def methods() -> dict[str, type[MethodTable]]:
    """All methods: those of thg, and those that installed packages register."""
    return BUILT_IN | {entry.name: _table(entry.load()) for entry in entry_points(group=GROUP)}


def _table(found: Any) -> type[MethodTable]:
    return found if isinstance(found, type) and issubclass(found, MethodTable) else guided(found)
