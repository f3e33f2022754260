"""Calibration: measures where the guidance term of a model can be predicted (Algorithm 3), or how many evaluations it
needs."""

from thg.calibration.run import calibrate
from thg.calibration.tuning import tune

__all__ = ["calibrate", "tune"]
