"""What the YAML files of this folder call: the questions of a task, the scores of an answer, and their summaries.

The scores are those of ``numerate eval``, computed by the same functions. A ``.._samples`` task draws several samples per
question; their median is the answer, and their distribution has a CRPS and a 90 % interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.answers.metrics import METRICS
from numerate.answers.overall import spearman as rank_correlation
from numerate.checks import check_choice
from numerate.lab.data import Example, Split, Task
from numerate.lab.data.settings import DataSettings, make_task
from numerate.lab.data.splits import held_out, training_examples
from numerate.lab.evaluation.decisions import decision_record, sampled_distribution
from numerate.lab.evaluation.evaluate import sample_measures, shown
from numerate.lab.evaluation.missing import FALLBACK, finite_mean, middle_label, with_fallback, with_middle
from numerate.lab.report.records import numbers_in

if TYPE_CHECKING:
    from datasets import DatasetDict

LEVEL = 0.9
"""Of the interval whose coverage is measured."""

_FEW_SHOT = 100  # training examples for few-shot prompts
_SETTINGS = ("task_settings", "data", "skip_bad", "train_examples", "eval_examples")

mean = METRICS["smape"].summarize
median = METRICS["absolute_error"].summarize


def documents(task: str, settings: Mapping[str, Any], split: Split = "interpolate", **metadata: Any) -> DatasetDict:
    """Return the questions of a task: ``test`` has those of ``numerate eval``, ``train`` some for few-shot prompts.

    ``task`` is a key of ``TASKS``; of the harness's metadata, ``task_settings`` (on top of ``settings``), ``data``, ``skip_bad``,
    ``train_examples`` and ``eval_examples`` have an effect, as in the settings of a run.
    """
    from datasets import Dataset, DatasetDict

    named = {name: metadata[name] for name in _SETTINGS if metadata.get(name) is not None}
    named |= {"task": task, "task_settings": {**settings, **named.get("task_settings", {})}}
    data = DataSettings(**named)
    made = make_task(data)
    check_choice("split", split, [one for one in made.splits if one != "train"])
    train = training_examples(made, data.train_examples, data.seed)
    key, fallback = data.model_dump_json(), middle_label(made, train)

    def rows(examples: Sequence[Example]) -> Dataset:
        return Dataset.from_list(
            [{"prompt": one.prompt, "answer": one.answer, "settings": key, "fallback": fallback} for one in examples]
        )

    return DatasetDict(train=rows(train[:_FEW_SHOT]), test=rows(held_out(made, (split,), data.eval_examples)[split]))


def scores(document: Mapping[str, Any], results: Sequence[str | list[str]]) -> dict[str, Any]:
    """Return the metrics of the answer to a question, which is a text, or a list of samples.

    ``mean_..`` are errors for their mean, in which an answer without a number counts as the median of the training labels;
    ``spearman`` is the pair of gold answer and answer.
    """
    task, (answer,) = _task(document["settings"]), results
    example = Example(document["prompt"], document["answer"])
    if isinstance(answer, str):
        told, measures, more = shown(task.read(answer)), task.score(example, answer), {}
    else:
        record = decision_record(task, example, "", sampled_distribution(task, answer), ("median",), LEVEL)
        told, measures = record["decisions"]["median"]["answer"], record["decisions"]["median"]["measures"]
        more = sample_measures(task, example, answer) | {"crps": record["crps"], "coverage": record["covers"]}
    fallback = document["fallback"]
    missing = {FALLBACK: task.score(example, fallback)} if told is None and fallback is not None else {}
    filled = with_fallback(missing, measures)
    means = {f"mean_{name}": filled[name] for name in measures if name in METRICS and METRICS[name].summary == "median"}
    pair = {"spearman": [example.answer, told]} if means else {}
    return {**measures, **means, **pair, **more}


@lru_cache(32)
def _task(settings: str) -> Task:
    return make_task(DataSettings.model_validate_json(settings))


def mean_of_known(values: Sequence[float | None]) -> float:
    """Return the mean of the values that are there and finite; NaN if there are none."""
    found = finite_mean(np.array([math.inf if value is None else value for value in values]))
    return math.nan if found is None else found


def spearman(pairs: Sequence[tuple[str, str | None]]) -> float:
    """Return Spearman's rank correlation; NaN where all gold numbers or all answers are equal."""
    golds, answers = (numbers_in(texts) for texts in zip(*pairs, strict=True))
    found = rank_correlation(golds, with_middle(golds, answers))
    return math.nan if found is None else found
