"""Calibration on validation data: is a model as sure as it should be, and what to do if it is not.

:func:`conformal` fits intervals with a promised coverage, :func:`fit_temperature` a temperature. :func:`pit` and :func:`coverage`
show how well distributions fit truths; ``numerate.plotting`` draws them.
"""

from numerate.calibration.conformal_intervals import Conformal, conformal
from numerate.calibration.positions import coverage, pit
from numerate.calibration.temperature import fit_temperature
from numerate.checks import public_dir

__all__ = ["Conformal", "conformal", "coverage", "fit_temperature", "pit"]
__dir__ = public_dir(globals())
