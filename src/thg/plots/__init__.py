"""Plots; they need matplotlib: pip install 'thg[plots]'."""
