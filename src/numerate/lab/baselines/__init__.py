"""Baselines without a language model that predict the number of a table, on the same rows as the runs of a comparison.

tables      the median of the training rows, and gradient boosting on the columns
ngrams      ridge regression on the character n-grams of the questions
kept        all of them on the rows of a comparison, kept in its folder for the report
"""

from numerate.lab.baselines.kept import KeptBaselines, kept_baselines
from numerate.lab.baselines.ngrams import RidgeSettings, choose_ridge, ridge
from numerate.lab.baselines.tables import BaselineAnswers, BoostingSettings, boosting, choose_boosting, constant

__all__ = [
    "BaselineAnswers",
    "BoostingSettings",
    "KeptBaselines",
    "RidgeSettings",
    "boosting",
    "choose_boosting",
    "choose_ridge",
    "constant",
    "kept_baselines",
    "ridge",
]
