"""Labels that are distributions: bells around numbers, times, ratings of several people; and the tokens to train on.

Names are imported on first use: some need torch, and the lab plans runs without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numerate.checks import public_dir

if TYPE_CHECKING:
    from numerate.targets.answer_distribution import AnswerDistribution, Target
    from numerate.targets.bell import Bell
    from numerate.targets.circular import CircularBell
    from numerate.targets.collator import SoftCollator
    from numerate.targets.drawn import DrawnDataset, DrawnTransform
    from numerate.targets.ratings import Ratings
    from numerate.targets.soft_numbers import SoftNumbers
    from numerate.targets.soft_targets import SoftTargets
    from numerate.targets.token_trie import SoftPath, TokenTrie
    from numerate.targets.width import estimate_width, suitable_width, width_of_residuals

__all__ = [
    "AnswerDistribution",
    "Bell",
    "CircularBell",
    "DrawnDataset",
    "DrawnTransform",
    "Ratings",
    "SoftCollator",
    "SoftNumbers",
    "SoftPath",
    "SoftTargets",
    "Target",
    "TokenTrie",
    "estimate_width",
    "suitable_width",
    "width_of_residuals",
]
__dir__ = public_dir(globals())

_HOMES = {
    "AnswerDistribution": "answer_distribution",
    "Bell": "bell",
    "CircularBell": "circular",
    "DrawnDataset": "drawn",
    "DrawnTransform": "drawn",
    "Ratings": "ratings",
    "SoftCollator": "collator",
    "SoftNumbers": "soft_numbers",
    "SoftPath": "token_trie",
    "SoftTargets": "soft_targets",
    "Target": "answer_distribution",
    "TokenTrie": "token_trie",
    "estimate_width": "width",
    "suitable_width": "width",
    "width_of_residuals": "width",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"numerate.targets has no {name!r}: expected one of {', '.join(__all__)}.")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
