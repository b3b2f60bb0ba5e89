"""The lab: find out whether a numeric loss helps. Tasks, runs, statistics and a report. The library never imports the lab.

``compare`` is imported when it is first used, so that ``numerate --help`` does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numerate.lab.comparison import ComparisonResult, compare

__all__ = ["ComparisonResult", "compare"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numerate.lab import comparison

    return getattr(comparison, name)
