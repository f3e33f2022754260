"""Measurements on a network: where its outputs can be predicted, or how many evaluations it needs."""

from thg.calibration.measure import calibrate
from thg.calibration.tuning import tune

__all__ = ["calibrate", "tune"]
