"""Calibration: measures where the guidance of a model may leap (Algorithm 3), or how often, in runs of its pipeline."""

from thg.calibration.run import calibrate
from thg.calibration.tuning import tune

__all__ = ["calibrate", "tune"]
