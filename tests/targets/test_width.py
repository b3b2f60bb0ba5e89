"""Widths from data whose noise is known."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.targets import Bell, estimate_width, suitable_width, width_of_residuals


class TestNeighbours:
    def test_rows_that_nearly_agree(self):
        rng = np.random.default_rng(0)
        features = rng.uniform(0, 1, (4000, 1)) * 100
        labels = features[:, 0] + rng.normal(0, 5, 4000)
        assert estimate_width(features, labels) == pytest.approx(5, rel=0.05)
        constant = np.concatenate([features, np.ones((4000, 1))], axis=1)
        assert estimate_width(constant, labels) == pytest.approx(5, rel=0.05)

    def test_exact_labels_have_no_noise(self):
        features = np.arange(200).reshape(100, 2) // 4
        assert estimate_width(features, features.sum(1)) == 0

    def test_relative(self):
        rng = np.random.default_rng(0)
        groups = rng.integers(0, 100, 4000)
        labels = 10.0 ** (groups % 5) * np.exp(rng.normal(0, 0.05, 4000))
        assert estimate_width(groups, labels, relative=True) == pytest.approx(0.05, rel=0.06)
        assert estimate_width([*groups, 0], [*labels, 0.0], relative=True) == pytest.approx(0.05, rel=0.06)

    def test_at_most(self):
        rng = np.random.default_rng(0)
        groups, labels = rng.integers(0, 10, 5000), rng.normal(0, 5, 5000)
        assert estimate_width(groups, labels, at_most=500) == pytest.approx(5, rel=0.15)
        assert estimate_width(groups, labels, at_most=500) == estimate_width(groups, labels, at_most=500)

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 50)), min_size=4, max_size=20))
    def test_is_the_pooled_standard_deviation(self, rows: list[tuple[int, int]]):
        features, labels = [str(f) for f, _ in rows], [y for _, y in rows]
        groups = [[y for f, y in rows if f == g] for g in {f for f, _ in rows}]
        twins = [group for group in groups if len(group) > 1]
        if not twins:
            return
        pooled = sum(np.var(group, ddof=1) * (len(group) - 1) for group in twins) / sum(len(group) - 1 for group in twins)
        assert estimate_width(features, labels) == pytest.approx(np.sqrt(pooled))

    @pytest.mark.parametrize(
        ("features", "labels", "message"),
        [
            (["a", "b"], [1, 2], "no two agree: expected equal rows; pass numbers"),
            ([[1], [2]], [1], "features has 2 rows and labels 1"),
            ([[1]], [1], "labels holds 1 rows to compare"),
            ([[1], [2]], [1, float("nan")], "or holds NaN"),
            ([[1]], [[1]], r"labels has shape \(1, 1\)"),
            ([[1]], ["x"], "holds no plain numbers"),
        ],
    )
    def test_what_is_refused(self, features, labels, message: str):
        with pytest.raises((TypeError, ValueError), match=message):
            estimate_width(features, labels)


class TestResiduals:
    @pytest.mark.parametrize(("shape", "width"), [("gaussian", np.sqrt(12.5)), ("laplace", 3.5), ("uniform", 4)])
    def test_by_shape(self, shape, width: float):
        assert width_of_residuals([7, 16], [10, 20], shape=shape) == pytest.approx(width)
        assert width_of_residuals([0.7, 1.6], [1, 2], shape=shape, relative=True) == pytest.approx(
            {"gaussian": np.sqrt((0.09 + 0.04) / 2), "laplace": 0.25, "uniform": 0.3}[shape]
        )

    def test_truths_of_0_and_what_is_refused(self):
        assert width_of_residuals([1, 9], [0, 10], relative=True) == pytest.approx(0.1)
        with pytest.raises(ValueError, match="truths holds only 0"):
            width_of_residuals([1], [0], relative=True)
        with pytest.raises(ValueError, match="predictions has 1 numbers and truths 2"):
            width_of_residuals([1], [1, 2])
        with pytest.raises(ValueError, match="shape='flat' is not known"):
            width_of_residuals([1], [1], shape="flat")


DECIMALS = st.integers(0, 4).flatmap(
    lambda places: st.lists(
        st.integers(-(10**7), 10**7).map(lambda k: f"{Decimal(k).scaleb(-places):f}"), min_size=1, max_size=12
    )
)
LABELS = st.one_of(
    DECIMALS, DECIMALS.map(lambda labels: [label.lstrip("-") for label in labels]), DECIMALS.map(lambda x: x[:1] * 9)
)


class TestSuitableWidth:
    @given(LABELS)
    @settings(max_examples=40, deadline=None)
    def test_every_label_has_a_distribution(self, labels):
        """Of numbers with a sign that the labels have."""
        found = suitable_width(np.array([float(label) for label in labels]))
        assert (found.get("width") or found["relative"]) > 0
        target = Bell(**found, at_most=21)
        drawn = [Decimal(text) for label in labels for text in target(label).texts]
        for sign in (1, -1):
            assert any(sign * Decimal(label) < 0 for label in labels) or all(sign * number >= 0 for number in drawn)

    @given(st.lists(st.integers(-100, 100), min_size=5, max_size=40), st.integers(1, 6))
    def test_units_do_not_matter(self, numbers, exponent):
        """In thousandths, the width of signed numbers is a thousand times as large."""
        labels = np.array([-100.0, *numbers, 100.0])
        found, large = suitable_width(labels), suitable_width(labels * 10.0**exponent)
        assert found.keys() == large.keys()
        assert large.get("width", 0) == pytest.approx(found.get("width", 0) * 10.0**exponent)

    def test_no_wider_than_the_labels(self):
        years = suitable_width(np.arange(1990.0, 2011))
        assert 0.5 < years["width"] < 3
