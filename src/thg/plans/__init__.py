"""Plans, the planners that make them, and the guides that follow them. Independent of schedules and networks."""

from thg.plans.fidelity import within
from thg.plans.guide import Guide, GuideMaker, HareGuide
from thg.plans.leaps import Leaps
from thg.plans.plan import Plan
from thg.plans.planners import Planner, look_before_you_leap, m_max, rho_for, tapered, uniform
from thg.plans.presets import PRESETS, Preset, preset
from thg.plans.run import RunInfo
from thg.plans.tuned import Tuned

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
    "Tuned",
    "look_before_you_leap",
    "m_max",
    "preset",
    "rho_for",
    "tapered",
    "uniform",
    "within",
]
