"""What else could predict a number, instead of a language model that writes it: on the same rows as the runs of a comparison.

numbers     numbers of a task, their scale, and the errors of answers
tables      the median of the training rows, and gradient boosting on the columns
heads       outputs of a backbone: a scalar, or a histogram (HL-Gauss)
fit         train backbones with heads as one stack, and let them answer
run         tune a baseline, and measure it on the rows of every run
kept        the first two on the rows of a comparison, kept in its folder for the report
"""

from numerate.lab.baselines.fit import HeadRun, train_heads
from numerate.lab.baselines.heads import HEADS
from numerate.lab.baselines.kept import KeptBaselines, kept_baselines
from numerate.lab.baselines.numbers import BaselineAnswers, NotApplicable
from numerate.lab.baselines.run import BASELINES, baseline_rows, write_rows
from numerate.lab.baselines.tables import BoostingSettings, boosting, choose_boosting, constant

__all__ = [
    "BASELINES",
    "HEADS",
    "BaselineAnswers",
    "BoostingSettings",
    "HeadRun",
    "KeptBaselines",
    "NotApplicable",
    "baseline_rows",
    "boosting",
    "choose_boosting",
    "constant",
    "kept_baselines",
    "train_heads",
    "write_rows",
]
