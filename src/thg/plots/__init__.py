"""Plots; they need the extra `plots` (matplotlib)."""
