"""Predict a number from text without a language model: ridge regression on character n-grams."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from numerate.distribution.exact import Floats
from numerate.lab.baselines.tables import BaselineAnswers, cells_of, free_text_columns, mean_absolute_error, sklearn
from numerate.lab.data import Example, Task
from numerate.lab.data.numbers import NotApplicable, Scale, gold_numbers

_MOST_NGRAMS = 50_000
_ALPHAS: dict[Literal["l2"] | None, tuple[float, ...]] = {None: (30.0, 3.0, 10.0, 100.0, 300.0), "l2": (1.0, 0.1, 0.3, 3.0)}
_LONGEST = (4, 2, 6)  # characters of an n-gram; the first is used while the other settings are chosen


@dataclass(frozen=True)
class RidgeSettings:
    """Settings of ridge regression that are chosen on validation rows."""

    longest: int = _LONGEST[0]  # the most characters of an n-gram
    alpha: float = 1.0  # the penalty of the weights
    norm: Literal["l2"] | None = "l2"  # of the features of a text; None: a longer text has larger features, as molecules need
    log: bool = False  # predict the logarithm of the target


def shows_text(examples: Sequence[Example]) -> bool:
    """Return whether questions show free text: a column of it, or prompts without columns."""
    rows = cells_of(examples)
    return not any(rows) or bool(free_text_columns(rows))


def ridge(task: Task, training: Sequence[Example], test: Sequence[Example], settings: RidgeSettings) -> BaselineAnswers:
    """Predict the target by scikit-learn's ridge regression on TF-IDF of the character n-grams of a question.

    A question is the text that the language model is asked, with all columns that are shown.

    Raises NotApplicable if the questions are rows of a table without free text.
    """
    begin = time.perf_counter()
    texts, linear = (sklearn("ridge", module) for module in ("feature_extraction.text", "linear_model"))
    if not shows_text(training):
        raise NotApplicable("ridge does not apply: no column of the table is free text. Expected sentences, SMILES or the like.")
    ngrams = texts.TfidfVectorizer(
        analyzer="char",
        ngram_range=(1, settings.longest),
        lowercase=False,
        sublinear_tf=True,
        norm=settings.norm,
        max_features=_MOST_NGRAMS,
    )
    features = ngrams.fit_transform([example.prompt for example in training])
    numbers = gold_numbers(task, training)
    scale = Scale.of(numbers, log=settings.log)
    model = linear.Ridge(alpha=settings.alpha).fit(features, scale.standardised(numbers))
    answers: Floats = scale.restored(model.predict(ngrams.transform([example.prompt for example in test])))
    chosen = {"ngrams": settings.longest, "alpha": settings.alpha, "norm": settings.norm, "scale": scale.name}
    return BaselineAnswers(answers, chosen, time.perf_counter() - begin)


def choose_ridge(task: Task, training: Sequence[Example], validation: Sequence[Example]) -> RidgeSettings:
    """Return the settings with the least mean absolute error: norm, alpha and scale of the target, then the length of n-grams.

    The logarithmic scale is tried if all numbers of the training rows are positive.
    """
    golds = gold_numbers(task, validation)
    logs = (False, True) if (gold_numbers(task, training) > 0).all() else (False,)

    def error(settings: RidgeSettings) -> float:
        return mean_absolute_error(golds, ridge(task, training, validation, settings).answers)

    tried = [RidgeSettings(alpha=alpha, norm=norm, log=log) for norm, log in product(_ALPHAS, logs) for alpha in _ALPHAS[norm]]
    first = min(tried, key=error)
    return min((replace(first, longest=longest) for longest in _LONGEST), key=error)
