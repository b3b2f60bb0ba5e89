"""Metrics give what a hand calculation gives, score any answer, and count those that are missing."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.answers.extract import EXTRACTORS, Region
from numerate.answers.metrics import METRICS

INF = math.inf
BOX = Region((Fraction(0), Fraction(0), Fraction(10), Fraction(10)), "A")
GOLD: dict[str, Any] = {
    "number": Fraction(-7, 2),
    "text": "Kenya",
    "time": "4_35",
    "box": [0, 0, 10, 10],
    "boxes": [BOX],
    "anything": 7,
}
NUMBERS = st.one_of(
    st.integers(), st.fractions(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([0, 10, 100])
)
WORD, SIDES = st.none() | st.text(max_size=2), st.integers(-20, 20)
ANYTHING = st.one_of(
    st.text(st.characters()),
    st.text(alphabet='0123456789.,-/:_[]{}"e%'),
    st.floats(),
    NUMBERS,
    st.booleans(),
    st.lists(WORD | SIDES | st.floats(), max_size=5),
    st.lists(st.builds(Region, st.lists(SIDES, max_size=9).map(tuple), WORD), max_size=3),
    st.lists(st.dictionaries(st.sampled_from(["box", "quad", "text"]), st.none() | st.lists(SIDES, max_size=8)), max_size=3),
    st.binary(max_size=3),
    st.sampled_from([None, Decimal("NaN"), Decimal("-1e99999999"), 10**10000, Fraction(1, 10**10000), "9" * 10000, "1/0", 1j]),
    st.just(np.arange(4)),
)


# gold, answer: exact, |x - y|, log10 error, relative error, smape, within 0, 1, 5, 10 %, magnitude, sign
@pytest.mark.parametrize(
    ("gold", "guess", "scores"),
    [
        (5, 5, [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (100, 101, [0, 1, math.log10(102 / 101), 0.01, 2 / 201, 0, 1, 1, 1, 1, 1]),
        (100, 105, [0, 5, math.log10(106 / 101), 0.05, 10 / 205, 0, 0, 1, 1, 1, 1]),
        (100, 95, [0, 5, math.log10(101 / 96), 0.05, 10 / 195, 0, 0, 1, 1, 0, 1]),
        (100, 110, [0, 10, math.log10(111 / 101), 0.1, 20 / 210, 0, 0, 0, 1, 1, 1]),
        (99, 999, [0, 900, 1, 900 / 99, 1800 / 1098, 0, 0, 0, 0, 0, 1]),
        (-9, 9, [0, 18, 2, 2, 2, 0, 0, 0, 0, 1, 0]),
        (-100, -99, [0, 1, math.log10(101 / 100), 0.01, 2 / 199, 0, 1, 1, 1, 0, 1]),
        (9, 0, [0, 9, 1, 1, 2, 0, 0, 0, 0, 0, 0]),
        (0, 9, [0, 9, 1, INF, 2, 0, 0, 0, 0, 0, 0]),
        (0, -0.0, [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (1, 1.05, [0, 0.05, math.log10(2.05 / 2), 0.05, 0.1 / 2.05, 0, 0, 1, 1, 1, 1]),
        ("1,200", "$1200.", [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        ("7/2", 3.5, [1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]),
        (0.01, 0.0099, [0, 0.0001, math.log10(1.01 / 1.0099), 0.01, 0.0002 / 0.0199, 0, 1, 1, 1, 0, 1]),
        (5, None, [0, INF, INF, INF, 2, 0, 0, 0, 0, 0, 0]),
        (5, -INF, [0, INF, INF, INF, 2, 0, 0, 0, 0, 0, 0]),
        (5, "five", [0, INF, INF, INF, 2, 0, 0, 0, 0, 0, 0]),
        (5, "5 or 6", [0, INF, INF, INF, 2, 0, 0, 0, 0, 0, 0]),
        (5, True, [0, INF, INF, INF, 2, 0, 0, 0, 0, 0, 0]),
    ],
)
def test_numbers(gold: Any, guess: Any, scores: list[float]) -> None:
    names = ["exact", "absolute_error", "log10_error", "relative_error", "smape", "within_0", "within_1", "within_5", "within_10"]
    values = [METRICS[name](gold, guess) for name in [*names, "magnitude", "sign"]]
    assert values == pytest.approx(scores, rel=1e-12, abs=1e-15)


def test_numbers_of_any_length() -> None:
    long = 10**9999 + 1
    scores = {
        "exact": [(long, long, 1), (long, long - 1, 0)],
        "absolute_error": [(long, long - 1, 1), (long, 1, INF)],
        "relative_error": [(long, long - 1, 0), (1, long, INF)],
        "smape": [(long, -long, 2)],
        "log10_error": [(long, 9, 9998), (-long, long, 19998)],
        "within_0": [(long, long - 1, 0)],
        "within_1": [(long, long - 1, 1)],
        "string_match": [(long, f"1{'0' * 9998}1", 1)],
    }
    for name, cases in scores.items():
        assert [METRICS[name](gold, guess) for gold, guess, _ in cases] == [score for _, _, score in cases], name


def test_magnitude_is_exact() -> None:
    same = METRICS["magnitude"]
    for power in (15, 16, 17, 300, 9999):
        assert same(10**power, 10**power - 1) == 0.0
        assert same(10**power, 10 ** (power + 1) - 1) == 1.0
        assert same(Fraction(1, 10**power), Fraction(1, 10**power + 1)) == 0.0
        assert same(Fraction(1, 10**power), Fraction(1, 10**power - 1)) == 1.0
    for many in (3**power for power in range(30, 300, 7)):
        assert same(10, Fraction(10 * many + 1, many)) == 1.0
        assert same(10, Fraction(10 * many - 1, many)) == 0.0
    assert same(-123, 999) == 1.0


GSM8K = [
    ("She makes 9 * 2 = $18.\n#### 18", "18", 1, 1),
    ("####18", "18", 0, 1),
    ("#### 18.00", "18", 0, 0),
    ("#### 18\n\nQuestion: 5 + 5?", "18", 1, 0),
    ("#### 1200", "1,200", 1, 1),
    ("That makes $1,200.", "1200", 0, 1),
    ("That makes 1.200", "1200", 0, 0),
    ("It is 5...", "5", 0, 0),
    ("#### - 5", "-5", 0, 0),
    ("10-5", "5", 0, 0),
    ("#### .5", "0.5", 0, 0),
    ("#### ,18", "18", 1, 1),
    ("I count 12 , yes", "12", 0, 1),
    ("(5)", "5", 0, 1),
    ("#### 1８", "18", 0, 0),
    ("$-5", "-5", 0, 1),
]


@pytest.mark.parametrize(("output", "gold", "strict", "flexible"), GSM8K)
def test_gsm8k_as_published(output: str, gold: str, strict: int, flexible: int) -> None:
    right = EXTRACTORS["gsm8k_strict"](f"Because.\n#### {gold}")
    assert METRICS["string_match"](right, EXTRACTORS["gsm8k_strict"](output)) == strict
    assert METRICS["string_match"](right, EXTRACTORS["gsm8k_flexible"](output)) == flexible


CLOCK = [
    ("4_35", "6_20", 0, 105, 105),
    ("12_00", "11_55", 0, 5, 5),
    ("12_55", "1_00", 0, 715, 5),
    ("1_00", "12_55", 0, 715, 5),
    ("2_55", "It is 2:55 p.m.", 1, 0, 0),
    ("2_55", "14:55", 1, 0, 0),
    ("2_55", "2_50", 0, 5, 5),
    ("3_00", "9_05", 0, 365, 355),
    ("3_00", "8_55", 0, 355, 355),
    ("12_00", "6_00", 0, 360, 360),
    ("12_00", "1_00", 0, 660, 60),
    ("12_05", "11_55", 0, 10, 10),
    ("12_00", "0:00", 1, 0, 0),
    ("12_00", "24:00", 0, 720, 360),
    ("5_10", "no idea", 0, 720, 360),
    ("5_10", "5:10:30", 0, 0.5, 0.5),
    ("5_10", "5:10 or 6:20", 0, 70, 70),
]


@pytest.mark.parametrize(("gold", "output", "accuracy", "plain", "circular"), CLOCK)
def test_clock(gold: str, output: str, accuracy: int, plain: float, circular: float) -> None:
    read = EXTRACTORS["clock"]
    for right in (gold, read(gold)):
        values = [METRICS[name](right, read(output)) for name in ("clock_accuracy", "time_gap", "time_gap_circular")]
        assert values == [accuracy, plain, circular]


@given(st.integers(0, 719), st.integers(0, 719))
def test_gaps_between_times(first: int, second: int) -> None:
    plain, circular = METRICS["time_gap"](first, second), METRICS["time_gap_circular"](first, second)
    assert circular == min(plain, 720 - plain)
    assert plain == METRICS["time_gap"](second, first)
    assert METRICS["time_gap_circular"](first + 720, second - 720) == circular


def test_texts() -> None:
    same = METRICS["string_match"]
    assert same("Kenya", " kenya\n") == 1.0
    assert same("Straße", "STRASSE") == 1.0
    assert same("18", "18.0") == 0.0
    assert same("7/2", Fraction(7, 2)) == 1.0
    assert same(18, "18") == 1.0
    assert same("18", None) == 0.0


def test_parsed() -> None:
    assert [METRICS["parsed"](5, guess) for guess in (7, "x", 0, "", [], None, math.nan)] == [1, 1, 1, 1, 1, 0, 0]


def test_boxes() -> None:
    assert METRICS["iou"]([0, 0, 10, 10], EXTRACTORS["box"]("[0, 0, 10, 5]")) == 0.5
    assert METRICS["iou"]("[0, 0, 10, 10]", np.array([0, 0, 10, 4])) == 0.4
    assert [METRICS["acc_50"]([0, 0, 10, 10], [0, 0, 10, height]) for height in (5, 4.999)] == [1.0, 0.0]
    assert METRICS["acc_50"]([0, 0, 10, 10], None) == METRICS["iou"]([0, 0, 10, 10], None) == 0.0


def test_regions() -> None:
    gold = '[{"box": [0, 0, 10, 10], "text": "A"}, {"box": [20, 0, 30, 10], "text": "B"}]'
    guess = EXTRACTORS["boxes"](
        '[{"box": [0, 0, 10, 9], "text": "a"}, {"box": [20, 0, 30, 9], "text": "C"}, {"box": [5, 5, 6, 6]}]'
    )
    names = ("precision", "recall", "hmean", "spotting_precision", "spotting_recall", "spotting_hmean")
    assert [METRICS[name](gold, guess) for name in names] == pytest.approx([2 / 3, 1, 0.8, 1 / 3, 0.5, 0.4])
    assert [METRICS[name](gold, None) for name in names] == [0] * 6
    assert [METRICS[name]("[]", []) for name in names] == [1] * 6
    assert [METRICS[name]("[]", None) for name in names] == [0] * 6


def test_the_registry() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.description
        assert (metric.summary == "median") == (metric.no_answer == INF)
        assert metric.higher_is_better == (metric.no_answer == 0)
        assert pickle.loads(pickle.dumps(metric))(GOLD[metric.kind], None) == metric.no_answer
        assert metric(GOLD[metric.kind], GOLD[metric.kind]) == (1.0 if metric.higher_is_better else 0.0)


@given(st.fractions(), st.fractions())
def test_errors_are_those_of_fractions(y: Fraction, x: Fraction) -> None:
    assert METRICS["absolute_error"](y, x) == float(abs(x - y))
    assert METRICS["relative_error"](y, x) == (float(abs(x - y) / abs(y)) if y else INF if x else 0.0)
    assert METRICS["smape"](y, x) == (float(2 * abs(x - y) / (abs(x) + abs(y))) if x or y else 0.0)
    assert METRICS["within_5"](y, x) == float(abs(x - y) <= abs(y) / 20)
    assert METRICS["sign"](y, x) == float(math.copysign(bool(x), x) == math.copysign(bool(y), y))


@settings(max_examples=50)
@given(guess=ANYTHING)
def test_any_answer_has_a_score(guess: Any) -> None:
    for name, metric in METRICS.items():
        score = metric(GOLD[metric.kind], guess)
        assert type(score) is float, name
        assert 0 <= score <= (1 if metric.higher_is_better else metric.no_answer), name


@settings(max_examples=50)
@given(gold=NUMBERS, guess=NUMBERS)
def test_any_gold_number_scores(gold: Any, guess: Any) -> None:
    for name, metric in METRICS.items():
        if metric.kind != "number":
            continue
        assert metric(gold, gold) == (1.0 if metric.higher_is_better else 0.0), name
        assert 0 <= metric(gold, guess) <= (1 if metric.higher_is_better else metric.no_answer), name
        if name != "relative_error" and not name.startswith("within"):
            assert metric(gold, guess) == metric(guess, gold), name


@pytest.mark.parametrize(
    ("name", "gold"),
    [
        ("exact", None),
        ("exact", "n/a"),
        ("exact", "1/0"),
        ("exact", math.nan),
        ("relative_error", INF),
        ("parsed", None),
        ("string_match", None),
        ("time_gap", "255"),
        ("iou", [1, 2, 3]),
        ("iou", "no box"),
        ("hmean", "no list"),
        ("hmean", [{"box": [1, 2, 3]}]),
        ("hmean", 7),
    ],
)
def test_a_gold_without_a_value_is_an_error(name: str, gold: Any) -> None:
    with pytest.raises(ValueError, match=f"gold=.* cannot be scored by '{name}': expected .* Fix or remove"):
        METRICS[name](gold, "5")


def test_summaries() -> None:
    assert METRICS["exact"].summarize([1.0, 0.0, 0.0, 1.0]) == 0.5
    assert METRICS["absolute_error"].summarize([1.0, 5.0, INF]) == 5.0
    assert METRICS["absolute_error"].summarize(np.array([1.0, INF, INF, INF])) == INF
    assert METRICS["absolute_error"].summarize([1.0, 2.0, 4.0, INF]) == 3.0
    assert METRICS["time_gap"].summarize([0.0, 720.0]) == 360.0
    with pytest.raises(ValueError, match="scores is empty: expected"):
        METRICS["exact"].summarize([])
