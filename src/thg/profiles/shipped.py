"""The profiles of the shipped models, each next to the weights that it was measured on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thg.plans.plan import Plan
from thg.plans.planners import Planner
from thg.plans.run import RunInfo
from thg.profiles.planner import ProfilePlanner
from thg.profiles.profile import Profile
from thg.profiles.regridded import far_from

SHIPPED = Path(__file__).parent.parent / "models"


def shipped_profile(network: str) -> Profile | None:
    """The shipped profile of the network with this fingerprint, or None."""
    for path in sorted(SHIPPED.glob("*/profile.json")):
        profile = Profile.load(path)
        if profile.about.network == network:
            return profile
    return None


@dataclass(frozen=True, eq=False)
class NearProfile:
    """The profile's plan near what was measured, and elsewhere that of a planner for unmeasured models."""

    near: ProfilePlanner
    elsewhere: Planner

    def plan(self, run: RunInfo) -> Plan:
        planner = self.elsewhere if far_from(self.near.profile, run) else self.near
        return planner.plan(run)
