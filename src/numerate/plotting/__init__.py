"""Plots of losses, formats, calibration and distributions; they need matplotlib."""

from numerate.checks import public_dir
from numerate.choices import FORMATS
from numerate.plotting.calibration import plot_coverage, plot_distributions, plot_reliability
from numerate.plotting.figures import figure_for
from numerate.plotting.format_tokens import plot_formats
from numerate.plotting.losses import certain_costs, plot_loss

__all__ = [
    "FORMATS",
    "certain_costs",
    "figure_for",
    "plot_coverage",
    "plot_distributions",
    "plot_formats",
    "plot_loss",
    "plot_reliability",
]
__dir__ = public_dir(globals())
