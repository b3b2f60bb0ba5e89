"""The clock task."""

from numerate.lab.tasks.clock.task import Clock

__all__ = ["Clock"]
