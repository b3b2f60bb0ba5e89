"""Scores: every decision on every scale, calibrated intervals that cover at their level, and agreement by its formulas."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from tests.samples import refused

from numerate.distribution import NumberDistribution
from numerate.judge import Calibration, Scores, ScoreScale, agreement
from numerate.judge.scored import calibrate

SCALES: list[Any] = [
    "1 to 10",
    "0.0 to 5.0",
    "-2 to 2",
    "0 to 100",
    "A to E",
    ["poor", "fair", "good"],
    {"no": 0, "partly": "0.5", "yes": 1},
]


def synthetic(scale: Any, rows: int, seed: int = 0, *, noise: float = 0.1, bias: float = 0.15) -> tuple[Scores, np.ndarray]:
    """A judge that is biased, overconfident and compresses the scale, and the scores of people, on the scale."""
    rng = np.random.default_rng(seed)
    scale = ScoreScale.of(scale)
    values = np.array(scale.values, dtype=float)
    places = (values - values[0]) / (values[-1] - values[0])
    truth = rng.beta(1.5, 1.2, rows)
    people = values[np.abs(places - (truth + rng.normal(0, noise, rows))[:, None]).argmin(1)]
    centres, widths = 0.3 + 0.4 * truth**2 + bias + rng.normal(0, 0.04, rows), rng.uniform(0.05, 0.2, rows)
    masses = np.exp(-0.5 * np.square((places - centres[:, None]) / widths[:, None])) + 1e-6
    return Scores(scale, tuple(NumberDistribution(scale.values, row) for row in masses)), people


def part(scores: Scores, rows: Any, calibration: Calibration | None = None) -> Scores:
    chosen = [scores.distributions[i] for i in rows]
    if calibration is not None:
        chosen = [None if one is None else one.tempered(calibration.temperature) for one in chosen]
    return Scores(scores.scale, tuple(chosen), calibration)


@pytest.mark.parametrize("scale", SCALES, ids=str)
def test_every_decision_on_every_scale(scale: Any) -> None:
    scores, people = synthetic(scale, 60)
    low, high = float(scores.scale.values[0]), float(scores.scale.values[-1])
    fit = calibrate(part(scores, range(40)), people[:40])
    again = Calibration(**json.loads(json.dumps(asdict(fit))))
    for calibration in (None, fit, again):
        seen = part(scores, range(40, 60), calibration)
        for decision in ("mean", "median", "mode"):
            found = getattr(seen, decision)
            assert found.shape == (20,)
            assert (low <= found).all()
            assert (found <= high).all()
            assert agreement(seen, people[40:], decision=decision, resamples=20).items == 20
        for level in (0.5, 0.9):
            ends = seen.interval(level)
            assert {*ends.ravel()} <= {*map(float, scores.scale.values)}
            assert (ends[:, 0] <= ends[:, 1]).all()
        assert (seen.interval(0.5)[:, 0] >= seen.interval(0.9)[:, 0]).all()
        assert (seen.interval(0.5)[:, 1] <= seen.interval(0.9)[:, 1]).all()
    np.testing.assert_array_equal(part(scores, range(40, 60), fit).mean, part(scores, range(40, 60), again).mean)


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("scale", ["1 to 10", "0.0 to 5.0"])
def test_intervals_cover_at_their_level(scale: str, between: bool) -> None:
    """Also where people's scores are means that lie between those of the scale."""
    scores, people = synthetic(scale, 1200, noise=0.25)
    if between:
        people = np.clip(
            people + np.random.default_rng(1).uniform(-0.5, 0.5, len(people)), *people[[people.argmin(), people.argmax()]]
        )
    levels, inside = (0.5, 0.8, 0.9), list[np.ndarray]()
    for seed in range(12):
        order = np.random.default_rng(seed).permutation(len(people))
        labelled, new = order[:200], order[200:600]
        seen = part(scores, new, calibrate(part(scores, labelled), people[labelled]))
        ends = [seen.interval(level) for level in levels]
        inside.append(np.array([((low <= people[new]) & (people[new] <= high)).mean() for low, high in (end.T for end in ends)]))
    covered = np.mean(inside, 0)
    np.testing.assert_allclose(covered, levels, atol=0.02)
    own = part(scores, range(len(people))).interval(0.9)
    assert ((own[:, 0] <= people) & (people <= own[:, 1])).mean() < 0.75  # why the judge is calibrated


