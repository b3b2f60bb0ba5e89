"""The extractors read what a person would, a published rule to the letter, and no text makes them raise or hang."""

from __future__ import annotations

import hashlib
import pickle
import sys
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.samples import is_linear

from numerate.answers.extract import (
    EXTRACTORS,
    Region,
    box,
    boxes,
    clock_time,
    final_answer,
    gsm8k_flexible,
    gsm8k_strict,
    region,
    whole_text,
)
from numerate.answers.numerals import MAX_DIGITS, DecimalMark, as_fraction, last_number, number, percent, rational

# Text that is mostly what numbers, times and boxes are made of.
NUMERIC = st.text(alphabet="0123456789.,-+/eE:_ ()[]{}%$×^\\\n−１٣½\u200f\u2009x")
PIECES = st.lists(
    st.sampled_from(
        [
            *('[{"box": [1, 2, 3, 4], "text": "a"}', '{"quad": [', "[{", "}]", "]", "[]", ", ", '"', "\\", "\\u12"),
            *("#### ", "#", "answer:", "1/0", "12", "½", " 1/2", "%", "percent", "9" * 5000, "1e99999999"),
            *("null", "NaN", "\x00", "\ud800", "\u202e", "\n"),
        ]
    )
).map("".join)
TEXT = st.one_of(st.text(), st.text(st.characters()), NUMERIC, PIECES)


# What number_cases.py does not have: number -> texts that end with it.
@pytest.mark.parametrize(
    ("value", "texts"),
    [
        (5, ["5kg", "wait...5", "(a).5", "(a)-5", "well--5", "- 5 apples"]),
        (-5, [r"-\$5", "costs $-5", "\u200f-\u200e5\u202c"]),
        (7, ["So 3 + 4 = 7", "1e5e7"]),
        (-7, ["–7"]),
        (10, ["5%-10%", "5°-10°", "5€-10€"]),
        (12, ["1\u200b2"]),
        ("-1200.5", ["-$1,200.50"]),
        ("1234.5", ["１，２３４．５"]),
        ("-12/5", ["－１２／５"]),
        (10236, [r"10,\!236"]),
        ("-3/4", ["3/-4", r"\frac{-3}{4}", r"x = -\dfrac{3}{4}$"]),
        ("3/4", [r"\boxed{\frac{3}{4}}"]),
        ("1200/7", [r"\frac{1{,}200}{7}"]),
        (3, ["1.5/0.5", "-1/2/3", "2 1/2/3"]),
        (0, ["0/7"]),
        ("-0.5", ["-.5"]),
        (-3, ["5-(-3)"]),
        (9, ["9e"]),
        (2345, ["1,2345"]),
        (678, ["12345,678"]),
        ("1/2", ["1.2 1/2", "a2 1/2", "1/3 1/2"]),
        ("5/2", ["takes 2  1/2 hours", "2 ½"]),
        (2, ["2 4/2"]),
    ],
    ids=str,
)
def test_last_number(value: int | str, texts: list[str]) -> None:
    assert [last_number(text) for text in texts] == [Fraction(value)] * len(texts)
    assert [rational(text) for text in texts] == [Fraction(value)] * len(texts)


NOTHING: dict[Any, list[str]] = {
    last_number: ["", "-", ".", "5, for 1/0 has no value", "0/0", "inf", "nan", "²", "\ud800"],
    rational: ["", "half", "2 0/0"],
    number: ["", " ", "five", "5 apples", "3 4", "1/2/3", "1/0", "1..", "1_00", "1,20", "--5", "5\x00", "x5", "1e10001", "$"],
    percent: ["", "45", "%", "45 percentage points", "45  %", "1/0%", "45% or 1/0%", "45 per annum"],
    clock_time: ["", "255", "2.55", "2:5", "2:555", "2:60", "24:00", "123:45", "1:02:03:04", "2:55:60", "2:55, no, 2:75"],
    box: ["", "7", "[10, 20, 110]", "[1, 2, 3, 4, 5]", "(1,2),(3,4),(5,6),(7,8)", "1-2-3-4", "(1,2), or (3,4)"]
    + [str([1, 2, 3, 4]).replace(side, "1e99999") for side in "1234"],
    whole_text: [" \n"],
}


