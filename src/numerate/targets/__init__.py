"""Labels that are distributions: bells around numbers, times, ratings of several people; and the tokens to train on.

Names are imported on first use: some need torch, and the lab plans runs without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numerate.checks import on_first_use, public_dir

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
__getattr__ = on_first_use(
    globals(),
    {
        "answer_distribution": ("AnswerDistribution", "Target"),
        "bell": ("Bell",),
        "circular": ("CircularBell",),
        "collator": ("SoftCollator",),
        "drawn": ("DrawnDataset", "DrawnTransform"),
        "ratings": ("Ratings",),
        "soft_numbers": ("SoftNumbers",),
        "soft_targets": ("SoftTargets",),
        "token_trie": ("SoftPath", "TokenTrie"),
        "width": ("estimate_width", "suitable_width", "width_of_residuals"),
    },
)
