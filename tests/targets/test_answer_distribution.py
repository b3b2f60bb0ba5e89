"""Distributions over written answers: bells in the label's own writing, raters, pairs, mixtures."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.targets.small import written

from numerate import NumberDistribution
from numerate.targets import AnswerDistribution, Bell, Ratings
from numerate.targets.notation import Notation

UNIFORM = {"shape": "uniform"}


class TestAnswerDistribution:
    def test_is_merged_normalised_and_in_the_order_given(self):
        answers = AnswerDistribution(["b", "a", "c", "b"], [1, 4, 0, 3])
        assert written(answers) == {"b": 0.5, "a": 0.5}
        assert answers.texts == ("b", "a")
        assert not answers.probabilities.flags.writeable

    @pytest.mark.parametrize(
        "pairs", [[("12", 1), ("13", 3)], {"12": 1, "13": 3, "99": None}, '[["12", 1], ["13", 3]]', '{"12": 1, "13": 3}']
    )
    def test_pairs(self, pairs):
        assert written(AnswerDistribution.from_pairs(pairs)) == {"12": 0.25, "13": 0.75}

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: AnswerDistribution("12", [1]), "texts='12' is a str: expected a list"),
            (lambda: AnswerDistribution([12], [1]), "texts holds 12: expected written answers; for numbers, use of_numbers"),
            (lambda: AnswerDistribution(["a"], [1, 2]), r"probabilities has shape \(2,\) for 1 texts"),
            (lambda: AnswerDistribution(["a"], [float("nan")]), "probabilities contains nan"),
            (lambda: AnswerDistribution([], []), "at least one text"),
            (lambda: AnswerDistribution.from_pairs("x"), "pairs='x' is not JSON"),
            (lambda: AnswerDistribution.from_pairs(["12"]), "pairs holds '12': expected .text, probability."),
        ],
    )
    def test_what_is_refused(self, call, message: str):
        with pytest.raises((TypeError, ValueError), match=message):
            call()

    def test_draws_by_probability(self):
        rng = np.random.default_rng(0)
        answers = AnswerDistribution(["a", "b"], [1, 3])
        assert np.mean([answers.draw(rng) == "b" for _ in range(2000)]) == pytest.approx(0.75, abs=0.03)

    def test_values_with_more_decimals_than_the_label_are_rounded_and_merged(self):
        numbers = NumberDistribution(["1.24", "1.26", "1.31"], [1, 1, 2])
        assert written(AnswerDistribution.of_numbers(numbers, like="7.0")) == {"1.2": 0.25, "1.3": 0.75}


@pytest.mark.parametrize(
    ("like", "value", "text"),
    [
        ("84.50", "84.4", "84.40"),
        ("99,900", "100000", "100,000"),
        ("99,900", "999", "999"),
        ("3", "-2", "-2"),
        ("−3", "-2", "−2"),
        ("+3", "2", "2"),
        ("0.01", "-0.004", "0.00"),
        (".5", "-0.4", "-.4"),
        ("007", "12", "012"),
        ("5.", "7", "7."),
        ("1.5e3", "12300", "12.3e3"),
        ("1,234.5", "1234567.25", "1,234,567.2"),
    ],
)
def test_values_are_written_as_the_label_is(like: str, value: str, text: str):
    assert Notation.of(like).write(Decimal(value)) == text


@given(st.decimals(-(10**9), 10**9, places=2), st.booleans())
def test_a_written_value_has_its_value(value: Decimal, commas: bool):
    text = Notation.of("1,000.00" if commas else "1.00").write(value)
    assert Notation.of(text).value == value
    assert text == (f"{value + 0:,.2f}" if commas else f"{value + 0:.2f}")


@pytest.mark.parametrize("label", ["", "x", "1.2.3", "1,23", "12 ", "--5", "1e", "٣", None, 5, "."])
def test_a_label_that_is_no_number(label):
    with pytest.raises(ValueError, match="is not a plain number: expected a text such as '84.50'"):
        Bell(width=1)(label)


class TestBell:
    def test_probabilities_are_those_of_the_number_distribution(self):
        answers = Bell(relative="0.05", lowest=0, shape="laplace")("99,900")
        numbers = NumberDistribution.bell(99_900, relative="0.05", lowest=0, shape="laplace")
        assert {Decimal(text.replace(",", "")): p for text, p in written(answers).items()} == dict(
            zip(numbers.values, numbers.probabilities.tolist(), strict=True)
        )
        assert "99,900" in answers.texts
        assert any(text.startswith("100,") for text in answers.texts)

    @given(
        st.sampled_from(["84.50", "-7", "+5", "007", "1,250", "1e5", "-0", ".5", "12."]), st.sampled_from(["width", "relative"])
    )
    def test_width_0_is_the_label_alone_as_it_is_written(self, label: str, name: str):
        answers = Bell(**{name: 0})(label)
        assert (answers.texts, answers.probabilities.tolist()) == ((label,), [1.0])

    def test_hard_is_the_share_of_the_label(self):
        soft, mixed = Bell(width=1, **UNIFORM)("5"), Bell(width=1, hard=0.4, **UNIFORM)("5")
        assert written(soft) == pytest.approx({"4": 1 / 3, "5": 1 / 3, "6": 1 / 3})
        assert written(mixed) == pytest.approx({"4": 0.2, "5": 0.6, "6": 0.2})
        assert Bell(width=1, hard=1)("+5").texts == ("+5",)

    @pytest.mark.parametrize(
        ("settings", "label", "texts"),
        [
            ({"width": 2}, "-1", "-3 -2 -1 0 1"),
            ({"width": 2, "lowest": 0}, "1", "0 1 2 3"),
            ({"width": 100}, "1.5e3", "1.4e3 1.5e3 1.6e3"),
            ({"width": 10, "step": 5}, "12", "2 7 12 17 22"),
            ({"width": 10, "step": 5, "lowest": 3, "highest": 20}, "12", "7 12 17"),
            ({"relative": "0.1", "step": "0.25"}, "-5.00", "-5.50 -5.25 -5.00 -4.75 -4.50"),
            ({"width": 200, "step": 200}, "1.5e3", "1.3e3 1.5e3 1.7e3"),
            ({"width": 4, "step": 5}, "12", "12"),  # no neighbour is near enough
        ],
    )
    def test_texts(self, settings, label: str, texts: str):
        assert [*Bell(**settings, **UNIFORM)(label).texts] == texts.split()

    def test_steps_that_cannot_be_written(self):
        with pytest.raises(ValueError, match="step=0.5 is no multiple of 1, the last decimal of label='12'"):
            Bell(width=1, step=0.5)("12")
        with pytest.raises(ValueError, match="leave no value of the bell around label='12'"):
            Bell(width=1, step=1, lowest=50)("12")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({}, "width=None and relative=None: expected exactly one"),
            ({"width": 1, "relative": 1}, "expected exactly one"),
            ({"width": -1}, "width=-1 is out of range"),
            ({"relative": "x"}, "relative='x' is not a finite number"),
            ({"width": 1, "shape": "gausian"}, "Did you mean 'gaussian'"),
            ({"width": 1, "hard": 1.5}, "hard=1.5 is out of range"),
            *(({"width": 1, "step": step}, "step=") for step in (0, -1, math.inf, math.nan, "five", True)),
        ],
    )
    def test_settings_are_checked(self, settings, message: str):
        with pytest.raises((ValueError, TypeError), match=message):
            Bell(**settings)


class TestRatings:
    @pytest.mark.parametrize("label", [[1, 2, 2, None], "[1, 2, 2]", (1, 2.0, 2), np.array([1, 2, 2, np.nan]), ["1", "2", "2"]])
    def test_are_the_shares_of_the_raters(self, label):
        assert written(Ratings()(label)) == pytest.approx({"1": 1 / 3, "2": 2 / 3})

    def test_decimals(self):
        assert Ratings()([1, 2.5]).texts == ("1.0", "2.5")
        assert Ratings()("[1, 2.50]").texts == ("1.00", "2.50")
        assert Ratings(decimals=0)([1, 2.6]).texts == ("1", "3")
        assert Ratings(decimals=2)([-1]).texts == ("-1.00",)

    def test_bins(self):
        assert written(Ratings(step=0.5)([1.2, 1.4, 1.6, 3])) == {"1.0": 0.25, "1.5": 0.5, "3.0": 0.25}
        assert written(Ratings(step=10)([12, 18, 21])) == pytest.approx({"10": 1 / 3, "20": 2 / 3})

    @pytest.mark.parametrize(
        ("settings", "label", "message"),
        [
            ({}, "1, 2", "label='1, 2' is not a list: expected the ratings as a text such as"),
            ({}, "5", "is not a list"),
            ({}, [None], "holds no rating"),
            ({}, ["good"], "label='good' is not a finite number"),
            ({"step": 0}, [1], "step=0 is out of range"),
            ({"decimals": -1}, [1], "decimals=-1 is out of range"),
        ],
    )
    def test_what_is_refused(self, settings, label, message: str):
        with pytest.raises(ValueError, match=message):
            Ratings(**settings)(label)
