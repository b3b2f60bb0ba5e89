"""Derailed answers: more digits than any training label; in records, runs, tables and the report."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.answers.metrics import digit_counts
from numerate.lab.data import TASKS, Arithmetic, Clock, Example, Examples, Regression
from numerate.lab.evaluation.derailing import label_digits, mark_derailed
from numerate.lab.files.records import RESULT, read_jsonl
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.kept_runs import evaluate
from numerate.lab.training.run import run


def labelled(*answers: str) -> Examples:
    return Examples(answers, lambda answer: Example("?", answer))


@given(whole=st.integers(0, 10**30), decimals=st.integers(0, 12), part=st.integers(0, 10**12))
def test_digits_are_those_that_are_written(whole: int, decimals: int, part: int) -> None:
    after = f"{part:012}"[:decimals].rstrip("0")
    assert digit_counts(Fraction(f"-{whole}.{after or '0'}")) == (len(str(whole)), len(str(whole)) + len(after))


def test_digits_of_fractions_and_of_more_than_python_prints() -> None:
    assert digit_counts(Fraction("-100/7")) == (2, 4)
    assert digit_counts(Fraction(10) ** 9999) == (10000, 10000)
    assert digit_counts(1 + Fraction(1, 10**5000)) == (1, 5001)


def test_the_most_digits_of_any_label() -> None:
    assert label_digits(Regression(), labelled("7", "-1234", "5.125", "12.5")) == {"integer": 4, "total": 4}
    assert label_digits(Regression(), labelled("0.00125")) == {"integer": 1, "total": 6}
    assert label_digits(Regression(), labelled("no number")) is None
    assert label_digits(Clock(), labelled("2_55")) is None  # times
    assert {name for name, task in TASKS.items() if task.visual and label_digits(task(), labelled("7")) is not None} == set()


@pytest.mark.parametrize(
    ("text", "derailed"),
    [
        ("1234", 0.0),
        ("12345", 1.0),
        ("1234.5", 1.0),  # five digits in all
        ("12.34", 0.0),
        ("12.345", 1.0),
        ("0001234", 0.0),  # leading zeros are no digits of the number
        ("I think 7 and 123456789", 1.0),
        ("no idea", 0.0),
        ("", 0.0),
    ],
)
def test_derailed(text: str, derailed: float) -> None:
    """Labels of at most four digits, of the greedy answer, a decision and samples."""
    record: dict[str, Any] = {"gold": "12", "output": text, "measures": {"exact": 0.0}, "samples": [text, "1", "2", "123456"]}
    record["decisions"] = {"median": {"answer": text, "measures": {}}, "mode": {"answer": None, "measures": {}}}
    mark_derailed(record, Regression(), {"integer": 4, "total": 4})
    assert record["measures"] == {"exact": 0.0, "derailed": derailed, "sample_derailed": (derailed + 1) / 4}
    computed = derailed if "." not in text else 0.0  # decimals of a decided number are not the model's
    assert record["decisions"]["median"]["measures"] == {"derailed": computed}
    assert record["decisions"]["mode"]["measures"] == {"derailed": 0.0}


def test_a_longer_gold_answer_allows_as_many_digits() -> None:
    for text, expected in (("123456", 0.0), ("1234567", 1.0), ("12345.6", 0.0), ("12345.67", 1.0)):
        record: dict[str, Any] = {"gold": "654321", "output": text, "measures": {}}
        mark_derailed(record, Regression(), {"integer": 4, "total": 4})
        assert record["measures"] == {"derailed": expected}, text


QUICK = {"steps": 1, "batch_size": 4, "train_examples": 32, "eval_examples": 4, "log_every": 1, "keep_model": True}
QUICK |= {"task_settings": {"difficulty": 1, "operations": "+-", "wording": "bare"}}


def test_a_run_records_the_digits_of_its_labels(tmp_path: Path) -> None:
    config = checked(RunConfig, QUICK)
    result = run(config, tmp_path / "run")
    task = Arithmetic(**QUICK["task_settings"])  # type: ignore[arg-type]
    assert result["label_digits"] == label_digits(task, task.examples("train", 32, seed=0))
    records = read_jsonl(tmp_path / "run" / "predictions.jsonl")
    assert all(record["measures"]["derailed"] in (0.0, 1.0) for record in records)
    again = evaluate(tmp_path / "run", {"samples": 3}, tmp_path / "more")
    assert all({"derailed", "sample_derailed"} <= record["measures"].keys() for record in again)

    # A run of an earlier release has no record of its labels, and no such measure.
    saved = json.loads((tmp_path / "run" / RESULT).read_text())
    del saved["label_digits"]
    (tmp_path / "run" / RESULT).write_text(json.dumps(saved))
    older = evaluate(tmp_path / "run", {"eval_examples": 2}, tmp_path / "older")
    assert not any("derailed" in record["measures"] for record in older)
