"""numerate: teach language models that 5.1 is closer to 5.0 than to 100.

Names and submodules are imported on first use, so that ``import numerate`` and ``numerate --help`` do not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numerate import (
        answers,
        calibration,
        decode,
        distribution,
        formats,
        inspection,
        integrations,
        judge,
        losses,
        objective,
        plotting,
        recommendation,
        rewards,
        targets,
        tokenizers,
    )
    from numerate.distribution import NumberDistribution
    from numerate.integrations.hugging_face import attach
    from numerate.losses import LOSSES, EMDLoss, NTILLoss, NTLLoss, NumberLoss, NumericLoss, SMMDLoss
    from numerate.objective import NumericObjective
    from numerate.recommendation import recommended
    from numerate.spans import NumberSpans
    from numerate.targets import Bell, Ratings
    from numerate.vocab import NumericVocab

    __version__: str
    """The version of the installed package."""

__all__ = [
    "LOSSES",
    "Bell",
    "EMDLoss",
    "NTILLoss",
    "NTLLoss",
    "NumberDistribution",
    "NumberLoss",
    "NumberSpans",
    "NumericLoss",
    "NumericObjective",
    "NumericVocab",
    "Ratings",
    "SMMDLoss",
    "__version__",
    "answers",
    "attach",
    "calibration",
    "decode",
    "distribution",
    "formats",
    "inspection",
    "integrations",
    "judge",
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
    # Like checks.public_dir, which would import a submodule here.
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


_HOMES = {  # submodule of each name that is not one
    **dict.fromkeys(("LOSSES", "EMDLoss", "NTILLoss", "NTLLoss", "NumberLoss", "NumericLoss", "SMMDLoss"), "losses"),
    "Bell": "targets",
    "NumberDistribution": "distribution",
    "NumberSpans": "spans",
    "NumericObjective": "objective",
    "NumericVocab": "vocab",
    "Ratings": "targets",
    "attach": "integrations.hugging_face",
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
