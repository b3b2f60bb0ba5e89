"""Labels that are distributions: bells around numbers, times, ratings of several people; and the tokens to train on."""

from numerate.targets.answer_distribution import AnswerDistribution, Target
from numerate.targets.bell import Bell
from numerate.targets.ratings import Ratings
from numerate.targets.token_trie import SoftPath, TokenTrie

__all__ = ["AnswerDistribution", "Bell", "Ratings", "SoftPath", "Target", "TokenTrie"]
