"""The lab: find out whether a numeric loss helps on your data, and predict with the model that does.

``compare`` trains a model with each loss and reports what helps, ``train`` trains one and keeps it, ``evaluate`` measures it
again, ``predict`` predicts rows. :class:`RunConfig` has the settings of a run, in four groups. The folders follow the data, each
importing only those before it:

    files        written whole or not at all; progress
    data         a task's name, or a file, becomes examples with splits
    models       names and settings become a model and encoded rows
    evaluation   a model and questions become answers, decisions and scores
    training     examples and an objective become one finished run
    stats        scores of runs become intervals and p-values
    wording      figures, decisions and evaluations become text
    baselines    what predicts the same rows without writing numbers
    report       records of runs become one page
    comparison   a plan becomes many runs, and a report
    prediction   a trained run and rows become predictions
    export       a file and soft labels become rows for other frameworks
    harness      tasks become those of lm-evaluation-harness, with the same scores

The library never imports the lab.
"""

from typing import TYPE_CHECKING

from numerate.checks import on_first_use, public_dir

if TYPE_CHECKING:
    from numerate.lab.comparison.compare import ComparisonResult, compare
    from numerate.lab.data.settings import DataSettings
    from numerate.lab.evaluation.settings import DecisionSettings
    from numerate.lab.models.settings import ModelSettings
    from numerate.lab.prediction.predict import Predicted, predict
    from numerate.lab.prediction.train import Trained, train
    from numerate.lab.training.config import RunConfig, TrainingSettings
    from numerate.lab.training.kept_runs import evaluate

__all__ = [
    "ComparisonResult",
    "DataSettings",
    "DecisionSettings",
    "ModelSettings",
    "Predicted",
    "RunConfig",
    "Trained",
    "TrainingSettings",
    "compare",
    "evaluate",
    "predict",
    "train",
]
__dir__ = public_dir(globals())
__getattr__ = on_first_use(
    globals(),
    {
        "comparison.compare": ("compare", "ComparisonResult"),
        "data.settings": ("DataSettings",),
        "evaluation.settings": ("DecisionSettings",),
        "models.settings": ("ModelSettings",),
        "prediction.predict": ("predict", "Predicted"),
        "prediction.train": ("train", "Trained"),
        "training.config": ("RunConfig", "TrainingSettings"),
        "training.kept_runs": ("evaluate",),
    },
)
