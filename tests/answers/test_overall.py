"""RMSE, R² and correlations against their formulas, at any size of errors."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from numerate.answers import pearson, r_squared, rmse, spearman

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3))
PAIRS = st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=30)


@given(PAIRS)
def test_the_formulas(pairs):
    golds, answers = (np.array(column) for column in zip(*pairs, strict=True))
    errors = answers - golds
    assert rmse(errors) == pytest.approx(math.sqrt(np.mean(errors**2)))
    total = np.sum((golds - golds.mean()) ** 2)
    if len(set(golds)) == 1:
        assert r_squared(golds, errors) is None
    else:
        assert r_squared(golds, errors) == pytest.approx(1 - np.sum(errors**2) / total, rel=1e-6, abs=1e-6)


@given(st.lists(NUMBERS, min_size=1, max_size=9), st.integers(-900, 900))
def test_the_size_of_errors_is_a_factor(numbers, exponent):
    """Squares of errors such as 1e200 are beyond floats; their root is not."""
    errors = np.array(numbers)
    scale = 2.0**exponent
    assume(np.all((errors == 0) | (np.abs(errors * scale) > 1e-300)))
    assert rmse(errors * scale) == pytest.approx(rmse(errors) * scale)


def test_infinite_errors():
    assert rmse([1.0, math.inf]) == math.inf
    assert r_squared([1, 2], [0, math.inf]) == -math.inf
    assert r_squared([1, 2], [0, 1e300]) == -math.inf


@pytest.mark.parametrize("values", [[], [math.nan], [[1.0, 2.0]]])
def test_what_is_not_a_column(values):
    with pytest.raises(ValueError, match="errors has shape"):
        rmse(values)
    with pytest.raises(ValueError, match="golds has 2 numbers and errors 3"):
        r_squared([1, 2], [0, 0, 0])


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=30), st.integers(-900, 900))
def test_correlations(pairs, exponent):
    """With ties, and at any scale."""
    golds, answers = (np.array(column, float) for column in zip(*pairs, strict=True))
    for ours, theirs in ((pearson, stats.pearsonr), (spearman, stats.spearmanr)):
        if len({*golds}) == 1 or len({*answers}) == 1:
            assert ours(golds, answers) is None
        else:
            assert ours(golds, answers * 2.0**exponent) == pytest.approx(theirs(golds, answers).statistic, abs=1e-9)


def test_correlations_with_infinite_answers():
    assert pearson([1, 2, 3], [1, 2, math.inf]) is None
    assert spearman([1, 2, 3], [1, 2, math.inf]) == 1
    with pytest.raises(ValueError, match="golds has 2 numbers and answers 3"):
        spearman([1, 2], [1, 2, 3])
