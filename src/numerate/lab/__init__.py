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
    baselines    what predicts the same rows without writing numbers
    report       records of runs become one page
    comparison   a plan becomes many runs, and a report
    prediction   a trained run and rows become predictions

The library never imports the lab.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numerate.checks import public_dir

if TYPE_CHECKING:
    from numerate.lab.comparison.compare import ComparisonResult, compare
    from numerate.lab.data.settings import DataSettings
    from numerate.lab.evaluation.settings import DecisionSettings
    from numerate.lab.models.settings import ModelSettings
    from numerate.lab.prediction.predict import Predicted, predict
    from numerate.lab.prediction.train import Trained, train
    from numerate.lab.training.config import RunConfig, TrainingSettings
    from numerate.lab.training.kept_runs import evaluate

_ROOMS = {
    "compare": "comparison.compare",
    "ComparisonResult": "comparison.compare",
    "evaluate": "training.kept_runs",
    "predict": "prediction.predict",
    "Predicted": "prediction.predict",
    "train": "prediction.train",
    "Trained": "prediction.train",
    "RunConfig": "training.config",
    "ModelSettings": "models.settings",
    "DataSettings": "data.settings",
    "TrainingSettings": "training.config",
    "DecisionSettings": "evaluation.settings",
}

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


def __getattr__(name: str) -> Any:  # on first use, so that `numerate --help` does not import torch
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"numerate.lab.{_ROOMS[name]}"), name)
