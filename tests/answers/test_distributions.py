"""Measures of distributions against their definitions, closed forms, and laws that a proper score obeys."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numerate.answers.distributions import (
    DISTRIBUTION_METRICS,
    brier,
    calibration_error,
    crps,
    entropy,
    interval_coverage,
    nll,
    numeric_mass,
    numeric_probabilities,
    sample_crps,
)

Floats = npt.NDArray[np.float64]
SEEDS = st.integers(0, 2**32 - 1)


def random_law(seed: int, positions: int = 3, tokens: int = 7) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(tokens, 0.5), positions) * (rng.random((positions, tokens)) > 0.3) + 1e-9
    return p / p.sum(-1, keepdims=True), rng.integers(-5, 6, tokens).astype(float), rng.integers(0, tokens, positions)


@given(SEEDS)
def test_crps_by_its_definition(seed: int) -> None:
    p, v, t = random_law(seed)
    apart = np.abs(v[:, None] - v)  # [N, N]
    expected = [p[k] @ apart[t[k]] - 0.5 * p[k] @ apart @ p[k] for k in range(len(t))]
    assert crps(p, v, t) == pytest.approx(expected, abs=1e-12)
    order = np.random.default_rng(seed).permutation(len(v))
    assert crps(p[:, order], v[order], np.argsort(order)[t]) == pytest.approx(expected, abs=1e-12)
    assert crps(p, 3 * v - 7, t) == pytest.approx(3 * np.array(expected), abs=1e-11)


@pytest.mark.parametrize(
    ("p", "target", "expected"),
    [
        ([1, 0, 0], 0, 0),
        ([0, 0, 1], 0, 9),
        ([0, 1, 0], 2, 8),
        ([0.5, 0, 0.5], 0, 4.5 - 2.25),
        ([0.5, 0, 0.5], 1, 0.5 * 1 + 0.5 * 8 - 2.25),
        ([0.25, 0.75, 0], 2, 0.25 * 9 + 0.75 * 8 - 0.1875),
    ],
)
def test_crps_of_known_laws(p: list[float], target: int, expected: float) -> None:
    assert crps([p], [0, 1, 9], [target]) == pytest.approx([expected])


def test_crps_counts_tokens_of_one_value_together() -> None:
    assert crps([[0.5, 0.5], [1.0, 0.0]], [7, 7], [1, 1]).tolist() == [0.0, 0.0]
    assert crps([[1.0]], [5], [0]).tolist() == [0.0]


@settings(max_examples=50)
@given(SEEDS)
def test_the_truth_scores_best(seed: int) -> None:
    (truth, other), v, _ = random_law(seed, positions=2)
    targets = np.arange(len(v))
    for measure in (crps, brier, nll):
        honest = truth @ measure(np.tile(truth, (len(v), 1)), v, targets)
        assert honest <= truth @ measure(np.tile(other, (len(v), 1)), v, targets) + 1e-12


def test_nll_brier_and_entropy() -> None:
    p, t = [[0.5, 0.25, 0.25], [0, 1, 0], [0, 1, 0], [1 / 3] * 3], [1, 1, 0, 2]
    v = [5, 6, 7]
    assert nll(p, v, t) == pytest.approx([math.log(4), 0, math.inf, math.log(3)])
    assert brier(p, v, t) == pytest.approx([0.25 + 0.5625 + 0.0625, 0, 2, 4 / 9 + 2 / 9])
    assert entropy(p, v, t) == pytest.approx([1.5 * math.log(2), 0, 0, math.log(3)])
    assert not np.signbit(nll(p, v, t)).any()
    assert not np.signbit(entropy(p, v, t)).any()


def test_law_and_mass_of_logits() -> None:
    logits = np.log([[0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]])
    assert numeric_probabilities(logits, [3, 0]) == pytest.approx(np.array([[0.8, 0.2], [0.125, 0.875]]))
    assert numeric_mass(logits, [3, 0]) == pytest.approx([0.5, 0.8])
    assert numeric_mass(logits.astype(np.float16), [0, 1, 2, 3]) == pytest.approx([1, 1])
    far = [[1000.0, -1000.0, -1001.0, -math.inf]]
    assert numeric_probabilities(far, [1, 2, 3]) == pytest.approx(np.array([[1, 1 / math.e, 0]]) / (1 + 1 / math.e))
    assert numeric_mass(far, [1, 2, 3]).tolist() == [0.0]


def test_the_likelihood_among_all_tokens() -> None:
    logits, ids, targets = np.random.default_rng(0).normal(size=(4, 9)), np.array([2, 5, 7]), np.array([0, 2, 1, 1])
    whole = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    parts = -nll(numeric_probabilities(logits, ids), [1, 2, 3], targets) + np.log(numeric_mass(logits, ids))
    assert parts == pytest.approx(whole[np.arange(4), ids[targets]])


def test_calibration_error() -> None:
    # sure 0.9 and right 1 of 2; sure 0.6 and right 2 of 3; sure 0.5, the first of equals, wrong
    p = [[0.9, 0.1]] * 2 + [[0.6, 0.4]] * 3 + [[0.5, 0.5]]
    result = calibration_error(p, [0, 1], [0, 1, 0, 0, 1, 1], bins=10)
    assert result.counts.tolist() == [0, 0, 0, 0, 1, 3, 0, 0, 2, 0]
    assert result.confidence[[4, 5, 8]] == pytest.approx([0.5, 0.6, 0.9])
    assert result.accuracy[[4, 5, 8]] == pytest.approx([0, 2 / 3, 0.5])
    assert np.isnan(result.accuracy[[0, 9]]).all()
    assert result.edges == pytest.approx(np.arange(11) / 10)
    assert result.error == pytest.approx((1 * 0.5 + 3 * (2 / 3 - 0.6) + 2 * 0.4) / 6)


def test_calibration_error_at_its_ends() -> None:
    sure = [[1.0, 0.0]] * 4
    assert calibration_error(sure, [0, 1], [0] * 4).error == 0.0
    assert calibration_error(sure, [0, 1], [1] * 4).error == 1.0
    assert calibration_error(sure, [0, 1], [1] * 4).counts.tolist() == [0] * 14 + [4]
    assert calibration_error(sure, [0, 1], [0, 0, 0, 1], bins=1).error == 0.25


def test_a_calibrated_model_has_little_calibration_error() -> None:
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5), 20_000)
    targets = (p.cumsum(-1) > rng.random((len(p), 1))).argmax(-1)
    assert calibration_error(p, np.arange(5), targets).error < 0.02
    sharper = p**3 / (p**3).sum(-1, keepdims=True)
    assert calibration_error(sharper, np.arange(5), targets).error > 0.15


@given(SEEDS, st.integers(1, 9))
def test_sample_crps_by_its_definition(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = rng.integers(-9, 10, (4, k)).astype(float), rng.normal(size=4)
    expected = np.abs(x - y[:, None]).mean(-1) - np.abs(x[:, :, None] - x[:, None]).mean((1, 2)) / 2
    assert sample_crps(x, y) == pytest.approx(expected, abs=1e-12)


def test_sample_crps_of_one_sample_is_the_error() -> None:
    assert sample_crps([[3.0], [-1.0]], [5.0, -1.0]).tolist() == [2.0, 0.0]


def test_sample_crps_is_the_laws() -> None:
    samples = np.array([[0.0, 0.0, 1.0, 9.0]])
    assert sample_crps(samples, [1.0]) == pytest.approx(crps([[0.5, 0.25, 0.25]], [0, 1, 9], [1]))


def test_a_sample_without_an_answer_counts() -> None:
    x = np.tile(np.arange(19.0), (2, 1))
    x[1, 3] = np.nan
    assert sample_crps(x, [9.0, 9.0])[1] == math.inf
    assert interval_coverage(x, [9.0, 9.0]).tolist() == [1.0, 0.0]


def test_interval_coverage_at_its_ends() -> None:
    x = [[float(k) for k in range(1, 20)]] * 5
    assert interval_coverage(x, [0.99, 1.0, 10.0, 19.0, 19.01], level=0.9).tolist() == [0, 1, 1, 1, 0]
    # Of 19 samples, the quantiles 0.25 and 0.75 are the 5th and the 15th.
    assert interval_coverage(x, [4.99, 5.0, 10.0, 15.0, 15.01], level=0.5).tolist() == [0, 1, 1, 1, 0]
    # 0.275 and 0.725 lie half way to the next ones.
    assert interval_coverage(x, [5.49, 5.51, 10.0, 14.49, 14.51], level=0.45).tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize(("k", "level"), [(19, 0.9), (9, 0.8), (9, 0.6), (40, 0.9)])
def test_coverage_is_the_level_where_gold_and_samples_are_alike(k: int, level: float) -> None:
    numbers = np.random.default_rng(0).normal(size=(20_000, k + 1))
    assert interval_coverage(numbers[:, 1:], numbers[:, 0], level=level).mean() == pytest.approx(level, abs=0.01)


def test_the_registry() -> None:
    arrays: dict[str, tuple[Any, ...]] = {
        "probabilities": ([[0.5, 0.5]], [1, 2], [0]),
        "logits": ([[0.0, 1.0]], [1]),
        "samples": ([[float(k) for k in range(19)]], [5.0]),
    }
    for name, metric in DISTRIBUTION_METRICS.items():
        assert metric.name == name == metric.function.__name__
        assert metric.description
        value = metric(*arrays[metric.inputs])
        assert name == "calibration_error" or (value.shape == (1,) and value.dtype == np.float64)
        assert pickle.loads(pickle.dumps(metric)) == metric
    better = {name: metric.higher_is_better for name, metric in DISTRIBUTION_METRICS.items()}
    assert [name for name, higher in better.items() if higher] == ["numeric_mass"]
    assert [name for name, higher in better.items() if higher is None] == ["entropy", "interval_coverage"]


def test_the_callers_arrays_stay_as_they_are() -> None:
    p, v, t = random_law(0)
    x = np.array([[3.0, 1.0, 2.0]])
    logits = np.ones((1, 3))
    copies = [array.copy() for array in (p, v, t, x, logits)]
    for measure in (crps, nll, brier, entropy, calibration_error):
        measure(p, v, t)
    sample_crps(x, [1.0])
    numeric_probabilities(logits, [0])
    numeric_mass(logits, [0])
    for array, copy in zip((p, v, t, x, logits), copies, strict=True):
        assert (array == copy).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: crps([[1.0]], [1, 2], [0]),
            r"probabilities has shape \(1, 1\), values \(2,\) and targets \(1,\): expected \[P, N\]",
        ),
        (lambda: crps([0.5, 0.5], [1, 2], [0]), "probabilities has shape"),
        (lambda: crps(np.zeros((0, 2)), [1, 2], np.zeros(0, int)), "at least one position and one token"),
        (
            lambda: crps([[0.5, 0.5]], [1, 2], [2]),
            "targets has dtype int64 and values from 2 to 2: expected indices of the 2 tokens",
        ),
        (lambda: nll([[0.5, 0.5]], [1, 2], [-1]), "values from -1 to -1: .* drop positions where it returns -1"),
        (lambda: nll([[0.5, 0.5]], [1, 2], [1.0]), "targets has dtype float64"),
        (
            lambda: brier([[0.5, 0.2]], [1, 2], [1]),
            "the sums range from 0.7 to 0.7: expected numbers >= 0 with sum 1. Use numeric_probabilities",
        ),
        (lambda: brier([[1.5, -0.5]], [1, 2], [1]), "the smallest entry is -0.5"),
        (lambda: brier([[math.nan, 0.5]], [1, 2], [1]), "probabilities has a row that is not a distribution"),
        (lambda: entropy([[0.5, 0.5]], [1, math.inf], [1]), "values contains NaN or infinity"),
        (lambda: calibration_error([[0.5, 0.5]], [1, 2], [1], bins=0), "bins=0 is out of range: expected a whole number >= 1"),
        (lambda: numeric_probabilities([1.0], [0]), r"logits has shape \(1,\): expected \[P, V\]"),
        (lambda: numeric_probabilities([[1.0, math.nan]], [0]), "logits contains NaN or positive infinity"),
        (lambda: numeric_probabilities([[1.0, -math.inf]], [1]), "all selected tokens are -inf"),
        (lambda: numeric_mass([[1.0, 2.0]], [2]), r"token_ids=\[2\] does not fit logits of V=2"),
        (lambda: numeric_mass([[1.0, 2.0]], [-1]), "does not fit logits"),
        (lambda: sample_crps([1.0], [1.0]), r"samples has shape \(1,\) and golds \(1,\): expected \[E, K\] and \[E\]"),
        (lambda: sample_crps([[1.0]], [math.nan]), "golds or samples contains a number that is not finite"),
        (lambda: sample_crps([[math.inf]], [1.0]), "golds or samples contains a number that is not finite"),
        (lambda: interval_coverage([[1.0] * 18], [1.0]), "samples has K=18 .* level=0.9: expected at least 19. Draw more"),
        (lambda: interval_coverage([[1.0] * 18], [1.0], level=1.0), "level=1.0 is out of range"),
    ],
)
def test_wrong_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
