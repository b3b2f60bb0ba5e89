"""The math_vision task."""

from numerate.lab.tasks.math_vision.task import MathVision

__all__ = ["MathVision"]
