"""The measurements of a calibration, and the plans that follow from them."""

from thg.profiles.planner import ProfilePlanner, optimal_grid
from thg.profiles.profile import Profile

__all__ = ["Profile", "ProfilePlanner", "optimal_grid"]
