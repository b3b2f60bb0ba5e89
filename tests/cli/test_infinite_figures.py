"""Figures that are infinite: every table says in words why there is none."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from numerate.answers.metrics import METRICS
from numerate.cli.predict import _show_figures
from numerate.cli.train import _show
from numerate.lab.comparison.cells import cell_folder, read_headline
from numerate.lab.data import Regression
from numerate.lab.evaluation.missing import NO_NUMBER, WHY_INFINITE, ZERO_LABELS, figure_text
from numerate.lab.files.records import jsonable, write_json, write_jsonl
from numerate.lab.prediction.predict import Predicted, score
from numerate.lab.training.config import RunConfig
from numerate.lab.training.model_card import model_card

CASES = {NO_NUMBER: ("7", None), ZERO_LABELS: ("0", "3")}  # gold and answer


def records(words: str, *, decided: bool) -> list[dict[str, Any]]:
    """Return records of a run, every other one as good as possible."""
    return [_record(*(CASES[words] if index % 2 else ("7", "7")), index, decided=decided) for index in range(4)]


def _record(gold: str, answer: str | None, index: int, *, decided: bool) -> dict[str, Any]:
    measures = {name: METRICS[name](gold, answer) for name in Regression.measures} | {"sample_crps": float("inf")}
    record = {"split": "interpolate", "index": index, "prompt": "?", "gold": gold, "answer": answer, "output": answer or "no"}
    if decided:
        record |= {"decisions": {"median": {"answer": answer, "measures": measures}}, "level": 0.9, "truth": gold, "expected": {}}
        record |= {"distribution": {"values": ["3"], "probabilities": [1.0], "covered": 1.0}, "median": "3"}
        record |= {"interval": ["1", "4"], "covers": False, "crps": 3.0, "seconds": {"greedy": 0.1, "search": 0.1}}
    return jsonable(record | {"measures": measures})


def printed(show: Any, *arguments: Any) -> str:
    console = Console(file=(file := io.StringIO()), width=200)
    show(console, *arguments)
    return file.getvalue()


def check(text: str, words: str) -> None:
    assert not re.search(r"\binf\b|∞", text), text
    assert words in text
    assert WHY_INFINITE[words] in text
    assert not any(other in text for other in WHY_INFINITE if other != words)


@pytest.mark.parametrize("words", CASES)
@pytest.mark.parametrize("decided", [False, True])
def test_the_table_of_train_and_eval_and_the_model_card(words, decided, tmp_path):
    write_jsonl(tmp_path / "predictions.jsonl", records(words, decided=decided))
    check(printed(_show, tmp_path), words)
    check(model_card(RunConfig(task="regression").used, records(words, decided=decided), Regression()), words)


@pytest.mark.parametrize("words", CASES)
def test_the_line_of_a_finished_run(words, tmp_path):
    config = RunConfig(task="regression")
    folder = cell_folder(tmp_path, config)
    write_jsonl(folder / "predictions.jsonl", records(words, decided=False))
    write_json(folder / "result.json", {"headline": "relative_error"})
    assert read_headline(tmp_path, config)[:2] == ("relative_error", words)


def test_predictions_whose_known_answers_are_0():
    from decimal import Decimal
    from fractions import Fraction

    figures = score([Fraction(0), Fraction(0), Fraction(2)], [(Decimal(1), Decimal(0), Decimal(3))] * 3)
    shown = printed(_show_figures, Predicted(Path(), 3, 3, 0.0, {}, figures, (), ()), 0.9)
    assert "undefined: most known answers are 0" in shown
    assert "inf" not in shown
    huge = printed(_show_figures, Predicted(Path(), 3, 3, 0.0, {}, figures | {"mae": float("inf")}, (), ()), 0.9)
    assert "infinite" in huge


def test_every_measure_has_words():
    for name in (*METRICS, "sample_crps", "number_nll"):
        assert figure_text(name, float("inf"), ["7"]) in (NO_NUMBER, "infinite", "a sample without a number")
    assert json.dumps(figure_text("exact", 0.5, ["7"], ".3f")) == '"0.500"'
