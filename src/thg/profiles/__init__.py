"""What calibration measures of a model, and the plans that follow from it."""

from thg.profiles.optimal import optimal_grid
from thg.profiles.planner import ProfilePlanner
from thg.profiles.profile import Profile

__all__ = ["Profile", "ProfilePlanner", "optimal_grid"]
