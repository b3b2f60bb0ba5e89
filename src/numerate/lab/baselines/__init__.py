"""What else could predict the number of a table, without a language model, on the same rows as the runs of a comparison.

tables      the median of the training rows, and gradient boosting on the columns
kept        both on the rows of a comparison, kept in its folder for the report
"""

from numerate.lab.baselines.kept import KeptBaselines, kept_baselines
from numerate.lab.baselines.tables import BaselineAnswers, BoostingSettings, boosting, choose_boosting, constant

__all__ = ["BaselineAnswers", "BoostingSettings", "KeptBaselines", "boosting", "choose_boosting", "constant", "kept_baselines"]
