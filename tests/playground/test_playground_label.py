"""The tab of labels as distributions: its tree is the library's trie, and its draws are the library's draws."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pydantic", reason="the extra playground is not installed")

from pydantic import ValidationError

from numerate import NumberDistribution
from numerate.playground.label import LabelRequest, compute
from numerate.playground.tokens import number_tokens
from numerate.targets import Bell, CircularBell, Ratings, TokenTrie

Branch = dict[str, Any]


def _answer(**state: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(compute(LabelRequest(**state)), allow_nan=False))
    return made


def _walk(branch: Branch) -> Iterator[Branch]:
    yield branch
    for below in branch["branches"]:
        yield from _walk(below)


def _paths(branch: Branch, before: str = "") -> Iterator[tuple[str, Branch]]:
    """Each branch with the text of the path to its end, an ``end`` as ``!``; not the sums of others."""
    if not branch["others"]:
        text = before + "".join("!" if token == "end" else token for token in branch["tokens"])
        yield text, branch
        for below in branch["branches"]:
            yield from _paths(below, text)


def _mass(answers: Any, begin: str) -> float:
    return math.fsum(p for text, p in zip(answers.texts, answers.probabilities, strict=True) if f"{text}!".startswith(begin))


CASES: list[tuple[dict[str, Any], Any]] = [
    ({}, lambda: Bell(relative="0.05")("99900")),
    ({"target": "1,250", "shape": "laplace"}, lambda: Bell(relative="0.05", shape="laplace")("1,250")),
    ({"target": "-0.5", "width": 200}, lambda: Bell(relative="2")("-0.5")),
    ({"target": "84.50", "unit": "absolute", "width": 0.02, "shape": "uniform"}, lambda: Bell("0.02", shape="uniform")("84.50")),
    ({"kind": "raters", "ratings": "[3, 4 4, 5.5]"}, lambda: Ratings()([3, 4, 4, 5.5])),
    ({"kind": "clock", "target": "23:58", "width": 3}, lambda: CircularBell.clock(3, hours=24)("23:58")),
    ({"kind": "angle", "target": "359", "width": 3}, lambda: CircularBell.angle(width=3)("359")),
]


@pytest.mark.parametrize(("state", "made"), CASES)
@pytest.mark.parametrize("branches", [1, 5])
def test_the_probability_of_a_branch_is_the_mass_of_the_answers_that_begin_with_it(
    state: dict[str, Any], made: Any, branches: int
) -> None:
    answers = made()
    tree = _answer(**state, branches=branches)["tree"]
    for text, branch in _paths(tree):
        assert branch["probability"] == pytest.approx(_mass(answers, text), rel=1e-9)
        assert branch["ends"] == text.endswith("!")
        if branch["branches"]:
            assert math.fsum(below["share"] for below in branch["branches"]) == pytest.approx(1, rel=1e-9)
            assert math.fsum(below["probability"] for below in branch["branches"]) == pytest.approx(branch["probability"])
        else:
            assert branch["ends"] != branch["cut"]


def test_tokens_of_three_digits_have_the_shares_of_the_trie() -> None:
    answers, tokens = Bell(relative="0.05")("99900"), number_tokens("three")
    trie = TokenTrie(tokens.encode(answers.texts), answers.probabilities)
    targets = trie.path(tokens.encode(["99900"])[0]).targets
    tree = _answer(tokenizer="three")["tree"]
    [branch] = [branch for branch in tree["branches"] if branch["label"]]
    assert branch["tokens"] == ["999"]
    assert branch["share"] == targets[0][tokens.encode(["999"])[0][0]]
    [others] = [branch for branch in tree["branches"] if branch["others"]]
    assert others["others"] == len(targets[0]) - 5


def test_a_width_of_0_is_the_label_alone() -> None:
    answer = _answer(width=0)
    assert answer["tree"]["tokens"] == ["9", "9", "9", "0", "0", "end"]
    assert answer["tree"]["branches"] == []
    assert (answer["values"], answer["drawn"], answer["tree"]["frequency"]) == (1, [], None)


def test_median_and_interval_are_those_of_the_library() -> None:
    distribution = NumberDistribution.bell("84.50", width="0.5")
    low, high = distribution.interval(0.9)
    numbers = _answer(target="84.50", unit="absolute", width=0.5)["numbers"]
    assert numbers == {"median": str(distribution.median), "low": str(low), "high": str(high)}
    assert _answer(kind="clock", target="12:00")["numbers"] is None


def test_draws_are_the_library_s_own_and_follow_the_seed() -> None:
    answers, rng = Bell(relative="0.05")("99900"), np.random.default_rng(7)
    texts = [answers.draw(rng) for _ in range(300)]
    answer = _answer(draws=300, seed=7)
    assert answer["drawn"] == texts[:12]
    for text, branch in _paths(answer["tree"]):
        assert branch["frequency"] == sum(f"{drawn}!".startswith(text) for drawn in texts) / 300
        shares = [below["frequency_share"] * branch["frequency"] for below in branch["branches"] if branch["frequency"]]
        assert shares == pytest.approx([below["frequency"] for below in branch["branches"] if branch["frequency"]], rel=1e-12)
    assert [text for text, branch in _paths(answer["tree"]) if branch["label"]][-1] == "99900!"
    assert _answer(draws=300, seed=8)["drawn"] != answer["drawn"]
    assert _answer(draws=10, seed=7)["drawn"] == texts[:10]


@pytest.mark.parametrize(
    "state",
    [
        {"target": "9" * 400, "draws": 10_000, "branches": 8},
        {"target": "0." + "3" * 398, "width": 1e300, "branches": 8, "tokenizer": "three"},
        {"target": "0", "width": 100},
        {"kind": "clock", "target": "11:58", "width": 1e300},
        {"kind": "angle", "target": "359.99", "width": 1e300},
        {"kind": "raters", "ratings": "1 " * 200},
    ],
)
def test_extremes_are_bounded(state: dict[str, Any]) -> None:
    answer = _answer(**state)
    assert 1 <= answer["values"] <= 501
    assert len(json.dumps(answer)) < 100_000
    assert answer["tree"]["probability"] == 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"target": "1e9"}, "not a plain number"),
        ({"kind": "clock", "target": "25:00"}, "not a time of day"),
        ({"kind": "clock", "target": "2:55 PM"}, "only digits and the characters"),
        ({"kind": "angle", "target": "3" * 21}, "at most 20"),
        ({"kind": "raters", "ratings": "3, four"}, "'four' is not a rating"),
        ({"kind": "raters", "ratings": " , "}, "has 0 values"),
        ({"kind": "raters", "ratings": "1 " * 201}, "has 201 values"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(state: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute(LabelRequest(**state))


@pytest.mark.parametrize(
    "state",
    [{"target": "1" * 401}, {"draws": 10_001}, {"draws": -1}, {"width": -1}, {"width": math.inf}, {"branches": 0}, {"x": 1}],
)
def test_a_state_out_of_bounds_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        LabelRequest(**state)
