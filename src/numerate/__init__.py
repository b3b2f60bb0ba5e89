"""numerate: training objectives for language models that know that 5.1 is nearer to 5.0 than to 100."""

from importlib.metadata import PackageNotFoundError, version

from numerate import integrations
from numerate.losses import (
    LOSSES,
    CRPSLoss,
    DIST2Loss,
    EMDLoss,
    GaussianCELoss,
    NTILLoss,
    NTLHuberLoss,
    NTLLoss,
    NTLMAELoss,
    NTLMSELoss,
    NTLNumberLoss,
    NumberLoss,
    NumericLoss,
    SMMDLoss,
    SoftLabelLoss,
    SquaredEMDLoss,
)
from numerate.objective import NumericObjective, ObjectiveOutput
from numerate.spans import NumberSpans
from numerate.vocab import NumericVocab

try:
    __version__ = version("numerate")
except PackageNotFoundError:  # run from source
    __version__ = "0.0.0+source"

__all__ = [
    "LOSSES",
    "CRPSLoss",
    "DIST2Loss",
    "EMDLoss",
    "GaussianCELoss",
    "NTILLoss",
    "NTLHuberLoss",
    "NTLLoss",
    "NTLMAELoss",
    "NTLMSELoss",
    "NTLNumberLoss",
    "NumberLoss",
    "NumberSpans",
    "NumericLoss",
    "NumericObjective",
    "NumericVocab",
    "ObjectiveOutput",
    "SMMDLoss",
    "SoftLabelLoss",
    "SquaredEMDLoss",
    "__version__",
    "integrations",
]
