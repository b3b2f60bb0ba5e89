"""Calibration on validation data: conformal intervals, temperature scaling, and diagnostics.

:func:`conformal` fits intervals with guaranteed coverage, :func:`fit_temperature` a temperature, and :func:`fit_pool_weights` the
weights of a pool. :func:`pit` and :func:`coverage` show how well distributions are calibrated; ``numerate.plotting`` plots them.
"""

from numerate.calibration.conformal_intervals import Conformal, conformal
from numerate.calibration.pool_weights import fit_pool_weights
from numerate.calibration.positions import coverage, pit
from numerate.calibration.temperature import fit_temperature
from numerate.checks import public_dir

__all__ = ["Conformal", "conformal", "coverage", "fit_pool_weights", "fit_temperature", "pit"]
__dir__ = public_dir(globals())
