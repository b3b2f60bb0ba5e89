"""An answer without a number: infinite where it is recorded, the median of the training labels where errors are averaged."""

import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.lab.comparison.cells import validation_score
from numerate.lab.data import TASKS, Example, Examples
from numerate.lab.evaluation.error_sources import read_decisions
from numerate.lab.evaluation.evaluate import evaluate
from numerate.lab.evaluation.missing import middle_label, with_fallback
from numerate.lab.models.loading import load_model
from numerate.lab.training.config import RunConfig
from numerate.lab.training.run import run
from numerate.lab.training.validation import Validation


def examples(*answers):
    return Examples(answers, lambda answer: Example("q", answer))


def test_the_middle_label_is_written_as_it_is():
    task = TASKS["regression"]()
    assert middle_label(task, examples("3.50", "10", "2")) == "3.50"
    assert middle_label(task, examples("4", "1", "2", "3")) == "2"
    assert middle_label(task, examples("none")) is None
    assert middle_label(TASKS["clock"](), examples("12:30")) is None


NEAR = ["0.1", "0.10", f"0.1{'0' * 30}1", "1e400", "-1e400"]  # equal as floats, or no floats


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(NEAR)))
def test_the_middle_label_is_that_of_exact_numbers(labels):
    written = [f"{Decimal(label):f}" for label in labels]
    in_order = sorted(written, key=lambda text: (Fraction(text), text))
    assert middle_label(TASKS["regression"](), examples(*written)) == (in_order[(len(written) - 1) // 2] if written else None)


def test_only_infinite_measures_are_filled():
    record = {"fallback": {"absolute_error": 3.0, "exact": 0.0}}
    assert with_fallback(record, {"absolute_error": float("inf"), "exact": 1.0}) == {"absolute_error": 3.0, "exact": 1.0}
    assert with_fallback({}, {"absolute_error": None}) == {"absolute_error": None}


@pytest.fixture
def silent(monkeypatch):
    """Models that say nothing."""
    monkeypatch.setattr("numerate.lab.models.loading.LoadedModel.answers", lambda self, limits=None, **inputs: [""] * len(limits))


def test_records_and_means(silent):
    task = TASKS["regression"]()
    asked = {"interpolate": examples("7", "12")}
    records = evaluate(load_model("tiny"), task, asked, fallback="10", decide=("median",))
    assert [record["measures"]["absolute_error"] for record in records] == [float("inf")] * 2
    assert [record["fallback"]["absolute_error"] for record in records] == [3.0, 2.0]
    decided = read_decisions(records)
    assert decided.measures["greedy"]["absolute_error"].tolist() == [float("inf")] * 2  # in medians
    assert decided.for_mean("greedy", "absolute_error").tolist() == [3.0, 2.0]
    assert decided.measures["greedy"]["parsed"].tolist() == [0.0, 0.0]
    assert "fallback" not in evaluate(load_model("tiny"), task, asked)[0]


def test_trials_are_chosen_by_means_that_are_finite(silent, tmp_path):
    config = RunConfig(task="regression", steps=1, batch_size=2, train_examples=9, eval_examples=3, choose_by="absolute_error")
    result = run(config, tmp_path / "cells" / config.hash)
    golds = [json.loads(line) for line in (tmp_path / "cells" / config.hash / "predictions.jsonl").read_text().splitlines()]
    middle = float(result["label_median"])
    expected = [abs(float(record["gold"]) - middle) for record in golds]
    assert validation_score(tmp_path, config) == pytest.approx(-sum(expected) / len(expected))


def test_a_validation_scores_the_constant_only_for_answers_without_a_number(monkeypatch):
    task, scored = TASKS["regression"](), []
    score = type(task).score
    monkeypatch.setattr(type(task), "score", lambda self, row, output: scored.append(output) or score(self, row, output))
    monkeypatch.setattr("numerate.lab.training.validation.greedy_answers", lambda *_, **__: [["7", "none", "12"]])
    Validation(load_model("tiny"), task, [examples("7", "12", "9")], ["10"], 1, True, "absolute_error").after(1)
    assert sorted(scored) == ["10", "12", "7", "none"]


def test_the_best_weights_are_chosen_by_means_that_are_finite(silent):
    task = TASKS["regression"]()
    watched = Validation(load_model("tiny"), task, [examples("7", "12")], ["10"], 1, True, "absolute_error")
    assert watched.after(1)[0]["validation/parsed"] == 0.0
    assert watched.best == [-2.5]
