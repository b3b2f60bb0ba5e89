"""Answers in every format are those of the same text in ordinary notation, with every extractor, metric and reward."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.samples import is_linear

from numerate.answers import EXTRACTORS, METRICS, in_format, number_distribution
from numerate.answers.extract import Extractor
from numerate.formats import KINDS, NumberFormat
from numerate.rewards import REWARDS, with_settings

KIND = pytest.mark.parametrize("kind", KINDS)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,6})(\.[0-9]{1,3})?", fullmatch=True)
# An answer for each extractor, with a number that every format changes
TEXTS = {
    "last_number": "Of 3125 m, -1240.5 m.",
    "number": "1240.5",
    "rational": "It takes 1012.5 hours.",
    "percent": "From 1250 it rose by 45.5%.",
    "gsm8k_strict": "1 + 1041 = 1042 #### 1042",
    "gsm8k_flexible": "so the answer is 1800",
    "clock": "On day 1200 it shows 2_55.",
    "box": "The box is [10, 20, 110, 1220].",
    "boxes": '[{"box": [10, 20, 110, 1220], "text": "EXIT"}]',
    "final_answer": "Because of 12.\nAnswer: 1200 m",
    "text": "It is 1240.5 m.",
}


def fitted(kind: str, text: str) -> NumberFormat:
    found = [match[0] for match in NumberFormat("plain").pattern.finditer(text)]
    return NumberFormat.fit([*found, "1234567.125"], kind)


@KIND
@pytest.mark.parametrize("name", EXTRACTORS)
def test_every_extractor_reads_every_format(name: str, kind: str) -> None:
    text = TEXTS[name]
    answer = EXTRACTORS[name](text)
    assert answer is not None
    format = fitted(kind, text)
    written = format.write_text(text, "all")
    assert kind == "plain" or written != text
    read = in_format(format, name)
    assert read(written) == pickle.loads(pickle.dumps(read))(written) == answer
    assert (read.name, read.version) == (name if kind == "plain" else f"{name}_{kind}", EXTRACTORS[name].version)


@settings(max_examples=30)
@given(gold=NUMBERS, guess=NUMBERS)
def test_metrics_and_rewards_do_not_depend_on_the_format(gold: str, guess: str) -> None:
    plain, ordinary = f"It is {guess}.", EXTRACTORS["last_number"]
    for kind in KINDS:
        format = NumberFormat.fit([gold, guess], kind)
        written, read = format.write_text(plain), in_format(format)
        for metric in ("exact", "absolute_error", "relative_error"):
            assert METRICS[metric](gold, read(written)) == METRICS[metric](gold, ordinary(plain)), kind
        for name in ("exact", "relative_error", "log_error", "crps"):
            reward = REWARDS[name]
            assert reward([written] * 2, [gold] * 2, format=format) == reward([plain] * 2, [gold] * 2), kind


@KIND
def test_rewards_of_boxes_and_chats(kind: str) -> None:
    format = NumberFormat.fit(["10", "1220"], kind)
    reward = with_settings(REWARDS["iou"], format=format)
    completion = [{"role": "assistant", "content": format.write_text(TEXTS["box"], "all")}]
    assert reward([completion], [[10, 20, 110, 1220]], format=["a column"]) == [1.0]
    assert reward.__name__ == f"iou_format_{kind}"
    exact = with_settings(REWARDS["exact"], format=format)
    written = format.write(1220)
    assert pickle.loads(pickle.dumps(exact))([written], ["1220"]) == [1.0]  # gold answers are in ordinary notation


@pytest.mark.parametrize(
    ("kind", "text", "answer"),
    [
        ("spaced", "It is 1240.", 1240),  # not in the format: as it is
        ("grouped", "It is 1240.", 1240),
        ("exponent", "It is 1240.", 1240),
        ("exponent", "It is 3:12.", None),  # 1200 is 3:1200
        ("exponent", "At 3:12 it is 2:125.", 125),
        ("exponent", "It is 2:125, no, 3:12.", None),
        ("exponent+spaced", "It is 3 : 1 2.", None),
        ("reversed", "It is 1e5.", None),
        ("reversed", "It is 1,240.", None),
        ("spaced", "no idea", None),
    ],
)
def test_what_is_not_in_the_format(kind: str, text: str, answer: int | None) -> None:
    assert in_format(kind)(text) == answer


def test_functions_are_extractors() -> None:
    def doubled(text: str) -> int:
        return 2 * int(text)

    read = in_format("spaced", doubled)
    assert (read.name, read("1 2")) == ("doubled_spaced", 24)
    assert in_format("plain", "clock") is EXTRACTORS["clock"]
    assert in_format("plain", doubled) == Extractor("doubled", 1, doubled, "a function")
    assert in_format("spaced", EXTRACTORS["number"])(" 1 . 5 ") == Fraction(3, 2)
    texts = ["2 4 #### 2 4", "#### 1.2.3", "no idea"]
    found = number_distribution(texts, extractor=in_format("spaced", "gsm8k_strict"))
    assert (found.mode, found.covered) == (24, pytest.approx(1 / 3))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: in_format("spacy"), "Did you mean 'spaced'"),
        (lambda: in_format("spaced", "last"), "extractor='last' is not known"),
        (lambda: REWARDS["exact"](["1"], [1], format="spacy"), "kind='spacy' is not known"),
        (lambda: with_settings(REWARDS["iou"], format="spacy"), "kind='spacy' is not known"),
        (lambda: REWARDS["exact"](["1"], [1], format="spaced", decimal=","), "decimal=',' and format='spaced': formats write a"),
    ],
)
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@given(text=st.text("0123456789-+.,:eE %−x", max_size=30))
def test_no_text_raises(text: str) -> None:
    for kind in KINDS:
        answer = in_format(NumberFormat.fit(["12.5"], kind))(text)
        assert answer is None or isinstance(answer, Fraction), kind


@KIND
@pytest.mark.parametrize("piece", ["1", "1 ", "1.", "1,", "1,111", "1:", "1 : ", "1 . ", "-", "11 1"])
def test_time_grows_with_the_text_alone(kind: str, piece: str) -> None:
    read = in_format(NumberFormat.fit(["12.5"], kind))
    ends = ("", "x1", ":1", ": 1")
    assert is_linear(lambda size: [read(piece * (size // len(piece)) + end) for end in ends], 1_000, 0.002)
