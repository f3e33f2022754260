"""thg: guided diffusion sampling with fewer network evaluations (Tortoise and Hare Guidance).

    import thg
    thg.enable(pipe)        # one line on a diffusers pipeline
    pipe("a red bicycle")   # as before
    thg.summary(pipe)       # evaluations and time saved

The names below are public. Those that need diffusers are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from thg.ode.guided_denoiser import GuidedDenoiser
from thg.ode.integrate import sample
from thg.ode.schedule import Schedule
from thg.plans.fidelity import within
from thg.plans.plan import Plan
from thg.plans.planners import look_before_you_leap, m_max, tapered, uniform
from thg.plans.presets import PRESETS, preset
from thg.plans.run import Run
from thg.profiles.profile import Profile

if TYPE_CHECKING:
    from thg.adapter.budget import plan_for
    from thg.adapter.guider import TortoiseHareGuidance
    from thg.adapter.schedulers import read_schedule
    from thg.calibration import calibrate, tune
    from thg.models import shipped_pipeline
    from thg.pipelines import Batched, Sequential, Summary, disable, enable, enabled, is_enabled, summary

_LAZY = {
    "Batched": "thg.pipelines",
    "Sequential": "thg.pipelines",
    "Summary": "thg.pipelines",
    "TortoiseHareGuidance": "thg.adapter.guider",
    "calibrate": "thg.calibration",
    "disable": "thg.pipelines",
    "enable": "thg.pipelines",
    "enabled": "thg.pipelines",
    "is_enabled": "thg.pipelines",
    "plan_for": "thg.adapter.budget",
    "read_schedule": "thg.adapter.schedulers",
    "shipped_pipeline": "thg.models",
    "summary": "thg.pipelines",
    "tune": "thg.calibration",
}

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
    "read_schedule",
    "sample",
    "shipped_pipeline",
    "summary",
    "tapered",
    "tune",
    "uniform",
    "within",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'thg' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
