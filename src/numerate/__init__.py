"""numerate: training objectives for language models that know that 5.1 is nearer to 5.0 than to 100.

Names and submodules are imported on first use, so that ``import numerate`` and ``numerate --help`` do not wait for torch.
"""
# ruff: noqa: F403, F405

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numerate import answers, calibration, decode, inspection, integrations, plotting, rewards, targets, tokenizers
    from numerate.distribution import CircularDistribution, NumberDistribution
    from numerate.losses import *
    from numerate.objective import NumericObjective, ObjectiveOutput
    from numerate.recommendation import Recommendation, recommended
    from numerate.spans import NumberSpans
    from numerate.targets import SoftTargets
    from numerate.vocab import NumericVocab

    __version__: str
    """The version of the installed package."""

__all__ = [
    "LOSSES",
    "CRPSLoss",
    "CircularDistribution",
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
    "NumberDistribution",
    "NumberLoss",
    "NumberSpans",
    "NumericLoss",
    "NumericObjective",
    "NumericVocab",
    "ObjectiveOutput",
    "RAFTLoss",
    "Recommendation",
    "SMMDLoss",
    "SoftLabelLoss",
    "SoftTargets",
    "SquaredEMDLoss",
    "__version__",
    "answers",
    "calibration",
    "decode",
    "inspection",
    "integrations",
    "plotting",
    "recommended",
    "rewards",
    "targets",
    "tokenizers",
]


def __dir__() -> list[str]:
    # As checks.public_dir, which would load a submodule here.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_HOMES = {
    "CircularDistribution": "distribution",
    "NumberDistribution": "distribution",
    "NumberSpans": "spans",
    "NumericObjective": "objective",
    "NumericVocab": "vocab",
    "ObjectiveOutput": "objective",
    "Recommendation": "recommendation",
    "SoftTargets": "targets",
    "recommended": "recommendation",
}
_SUBMODULES = {
    "answers",
    "calibration",
    "decode",
    "inspection",
    "integrations",
    "lab",
    "losses",
    "plotting",
    "rewards",
    "targets",
    "tokenizers",
}
_SUBMODULES.update(_HOMES.values())


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value: Any = _version()
        elif name in _SUBMODULES:
            value = import_module(f"numerate.{name}")
        elif name in __all__:
            value = getattr(import_module(f"numerate.{_HOMES.get(name, 'losses')}"), name)
        else:
            raise AttributeError(f"module 'numerate' has no attribute {name!r}")
        globals()[name] = value
        return value


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("numerate")
    except PackageNotFoundError:  # run from source
        return "0.0.0+source"