def test_calibration_removes_bias() -> None:
    scores, people = synthetic("1 to 10", 600)
    before, after = (
        part(scores, range(200, 600)),
        part(scores, range(200, 600), calibrate(part(scores, range(200)), people[:200])),
    )
    for decision in ("mean", "median"):
        first, last = (agreement(each, people[200:], decision=decision, resamples=50) for each in (before, after))  # type: ignore[arg-type]
        assert last.error.value < 0.85 * first.error.value  # type: ignore[operator]
        assert last.kappa.value > first.kappa.value  # type: ignore[operator]
        assert last.spearman.value == pytest.approx(first.spearman.value, abs=0.05)


def test_a_judge_that_knows_nothing_says_what_people_say_on_average() -> None:
    scale = ScoreScale.of("1 to 10")
    same = Scores(scale, (NumberDistribution.point(7),) * 40)
    fit = calibrate(same, [2, 4] * 20)
    seen = Scores(scale, same.distributions, fit)
    np.testing.assert_allclose(seen.mean, 3)
    assert {*map(tuple, seen.interval(0.9).tolist())} == {(2.0, 4.0)}


def test_items_without_scores_are_left_out_of_a_calibration() -> None:
    scores, people = synthetic("1 to 10", 40)
    silent = Scores(scores.scale, (None, *scores.distributions, scores.distributions[0]))
    assert calibrate(silent, [5, *people, np.nan]) == calibrate(scores, people)


def test_agreement_by_its_formulas() -> None:
    rng = np.random.default_rng(0)
    people = rng.integers(1, 6, 50).astype(float)
    own = np.clip(people + rng.integers(-2, 3, 50), 1, 5)
    found = agreement([*own, np.nan, 3], [*people, 3, np.nan])
    assert (found.items, found.left_out) == (50, 2)
    assert found.pearson.value == pytest.approx(np.corrcoef(own, people)[0, 1])
    assert found.error.value == pytest.approx(np.abs(own - people).mean())
    table = np.zeros((5, 5))
    for one, other in zip(own, people, strict=True):
        table[int(one) - 1, int(other) - 1] += 1 / 50
    weights = np.square(np.arange(5)[:, None] - np.arange(5))
    kappa = 1 - (weights * table).sum() / (weights * np.outer(table.sum(1), table.sum(0))).sum()
    assert found.kappa.value == pytest.approx(kappa)
    pairs = [own[i] == own[j] for i in range(50) for j in range(i)]
    assert found.ties == pytest.approx(np.mean(pairs))
    for estimate in (found.pearson, found.spearman, found.kappa, found.error):
        assert estimate.low is not None
        assert estimate.high is not None
        assert estimate.value is not None
        assert estimate.low < estimate.value < estimate.high
    assert agreement(own, people) == agreement(own, people)
    assert agreement(own, people, level=0.5).error.low > found.error.low  # type: ignore[operator]


def test_equal_scores_do_not_correlate() -> None:
    found = agreement([3, 3, 3], [1, 2, 3])
    assert (found.pearson.value, found.ties) == (None, 1.0)
    assert "pearson   not defined" in str(found)


def test_wrong_arguments() -> None:
    scores, people = synthetic("1 to 10", 30)
    refused(ValueError, ["human contains 11", "1 to 10", "rescale"], lambda: calibrate(scores, [11, *people[1:]]))
    refused(ValueError, ["human has shape (29,)", "30 in all"], lambda: calibrate(scores, people[1:]))
    refused(ValueError, ["9 items", "10 at least"], lambda: calibrate(part(scores, range(9)), people[:9]))
    refused(ValueError, ["decision='middle'", "median"], lambda: agreement(scores, people, decision="middle"))  # type: ignore[arg-type]
    refused(ValueError, ["level=1"], lambda: agreement(scores, people, level=1))
    refused(ValueError, ["1 items", "two at least"], lambda: agreement([1, np.nan], [1, 2]))
    few = part(scores, range(20), calibrate(part(scores, range(20)), people[:20]))
    refused(ValueError, ["level=0.99", "20 validation rows", "99"], lambda: few.interval(0.99))
