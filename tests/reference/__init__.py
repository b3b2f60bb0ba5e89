"""Every loss as its formula, in loops and float64: the ground truth of the tests."""

from collections.abc import Callable

from tests.reference.batch import ReferenceCost
from tests.reference.number_level import (
    ntil_reference,
    ntl_huber_reference,
    ntl_mae_reference,
    ntl_mse_reference,
    ntl_number_reference,
    ntl_reference,
    ntl_was_reference,
    number_reference,
)
from tests.reference.numbers import Number, numbers_reference
from tests.reference.token_level import (
    crps_reference,
    digit_entropy_reference,
    dist2_reference,
    emd_reference,
    from_formula,
    gaussian_ce_reference,
    neighbour_smoothing_reference,
    raft_reference,
    smmd_reference,
    squared_emd_reference,
)

from numerate.losses import LOSSES

REFERENCES: dict[str, Callable[..., ReferenceCost]] = {
    "smmd": smmd_reference,
    "emd": emd_reference,
    "squared_emd": squared_emd_reference,
    "crps": crps_reference,
    "ntil": ntil_reference,
    "ntl_was": ntl_was_reference,
    "ntl_mse": ntl_mse_reference,
    "ntl_mae": ntl_mae_reference,
    "ntl_huber": ntl_huber_reference,
    "ntl_number": ntl_number_reference,
    "gaussian_ce": gaussian_ce_reference,
    "dist2": dist2_reference,
    "neighbour_smoothing": neighbour_smoothing_reference,
    "raft": raft_reference,
    "digit_entropy": digit_entropy_reference,
    "number": number_reference,
}
"""The reference of every loss, by its name in `LOSSES`."""
REFERENCES |= {
    name: from_formula(loss.formula) for name, loss in LOSSES.items() if name not in REFERENCES and loss.formula is not None
}

__all__ = [
    "REFERENCES",
    "Number",
    "ReferenceCost",
    "crps_reference",
    "digit_entropy_reference",
    "dist2_reference",
    "emd_reference",
    "from_formula",
    "gaussian_ce_reference",
    "neighbour_smoothing_reference",
    "ntil_reference",
    "ntl_huber_reference",
    "ntl_mae_reference",
    "ntl_mse_reference",
    "ntl_number_reference",
    "ntl_reference",
    "ntl_was_reference",
    "number_reference",
    "numbers_reference",
    "raft_reference",
    "smmd_reference",
    "squared_emd_reference",
]
