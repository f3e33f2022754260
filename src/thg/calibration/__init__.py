"""Calibration: measures where the guidance of a model may leap (Algorithm 3), in normal runs of its pipeline."""

from thg.calibration.run import calibrate

__all__ = ["calibrate"]
