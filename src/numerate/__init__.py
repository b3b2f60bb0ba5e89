"""numerate: training objectives for language models that know that 5.1 is nearer to 5.0 than to 100.

Names and submodules are imported on first use, so that ``import numerate`` and ``numerate --help`` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numerate import (
        answers,
        calibration,
        decode,
        distribution,
        inspection,
        integrations,
        losses,
        objective,
        plotting,
        recommendation,
        rewards,
        targets,
        tokenizers,
    )
    from numerate.distribution import NumberDistribution
    from numerate.losses import LOSSES, EMDLoss, NTILLoss, NTLLoss, NumberLoss, NumericLoss, SMMDLoss
    from numerate.objective import NumericObjective
    from numerate.recommendation import recommended
    from numerate.spans import NumberSpans
    from numerate.vocab import NumericVocab

    __version__: str
    """The version of the installed package."""

__all__ = [
    "LOSSES",
    "EMDLoss",
    "NTILLoss",
    "NTLLoss",
    "NumberDistribution",
    "NumberLoss",
    "NumberSpans",
    "NumericLoss",
    "NumericObjective",
    "NumericVocab",
    "SMMDLoss",
    "__version__",
    "answers",
    "calibration",
    "decode",
    "distribution",
    "inspection",
    "integrations",
    "losses",
    "objective",
    "plotting",
    "recommendation",
    "recommended",
    "rewards",
    "targets",
    "tokenizers",
]


def __dir__() -> list[str]:
    # As checks.public_dir, which would load a submodule here.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_HOMES = {  # of the names that are not submodules
    **dict.fromkeys(("LOSSES", "EMDLoss", "NTILLoss", "NTLLoss", "NumberLoss", "NumericLoss", "SMMDLoss"), "losses"),
    "NumberDistribution": "distribution",
    "NumberSpans": "spans",
    "NumericObjective": "objective",
    "NumericVocab": "vocab",
    "recommended": "recommendation",
}


if not TYPE_CHECKING:  # so that type checkers report names that do not exist

    def __getattr__(name: str) -> Any:
        if name == "__version__":
            value: Any = _version()
        elif name in _HOMES:
            value = getattr(import_module(f"numerate.{_HOMES[name]}"), name)
        elif name in (*__all__, "lab", "spans", "vocab"):
            value = import_module(f"numerate.{name}")
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
