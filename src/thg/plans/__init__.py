"""Plans, the planners that make them, and the guides that follow them. Independent of schedules and networks."""

from thg.plans.guide import Guide, GuideMaker, HareGuide
from thg.plans.leaps import Leaps
from thg.plans.plan import PRESETS, Plan, Preset, preset
from thg.plans.planners import Planner, look_before_you_leap, m_max, rho_for, tapered, uniform
from thg.plans.run_info import RunInfo, Term
from thg.plans.tolerance import Tuned, within

__all__ = [
    "PRESETS",
    "Guide",
    "GuideMaker",
    "HareGuide",
    "Leaps",
    "Plan",
    "Planner",
    "Preset",
    "RunInfo",
    "Term",
    "Tuned",
    "look_before_you_leap",
    "m_max",
    "preset",
    "rho_for",
    "tapered",
    "uniform",
    "within",
]
