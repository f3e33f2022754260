"""thg: guided diffusion sampling with fewer network evaluations (Tortoise and Hare Guidance).

    import thg
    thg.enable(pipe)        # one line on a diffusers pipeline
    pipe("a red bicycle")   # as before
    thg.summary(pipe)       # evaluations and time saved

The names below are public. They are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thg.distribution import __version__
from thg.errors import (
    ConcurrentRunError,
    MissingExtraError,
    NonFiniteError,
    PlanError,
    ProfileError,
    ScheduleError,
    THGError,
    UnsupportedPipelineError,
)
from thg.lazy import lazy_names

if TYPE_CHECKING:
    from thg.calibration import calibrate, tune
    from thg.models import shipped_pipeline
    from thg.ode.diffusers_schedule import read_schedule
    from thg.ode.guided_denoiser import GuidedDenoiser
    from thg.ode.integrate import sample
    from thg.ode.schedule import Schedule
    from thg.pipelines import (
        Batched,
        Sequential,
        Summary,
        disable,
        enable,
        enabled,
        is_enabled,
        preview,
        summary,
        supported,
    )
    from thg.pipelines.budget import plan_for
    from thg.pipelines.guider import TortoiseHareGuidance
    from thg.plans.fidelity import within
    from thg.plans.plan import Plan
    from thg.plans.planners import look_before_you_leap, m_max, tapered, uniform
    from thg.plans.presets import PRESETS, preset
    from thg.plans.run import Run
    from thg.profiles.profile import Profile

__all__ = [
    "PRESETS",
    "Batched",
    "ConcurrentRunError",
    "GuidedDenoiser",
    "MissingExtraError",
    "NonFiniteError",
    "Plan",
    "PlanError",
    "Profile",
    "ProfileError",
    "Run",
    "Schedule",
    "ScheduleError",
    "Sequential",
    "Summary",
    "THGError",
    "TortoiseHareGuidance",
    "UnsupportedPipelineError",
    "__version__",
    "calibrate",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "look_before_you_leap",
    "m_max",
    "plan_for",
    "preset",
    "preview",
    "read_schedule",
    "sample",
    "shipped_pipeline",
    "summary",
    "supported",
    "tapered",
    "tune",
    "uniform",
    "within",
]


__getattr__ = lazy_names(
    __name__,
    {
        "thg.pipelines.budget": ("plan_for",),
        "thg.pipelines.guider": ("TortoiseHareGuidance",),
        "thg.ode.diffusers_schedule": ("read_schedule",),
        "thg.calibration": ("calibrate", "tune"),
        "thg.models": ("shipped_pipeline",),
        "thg.ode.guided_denoiser": ("GuidedDenoiser",),
        "thg.ode.integrate": ("sample",),
        "thg.ode.schedule": ("Schedule",),
        "thg.pipelines": (
            "Batched",
            "Sequential",
            "Summary",
            "disable",
            "enable",
            "enabled",
            "is_enabled",
            "preview",
            "summary",
            "supported",
        ),
        "thg.plans.fidelity": ("within",),
        "thg.plans.plan": ("Plan",),
        "thg.plans.planners": ("look_before_you_leap", "m_max", "tapered", "uniform"),
        "thg.plans.presets": ("PRESETS", "preset"),
        "thg.plans.run": ("Run",),
        "thg.profiles.profile": ("Profile",),
        "": ("ode", "plans", "profiles"),
    },
)


def __dir__() -> list[str]:
    return sorted(__all__)
