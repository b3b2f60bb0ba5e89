"""numerate: training objectives for language models that know that 5.1 is nearer to 5.0 than to 100.

A public name is imported when it is first used: ``numerate --help`` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

    __version__: str

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

_MODULES = ("integrations", "losses", "objective", "spans", "vocab")
_HOMES = {"NumericObjective": "objective", "ObjectiveOutput": "objective", "NumberSpans": "spans", "NumericVocab": "vocab"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        found: Any = _version()
    elif name in _MODULES:
        found = import_module(f"numerate.{name}")
    elif name in __all__:
        found = getattr(import_module(f"numerate.{_HOMES.get(name, 'losses')}"), name)
    else:
        raise AttributeError(f"module 'numerate' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("numerate")
    except PackageNotFoundError:  # run from source
        return "0.0.0+source"
