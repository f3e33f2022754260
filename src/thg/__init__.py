"""thg: guided diffusion sampling with fewer network evaluations (Tortoise and Hare Guidance).

    import thg
    thg.enable(pipe)        # one line on a diffusers pipeline
    pipe("a red bicycle")   # as before
    thg.summary(pipe)       # evaluations and time saved

The names below are public. They are imported on first use.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from thg.distribution import __version__
from thg.errors import PlanError, THGError, UnsupportedPipelineError
from thg.lazy import lazy_names

if TYPE_CHECKING:
    from thg.calibration import calibrate, tune
    from thg.models import shipped_pipeline
    from thg.ode.guided_denoiser import GuidedDenoiser
    from thg.ode.integrate import sample
    from thg.ode.schedule import Schedule
    from thg.ode.schedulers import read_schedule
    from thg.pipelines import (
        Batched,
        Sequential,
        Summary,
        disable,
        enable,
        enabled,
        is_enabled,
        plan_for,
        preview,
        summary,
        supported,
    )
    from thg.pipelines.guider import TortoiseHareGuidance
    from thg.plans.plan import PRESETS, Plan, preset
    from thg.plans.planners import tapered, uniform
    from thg.plans.tolerance import within
    from thg.profiles.profile import Profile

__all__ = [
    "PRESETS",
    "Batched",
    "GuidedDenoiser",
    "Plan",
    "PlanError",
    "Profile",
    "Schedule",
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


_public = lazy_names(
    __name__,
    {
        "thg.pipelines.guider": ("TortoiseHareGuidance",),
        "thg.ode.schedulers": ("read_schedule",),
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
            "plan_for",
            "preview",
            "summary",
            "supported",
        ),
        "thg.plans.tolerance": ("within",),
        "thg.plans.planners": ("tapered", "uniform"),
        "thg.plans.plan": ("PRESETS", "Plan", "preset"),
        "thg.profiles.profile": ("Profile",),
        **{"thg.ode": (), "thg.plans": (), "thg.profiles": ()},
    },
)

# Names that were public until 0.2; they go with 0.3.
_MOVED = {
    **dict.fromkeys(
        ("ConcurrentRunError", "MissingExtraError", "NonFiniteError", "ProfileError", "ScheduleError"), "thg.errors"
    ),
    **dict.fromkeys(("Run", "look_before_you_leap", "m_max"), "thg.plans"),
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        return _public(name)
    home, now = _MOVED[name], "RunInfo" if name == "Run" else name
    warnings.warn(f"thg.{name} goes with 0.3; write {home}.{now}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(home), now)


def __dir__() -> list[str]:
    return sorted(__all__)
