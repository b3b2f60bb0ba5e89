"""Every loss as its formula, in loops and float64: the ground truth of tests and benchmarks."""

from numerate.reference.losses import (
    REFERENCES,
    Cost,
    crps_reference,
    dist2_reference,
    emd_reference,
    gaussian_ce_reference,
    ntil_reference,
    ntl_reference,
    number_reference,
    smmd_reference,
    soft_label_reference,
    squared_emd_reference,
)
from numerate.reference.numbers import Number, numbers_reference

__all__ = [
    "REFERENCES",
    "Cost",
    "Number",
    "crps_reference",
    "dist2_reference",
    "emd_reference",
    "gaussian_ce_reference",
    "ntil_reference",
    "ntl_reference",
    "number_reference",
    "numbers_reference",
    "smmd_reference",
    "soft_label_reference",
    "squared_emd_reference",
]
