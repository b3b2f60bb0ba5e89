"""Distributions over numbers."""

from numerate.checks import public_dir
from numerate.distribution.circle import CircularDistribution
from numerate.distribution.exact import MAX_DIGITS
from numerate.distribution.number_distribution import NumberDistribution
from numerate.distribution.pools import Spread, pool, spread

__all__ = ["MAX_DIGITS", "CircularDistribution", "NumberDistribution", "Spread", "pool", "spread"]
__dir__ = public_dir(globals())
