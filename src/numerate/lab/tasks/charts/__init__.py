"""The charts task."""

from numerate.lab.tasks.charts.task import Charts

__all__ = ["Charts"]
