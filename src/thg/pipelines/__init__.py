"""thg on diffusers pipelines."""

from thg.adapter.layouts import Batched, Sequential
from thg.pipelines.api import disable, enable, enabled, is_enabled, summary
from thg.plans.report import Summary

__all__ = ["Batched", "Sequential", "Summary", "disable", "enable", "enabled", "is_enabled", "summary"]