@pytest.mark.parametrize("read", NOTHING, ids=lambda read: read.__name__)
def test_nothing_to_read(read: Any) -> None:
    assert [text for text in NOTHING[read] if read(text) is not None] == []


def test_numbers_of_any_script() -> None:
    digits = [chr(code) for code in range(sys.maxunicode + 1) if chr(code).isdecimal()]
    assert len(digits) > 600
    for digit in digits:
        assert last_number(f"-{digit}{digit}.{digit}") == -Fraction(111 * int(digit), 10)


def test_large_numbers_are_exact() -> None:
    nines = "9" * MAX_DIGITS
    assert last_number(nines) == 10**MAX_DIGITS - 1
    assert last_number(f"-{nines[1:]}.9") == Fraction(1 - 10**MAX_DIGITS, 10)
    assert last_number(f"0.{'0' * 5000}1") == Fraction(1, 10**5001)
    assert last_number(f"1e{MAX_DIGITS}") == 10**MAX_DIGITS
    assert last_number(f"1e-{MAX_DIGITS}") == Fraction(1, 10**MAX_DIGITS)
    assert last_number(f"{nines}/{nines}") == 1


@pytest.mark.parametrize(
    "numeral", ["9" * (MAX_DIGITS + 1), f"1e{MAX_DIGITS + 1}", "1e-99999999999999999999", "1e" + "9" * 20_000]
)
def test_numbers_out_of_bounds_have_no_value(numeral: str) -> None:
    assert last_number(f"5, or {numeral}") is None
    assert last_number(f"{numeral}/2") is None
    assert last_number(f"2/{numeral}") is None
    assert box(f"1, 2, 3, {numeral}") is None


@given(st.integers(), st.sampled_from(["{}", "It is {}.", "({})", "= {} km", "**{}**", "${}$", r"\boxed{{{}}}", "1, 2, {}"]))
def test_whole_numbers_are_read_back(number: int, frame: str) -> None:
    assert last_number(frame.format(number)) == number
    assert last_number(frame.format(f"{number:,}")) == number


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30)
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Decimal(repr(number)))
)
def test_decimals_are_read_back(number: Decimal) -> None:
    assert last_number(f"It is {number}.") == Fraction(number)


@given(st.from_regex(r"\s?[-+]?[0-9]{1,12}(\.[0-9]{1,6})?\s?", fullmatch=True), st.sampled_from([".", ","]))
def test_a_number_alone_is_that_at_the_end_of_a_text(text: str, decimal: DecimalMark) -> None:
    assert last_number(text, decimal=decimal) == last_number(f"So it is {text}", decimal=decimal)


@given(st.fractions())
def test_fractions_are_read_back(number: Fraction) -> None:
    assert last_number(f"It is {number}.") == number
    sign = "-" if number < 0 else ""
    assert last_number(rf"${sign}\frac{{{abs(number.numerator)}}}{{{number.denominator}}}$") == number


@pytest.mark.parametrize(
    ("texts", "minutes"),
    [
        (["2_55", "2:55", "02:55", "14:55", "2：55", "２:５５", "It is 2:55.", "Not 3:10 but 2:55", "time_2_55"], 175),
        (["12:00", "0:00"], 0),
        (["12_05"], 5),
        (["11:59 p.m."], 719),
        (["2:55:30"], Fraction(351, 2)),
        (["2:55:59"], 175 + Fraction(59, 60)),
    ],
)
def test_clock_time(texts: list[str], minutes: int | Fraction) -> None:
    assert [clock_time(text) for text in texts] == [minutes] * len(texts)


