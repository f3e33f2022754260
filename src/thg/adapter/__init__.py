"""Patches the guidance of diffusers pipelines."""

from thg.adapter.api import disable, enable, enabled, summary
from thg.adapter.layouts import Batched, Sequential
from thg.plans.report import Summary

__all__ = ["Batched", "Sequential", "Summary", "disable", "enable", "enabled", "summary"]
