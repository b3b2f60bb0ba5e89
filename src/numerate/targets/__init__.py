"""Labels that are distributions: bells around numbers, times, ratings of several people; and the tokens to train on."""

from numerate.checks import public_dir
from numerate.targets.answer_distribution import AnswerDistribution, Target
from numerate.targets.bell import Bell
from numerate.targets.circular import CircularBell
from numerate.targets.collator import SoftCollator
from numerate.targets.drawn import DrawnDataset, DrawnTransform
from numerate.targets.ratings import Ratings
from numerate.targets.soft_numbers import SoftNumbers
from numerate.targets.soft_targets import SoftTargets
from numerate.targets.token_trie import SoftPath, TokenTrie
from numerate.targets.width import estimate_width, width_of_residuals

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
    "width_of_residuals",
]
__dir__ = public_dir(globals())
