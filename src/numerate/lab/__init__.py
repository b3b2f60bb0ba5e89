"""The lab: find out whether a numeric loss helps. Tasks, runs, statistics and a report. The library never imports the lab."""

from typing import TYPE_CHECKING, Any

from numerate.messages import public_dir

if TYPE_CHECKING:
    from numerate.lab.comparison import ComparisonResult, compare

__all__ = ["ComparisonResult", "compare"]
__dir__ = public_dir(globals())


def __getattr__(name: str) -> Any:  # on first use, so that `numerate --help` does not import torch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numerate.lab import comparison

    return getattr(comparison, name)
