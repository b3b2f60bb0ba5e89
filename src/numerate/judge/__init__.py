"""A judge with error bars: a rubric, a scale and a model become distributions over scores.

:class:`Judge` asks a local or served model, and adds up every way to write each score in tokens. :meth:`Judge.calibrated` learns
from items that people have scored, and :func:`agreement` compares the two. :func:`deepeval_metric` and :class:`JudgeReward` use a
judge in DeepEval and in TRL.
"""

from numerate.checks import public_dir
from numerate.judge.judging import Judge, JudgeReward, deepeval_metric
from numerate.judge.scale import ScoreScale
from numerate.judge.scored import Agreement, Calibration, Estimate, Scores, agreement

__all__ = [
    "Agreement",
    "Calibration",
    "Estimate",
    "Judge",
    "JudgeReward",
    "ScoreScale",
    "Scores",
    "agreement",
    "deepeval_metric",
]
__dir__ = public_dir(globals())