@pytest.mark.parametrize(
    "text",
    [
        *("[10, 20, 110, 220]", "10 20 110 220", "10,20,110,220.", "(10,20),(110,220)", "<box>(10, 20) (110, 220)</box>"),
        '```json\n[{"bbox_2d": [\n  10,\n  20,\n  110,\n  220\n], "label": "player 7"}]\n```',
        *("[[10, 20], [110, 220]]", "[1, 2, 3, 4], no: [10, 20, 110, 220]", "[[1, 2, 3, 4], [10, 20, 110, 220]]"),
        *("[10, 20, 110, 220] [1, 2, 3]", "1 2 3 4\n10 20 110 220", "［１０，２０，１１０，２２０］", "[1e1, 20.0, 110, 220]"),
    ],
)
def test_box(text: str) -> None:
    assert box(text) == (10, 20, 110, 220)


def test_a_box_keeps_signs_points_and_order() -> None:
    assert box("[0.5, -.25, -3, 4]") == (Fraction(1, 2), Fraction(-1, 4), -3, 4)
    assert box("[110, 220, 10, 20]") == (110, 220, 10, 20)


@given(TEXT)
def test_a_number_is_the_last_number(text: str) -> None:
    value = number(text)
    assert value is None or value == last_number(text)


def test_every_fraction_of_one_character() -> None:
    for mark in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉":
        assert rational(f"1{mark}") == 1 + Fraction(unicodedata.numeric(mark)).limit_denominator(10)


@given(st.integers(-(10**8), 10**8), st.integers(1, 10**8), st.integers(1, 10**8))
def test_mixed_numbers_are_read_back(whole: int, top: int, extra: int) -> None:
    bottom = top + extra
    sign = -1 if whole < 0 else 1
    assert rational(f"It is {whole} {top}/{bottom}.") == whole + sign * Fraction(top, bottom)


