"""Soft labels in formats: every target and kind against brute force over all numbers, written and encoded."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from tests.samples import refused
from tests.targets.small import KINDS as TOKENIZERS
from tests.targets.small import conditionals, encoded, listed, row_targets, tokenizer
from tests.targets.test_soft_numbers import make_row, rng

from numerate.formats import CLOCK, KINDS, NumberFormat
from numerate.targets import AnswerDistribution, Bell, CircularBell, Ratings, SoftNumbers


def formatted(kind: str) -> NumberFormat:
    return NumberFormat(kind, (1, 3), (0, 2)) if "padded" in kind else NumberFormat(kind)


class Kind:
    """A target, the label that a row has in ordinary notation, and what the target is made from, if that is a column."""

    def __init__(self, target: Any, label: str, column: Any = None) -> None:
        self.target, self.label, self.column = target, label, column


LABELS: dict[str, Kind] = {
    "bell": Kind(Bell(width=2, shape="uniform"), "99"),
    "decimals": Kind(Bell(relative=0.05, hard=0.25, shape="laplace", at_most=9), "-1.25"),
    "around 0": Kind(Bell(width=0.2, shape="uniform"), "0.1"),
    "ratings": Kind(Ratings("ratings"), "10", [9, 10, 10, 11, 0]),
    "halves": Kind(Ratings(0.5, column="ratings"), "9.5", [9.5, 10, 8, 9.5]),
    "angle": Kind(CircularBell.angle(width=2, shape="uniform"), "359"),
    "any function": Kind(lambda label: AnswerDistribution([label, f"{label}0"], [3, 1]), "12"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", TOKENIZERS)
@pytest.mark.parametrize("name", LABELS)
def test_conditionals_are_those_of_enumeration(name: str, tokens: str, kind: str) -> None:
    case, format = LABELS[name], formatted(kind)
    soft = SoftNumbers(tokenizer(tokens), case.target, format=format, strict=True)
    answers = case.target(case.label if case.column is None else case.column)
    assert len(answers) > 1
    texts = [f"x is {format.write(text, strict=False)}." for text in answers.texts]
    sequences = [[*encoded(tokenizer(tokens), text), 0] for text in texts]
    row = make_row(tokenizer(tokens), "x", f" is {format.write(case.label)}.") | {"ratings": case.column}
    assert soft.numbers(row) == [case.label]
    for seed in range(6):
        drawn = soft(row, rng=rng(seed))
        assert drawn["input_ids"] in sequences
        expected = conditionals(drawn["input_ids"], sequences, answers.probabilities.tolist())
        assert row_targets(drawn) == {
            place: pytest.approx(options, abs=1e-9) for place, options in enumerate(expected) if len(options) > 1
        }
    assert soft(row, path="fixed")["input_ids"] == row["input_ids"]
    assert soft.left_hard == 0


@pytest.mark.parametrize("kind", KINDS)
def test_all_numbers_of_a_row_and_patterns(kind: str) -> None:
    """Texts in the format are recognised: a spaced number is one number, in any place; other texts stay."""
    tokens, format = tokenizer("digits"), formatted(kind)
    written = format.write_text("from 12 to 7.5, then -120; room A12", "all")
    row = make_row(tokens, "", written)
    near = Bell(width=1, shape="uniform")
    wanted = ["12", "7.5", "-120"]
    soft = SoftNumbers(tokens, near, where="all", format=format)
    assert soft.numbers(row) == wanted
    drawn = tokens.decode(soft(row, rng=rng(1))["input_ids"], skip_special_tokens=True)
    members = [near(label).texts for label in wanted]
    assert format.read_text(drawn, "all") in {
        f"from {a} to {b}, then {c}; room A12" for a in members[0] for b in members[1] for c in members[2]
    }
    part = re.compile(r"to ([^,]*),") if kind != "grouped" else re.compile(r"to (.*?), ")
    assert SoftNumbers(tokens, near, where=part, format=format).numbers(row) == ["7.5"]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_a_width_of_0_leaves_rows_as_they_are(kind: str) -> None:
    format, tokens = formatted(kind), tokenizer("triples")
    row = make_row(tokens, "x", f" is {format.write('-12.5')}.")
    soft = SoftNumbers(tokens, Bell(width=0), format=format, mask=True)
    out = listed(soft(row, path="fixed"))
    assert (out["input_ids"], out["soft_positions"], soft.left_hard) == (row["input_ids"], [], 0)
    inside = [token for token, weight in zip(out["input_ids"], out["position_weights"], strict=True) if weight]
    assert format.read(tokens.decode(inside).strip()) == "-12.5"


def test_clock_times_are_padded() -> None:
    format = NumberFormat("padded", digits=2, decimals=0)
    target = CircularBell.clock(width=1, shape="uniform")
    row = make_row(tokenizer("digits"), "x", f" is {format.write_text('9_59', CLOCK)}.")
    soft = SoftNumbers(tokenizer("digits"), target, format=format)
    assert soft.numbers(row) == ["9_59"]
    texts = {tokenizer("digits").decode(soft(row, rng=rng(seed))["input_ids"]) for seed in range(30)}
    assert texts == {f"x is {time}.<end>" for time in ("09_58", "09_59", "10_00")}
    for kind in KINDS:
        if kind not in ("plain", "padded"):
            refused(
                ValueError,
                ["whose labels are no plain numbers", "padded"],
                lambda kind=kind: SoftNumbers(tokenizer("digits"), target, format=formatted(kind)),
            )


def test_a_number_of_another_width_keeps_its_text() -> None:
    tokens, format = tokenizer("digits"), NumberFormat("padded", digits=4, decimals=0)
    row = make_row(tokens, "x", " is 099.")
    soft = SoftNumbers(tokens, Bell(width=1, shape="uniform"), format=format)
    texts = {tokens.decode(soft(row, rng=rng(seed))["input_ids"]) for seed in range(30)}
    assert texts == {f"x is {number}.<end>" for number in ("0098", "099", "0100")}


def test_a_number_in_another_format_is_counted() -> None:
    row = make_row(tokenizer("digits"), "x", " is 3:12, or 1,200.")

    def make(**options: Any) -> SoftNumbers:
        return SoftNumbers(tokenizer("digits"), Bell(width=1), format="reversed", **options)

    soft = make()
    with pytest.warns(UserWarning, match="it is not written in NumberFormat"):
        assert soft(row, rng=np.random.default_rng(0))["input_ids"] == row["input_ids"]
    assert (soft.seen, soft.left_hard) == (1, 1)
    refused(ValueError, ["strict=True", "'1,200'", "not written in"], lambda: make(strict=True)(row, rng=rng()))
    refused(ValueError, ["kind='back'"], lambda: SoftNumbers(tokenizer("digits"), Bell(width=1), format="back"))
