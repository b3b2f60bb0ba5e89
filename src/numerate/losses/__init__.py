"""The losses, one file each, and their registry."""

from importlib import import_module
from pkgutil import iter_modules

from numerate.checks import public_dir
from numerate.losses.base import NumericLoss
from numerate.losses.crps import CRPSLoss, crps_loss
from numerate.losses.digit_entropy import DigitEntropyLoss, digit_entropy_loss
from numerate.losses.dist2 import DIST2Loss, dist2_loss
from numerate.losses.emd import EMDLoss, emd_loss
from numerate.losses.gaussian_ce import GaussianCELoss, gaussian_ce_loss
from numerate.losses.neighbour_smoothing import NeighbourSmoothingLoss, neighbour_smoothing_loss
from numerate.losses.ntil import NTILLoss, ntil_loss
from numerate.losses.ntl import NTLHuberLoss, NTLLoss, NTLMAELoss, NTLMSELoss, NTLNumberLoss, ntl_loss, ntl_number_loss
from numerate.losses.number import NumberLoss, number_loss
from numerate.losses.number_level import NumberLevelLoss
from numerate.losses.raft import RAFTLoss, raft_loss
from numerate.losses.registry import LOSSES, register
from numerate.losses.smmd import SMMDLoss, smmd_loss
from numerate.losses.squared_emd import SquaredEMDLoss, squared_emd_loss

for _loss in (  # in the order in which tables, the command line and the playground list them
    SMMDLoss,
    EMDLoss,
    SquaredEMDLoss,
    CRPSLoss,
    NTILLoss,
    NTLLoss,
    NTLMSELoss,
    NTLMAELoss,
    NTLHuberLoss,
    NTLNumberLoss,
    GaussianCELoss,
    DIST2Loss,
    NeighbourSmoothingLoss,
    RAFTLoss,
    DigitEntropyLoss,
    NumberLoss,
):
    register(_loss)
for _module in iter_modules(__path__):  # other files register their losses, after these
    import_module(f"{__name__}.{_module.name}")

__all__ = [
    "LOSSES",
    "CRPSLoss",
    "DIST2Loss",
    "DigitEntropyLoss",
    "EMDLoss",
    "GaussianCELoss",
    "NTILLoss",
    "NTLHuberLoss",
    "NTLLoss",
    "NTLMAELoss",
    "NTLMSELoss",
    "NTLNumberLoss",
    "NeighbourSmoothingLoss",
    "NumberLevelLoss",
    "NumberLoss",
    "NumericLoss",
    "RAFTLoss",
    "SMMDLoss",
    "SquaredEMDLoss",
    "crps_loss",
    "digit_entropy_loss",
    "dist2_loss",
    "emd_loss",
    "gaussian_ce_loss",
    "neighbour_smoothing_loss",
    "ntil_loss",
    "ntl_loss",
    "ntl_number_loss",
    "number_loss",
    "raft_loss",
    "register",
    "smmd_loss",
    "squared_emd_loss",
]
__dir__ = public_dir(globals())