@pytest.mark.parametrize(
    ("texts", "value"),
    [
        (["45%", "45 %", r"45\%", "45％", "45 percent", "45 Per Cent", "45% of 200 is 90", "from 40% to 45%", "٤٥٪"], "9/20"),
        (["-0.5%"], "-1/200"),
        (["1,200%"], 12),
        (["1/2%"], "1/200"),
    ],
)
def test_percent(texts: list[str], value: int | str) -> None:
    assert [percent(text) for text in texts] == [Fraction(value)] * len(texts)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("#### 1,800.", "1800", "1800"),
        ("#### $18", None, "18"),
        ("#### -5", "-5", "-5"),
        ("#### 5 #### 6", "5", "6"),
        ("####5", None, "5"),
        ("#### .,.", None, None),
        ("-$1,200.50", None, "-1200.50"),
        ("1,2,3", None, "123"),
        ("1/2", None, "2"),
        ("5.5.5", None, "5.5.5"),
        ("١٢", None, None),
        ("", None, None),
    ],
)
def test_gsm8k(text: str, strict: str | None, flexible: str | None) -> None:
    assert (gsm8k_strict(text), gsm8k_flexible(text)) == (strict, flexible)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Final Answer: Kenya", "Kenya"),
        ("**Answer:** *Kenya*", "Kenya"),
        ("answer: 5, no, ANSWER: 6\nBecause", "6"),
        ("Answer:\n\n  Kenya \nIt is the tallest.", "Kenya"),
        ("Answer: [12, 63]", "12, 63"),
        ("Answer: ", None),
        ("Answer: **", None),
        ("Kenya", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


BOX = Region((Fraction(1), Fraction(2), Fraction(3), Fraction(4)), "A")
QUAD = Region(tuple(map(Fraction, (1, 2, 3, 2, 3, 4, 1, 4))), "B")
LISTED = '[{"box": [1, 2, 3, 4], "text": "A"}, {"quad": [1, 2, 3, 2, 3, 4, 1, 4], "text": "B"}]'


@pytest.mark.parametrize(
    ("text", "regions"),
    [
        (LISTED, (BOX, QUAD)),
        (f"```json\n{LISTED}\n```", (BOX, QUAD)),
        (f"Perhaps []. No: {LISTED}", (BOX, QUAD)),
        (f"{LISTED} or rather []", ()),
        ("[]", ()),
        ("[\n{}]", (Region(()),)),
        ('[{"box": [1.0, 2e0, 3.00, 0.4e1], "text": "A"}]', (BOX,)),
        ('[{"box": [1, 2, 3, 4]}]', (BOX._replace(text=None),)),
        ('[{"box": [1, 2, 3, 4], "text": 7}]', (BOX._replace(text=None),)),
        ('[{"box": [1, 2, 3, 4.00000000000000000001]}]', (Region((*BOX.corners[:3], 4 + Fraction(1, 10**20))),)),
        ('[{"box": [1, 2, 3], "text": "A"}]', (Region((), "A"),)),
        ('[{"box": [1, 2, 3, NaN]}]', (Region(()),)),
        ('[{"box": [1, 2, 3, true]}]', (Region(()),)),
        ('[{"box": [1, 2, 3, 1e99999]}]', (Region(()),)),
        ('[{"quad": [1, 2, 3, 4]}]', (Region(()),)),
        ('[{"a": [{"box": [1, 2, 3, 4]}]}]', (Region(()),)),
        ('[{"text": "[{"}, 5, null]', (Region((), "[{"), Region(()), Region(()))),
        (LISTED[:-1], (BOX, QUAD)),
        (LISTED[:-3], (BOX,)),
        (LISTED[:35], (BOX,)),
        (LISTED[:34], None),
        ("[{", None),
        ('[{"box": [1, 2, 3, 4], "text": "A"}, {oops}]', None),
        ("[1, 2, 3, 4]", None),
        ('{"box": [1, 2, 3, 4]}', None),
        ("", None),
    ],
)
def test_boxes(text: str, regions: tuple[Region, ...] | None) -> None:
    assert boxes(text) == regions


def test_boxes_of_any_depth_and_length() -> None:
    assert boxes('[{"a":' * 100_000) is None
    assert boxes('[{"a":' + "[" * 100_000 + "]" * 100_000 + "}]") in (None, (Region(()),))
    assert boxes(f"[{', '.join(['{}'] * 20_000)}]") == (Region(()),) * 20_000
    nines = "9" * MAX_DIGITS
    assert boxes(f'[{{"box": [{nines}, 0, 1, 2]}}]') == (Region((10**MAX_DIGITS - 1, 0, 1, 2)),)
    assert boxes(f'[{{"box": [{nines}9, 0, 1, 2]}}]') == (Region(()),)


def test_region() -> None:
    assert region(BOX) == BOX
    assert region(QUAD) == QUAD
    assert region(Region((0.1, 2, 3, 4))) == Region((Fraction(1, 10), 2, 3, 4))  # type: ignore[arg-type]
    assert region(Region((1, 2, 3, float("inf")))) == Region(())  # type: ignore[arg-type]
    assert region({"box": (1, 2, 3, 4), "quad": list(QUAD.corners)}).corners == QUAD.corners
    assert region(None) == region([1, 2, 3, 4]) == Region(())


@pytest.mark.parametrize(
    ("value", "worth"),
    [(0.1, "1/10"), (1e22, 10**22), (np.float32(0.1), "1/10"), (np.int64(-3), -3), (Decimal("0.30"), "3/10")],
)
def test_as_fraction(value: Any, worth: int | str) -> None:
    assert as_fraction(value) == Fraction(worth)
    assert as_fraction(10**20000) == 10**20000
    for nothing in (None, "7", True, float("nan"), float("-inf"), Decimal("NaN"), Decimal("1e999999999"), [7], 1j):
        assert as_fraction(nothing) is None


@given(text=TEXT)
def test_no_text_raises(text: str) -> None:
    for name in EXTRACTORS:
        answer = EXTRACTORS[name](text)
        match name:
            case "clock":
                assert answer is None or 0 <= answer < 720
            case "box":
                assert answer is None or [type(side) for side in answer] == [Fraction] * 4
            case "boxes":
                assert answer is None or all(len(one.corners) in (0, 4, 8) for one in answer)
            case "gsm8k_strict" | "gsm8k_flexible" | "final_answer" | "text":
                assert answer is None or (isinstance(answer, str) and answer)
            case _:
                assert answer is None or isinstance(answer, Fraction)


def test_the_registry() -> None:
    for name, extractor in EXTRACTORS.items():
        assert extractor.name == name
        assert extractor.version >= 1
        assert extractor.description
        assert extractor("") is None
        assert pickle.loads(pickle.dumps(extractor)) == extractor


def corpus() -> Iterator[str]:
    """Texts on which two versions of an extractor would differ."""
    numbers = "5|-5|1,200|1.5|.5|3/4|-3/4|2 1/2|2½|1e3|1.5 × 10^-3|45%|1/0|007|１２|$1,200.|5%-10%|5€-10€|(a).5"
    times_and_boxes = ["2:55", "14_55", "2:75", "12:00:30", "[1, 2, 3, 4]", "(1,2),(3,4)", LISTED, LISTED[:60], "[]"]
    frames = "{}|It is {}.|#### {}|####{}|Answer: {}|{} or 7|7, no, {}|-{}|({})|{}%|${}$|{} percent|\x00{}"
    for piece in [*numbers.split("|"), *times_and_boxes, r"\frac{3}{4}", "...", "x"]:
        for frame in frames.split("|"):
            yield frame.replace("{}", piece)


# If this fails, answers have changed that were given before: raise the version of the extractor, and enter its new digest.
DIGESTS = {
    "last_number": (3, "689738040bd7"),
    "number": (2, "adb3917999f0"),
    "rational": (3, "689738040bd7"),
    "percent": (3, "5dcb8e32b823"),
    "gsm8k_strict": (1, "3da6ecbec0a1"),
    "gsm8k_flexible": (1, "8b43c7f20514"),
    "clock": (1, "175dd8a0df97"),
    "box": (2, "df3cd728a80e"),
    "boxes": (1, "d57b2ebfc0d2"),
    "final_answer": (1, "1f5b4d4c4bc3"),
    "text": (1, "acecfef9822c"),
}


@pytest.mark.parametrize("name", EXTRACTORS)
def test_a_version_stands_for_its_answers(name: str) -> None:
    answers = "\n".join(repr(EXTRACTORS[name](text)) for text in corpus())
    digest = hashlib.sha256(answers.encode()).hexdigest()[:12]
    assert (EXTRACTORS[name].version, digest) == DIGESTS[name]


@pytest.mark.parametrize(
    "piece",
    [
        *("7", "1,", "111,", "1 ", "-", ".", "1/", "1e", "1.", "-$", "\\frac{", "\\frac{1}{", "1 × 10^", "2:55:", "(1,2),"),
        *("11,", "1.111", "111 ", "1 000 ", "1'", "^", "1^{", "^(", "\\frac1", "1 x 10", "1²"),
        *("\u200f", "1{,}", "1%", "½", "1 1/", " ", "\n", "#### ", "answer:", "Answer*"),
        *("[{", "[]", '[{"', '\\"{', '[{"a":', '[{"":[{},', "{}", "[{},"),
    ],
)
def test_time_grows_with_the_text_alone(piece: str) -> None:
    def read(size: int) -> None:
        for text in (piece * (size // len(piece)), f"{piece}{' ' * size}{piece}"):
            for extractor in EXTRACTORS.values():
                extractor(text)

    assert is_linear(read, 2_500)
