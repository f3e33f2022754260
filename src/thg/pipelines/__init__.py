"""thg on diffusers pipelines."""

from thg.pipelines.api import Support, disable, enable, enabled, is_enabled, plan_for, preview, summary, supported
from thg.pipelines.layouts import Batched, Sequential
from thg.plans.summary import Summary

__all__ = [
    "Batched",
    "Sequential",
    "Summary",
    "Support",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "plan_for",
    "preview",
    "summary",
    "supported",
]
