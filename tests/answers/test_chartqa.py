"""Relaxed accuracy: one rule of our own, and three published ones to the letter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import is_linear

from numerate.answers.chartqa import relaxed_accuracy
from numerate.answers.metrics import METRICS

RULES = ("numerate", "chartqa", "qwen_vl", "lm_eval")
TEXT = st.one_of(st.text(st.characters()), st.text(alphabet="0123456789.,-+/eE%$ '\"_infa\x00\ud800"))

# Gold, answer: right by numerate, chartqa, qwen_vl, lm_eval. Worked by hand from the published code.
CASES = [
    ("100", "100", 1, 1, 1, 1),
    ("100", "105", 1, 1, 1, 1),  # qwen_vl: 5 / 105
    ("100", "105.1", 0, 0, 1, 0),  # 5.1 / 105.1
    ("100", "95", 1, 1, 0, 1),  # 5 / 95
    ("100", "94.9", 0, 0, 0, 0),
    ("1", "1.05", 1, 0, 1, 0),  # 1.05 - 1 is 0.05000000000000004 in floating point
    ("0", "0", 1, 1, 1, 1),
    ("0", "0.0", 1, 0, 0, 1),  # the texts differ
    ("0", "0.01", 0, 0, 0, 0),
    ("0", "0.000000000001", 0, 0, 0, 1),  # 1e-12 / 1e-10
    ("62%", "62", 1, 0, 0, 1),
    ("0.62", "62%", 1, 1, 1, 1),
    ("62%", "66%", 0, 0, 0, 0),  # 4 / 62, 4 / 66
    ("50 %", "0.5", 1, 1, 1, 1),
    ("50%%", "0.5", 0, 1, 1, 1),
    ("1200", "$1,200.", 1, 0, 0, 1),
    ("1200", "1200.", 1, 1, 1, 1),
    ("1e3", "1000", 1, 1, 1, 1),
    ("1_000", "1000", 1, 1, 1, 1),
    ("3/4", "0.75", 1, 0, 0, 0),
    ("-5", "-5.2", 1, 1, 1, 1),
    ("2019", "1990", 1, 1, 1, 1),
    ("Kenya", "kenya", 1, 1, 1, 1),
    ("Kenya", " Kenya ", 1, 0, 1, 0),
    ("Kenya", "Kenya.", 0, 0, 0, 0),
    ("Kenya", '"Kenya"', 0, 0, 0, 1),
    ("Kenya", "'Kenya\"", 0, 0, 0, 0),
    ("Yes", "No", 0, 0, 0, 0),
    ("A", "A) Africa", 0, 0, 0, 1),
    ("5", "Kenya", 0, 0, 0, 0),
    ("5", "", 0, 0, 0, 0),
    ("[12,63,23]", "[12, 63, 23]", 0, 0, 0, 0),
    ("65+", "65", 0, 0, 0, 1),
    ("nan", "nan", 1, 0, 0, 0),  # nan <= 0.05 is false
    ("inf", "inf", 1, 0, 0, 0),  # inf - inf is nan
]


@pytest.mark.parametrize(("gold", "answer", *RULES), CASES)
def test_worked_cases(gold: str, answer: str, numerate: int, chartqa: int, qwen_vl: int, lm_eval: int) -> None:
    scores = [relaxed_accuracy(gold, answer, rule) for rule in RULES]  # type: ignore[arg-type]
    assert scores == [numerate, chartqa, qwen_vl, lm_eval]
    names = ["relaxed_accuracy", *(f"relaxed_accuracy_{rule}" for rule in RULES[1:])]
    assert [METRICS[name](gold, answer) for name in names] == scores


def test_the_default_rule() -> None:
    assert relaxed_accuracy("1", "1.05") == relaxed_accuracy("1", "1.05", rule="numerate") == 1.0
    assert relaxed_accuracy("1", "1.0500000000000001") == 0.0
    assert relaxed_accuracy("Not  too\nmuch", "not too much") == 1.0
    assert relaxed_accuracy("9" * 9000, f"{'9' * 8999}8") == 1.0
    assert relaxed_accuracy("9" * 9000, "9" * 8999) == 0.0


def test_the_rule_is_checked() -> None:
    with pytest.raises(ValueError, match="rule='qwen' is not known: expected one of 'numerate', 'chartqa', 'qwen_vl', 'lm_eval'"):
        relaxed_accuracy("1", "1", rule="qwen")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", RULES)
@given(gold=TEXT, answer=TEXT)
def test_any_text_scores(rule: str, gold: str, answer: str) -> None:
    assert relaxed_accuracy(gold, answer, rule) in (0.0, 1.0)  # type: ignore[arg-type]


@given(TEXT)
def test_a_text_is_right_of_itself(text: str) -> None:
    assert relaxed_accuracy(text, text) == 1.0


@pytest.mark.parametrize("piece", [" ", ".", "%", "1.", "9", "'", "$"])
def test_time_grows_with_the_text_alone(piece: str) -> None:
    def score(size: int) -> None:
        for rule in RULES:
            relaxed_accuracy(f"1{piece * size}", f"{piece * size}x", rule)  # type: ignore[arg-type]

    assert is_linear(score, 12_000)
