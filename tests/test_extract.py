"""The extractors read what a person would, and no text makes them raise or hang."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.evaluation.extract import MAX_DIGITS, box, clock_time, last_number

# Text that is mostly what numbers, times and boxes are made of.
NUMERIC = st.text(alphabet="0123456789.,-+/eE:_ ()[]{}%$×^\\\n−１٣\u200f\u2009x")
TEXT = st.one_of(st.text(), NUMERIC)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5", 5),
        ("So 3 + 4 = 7", 7),
        ("#### 1,234,567", 1234567),
        ("That makes $1,200.", 1200),
        ("-$1,200.50", "-1200.5"),
        (r"-\$5", -5),
        ("costs $-5", -5),
        ("50%", 50),
        ("5kg", 5),
        ("-3/4", "-3/4"),
        ("3/-4", "-3/4"),
        ("1.5/0.5", 3),
        ("0/7", 0),
        ("on 14/11/2024", 2024),
        ("-1/2/3", 3),
        ("1.5e-3", "0.0015"),
        ("1.5E+3", 1500),
        ("1.5 × 10^-3", "0.0015"),
        (r"1.5 \times 10^{8}", 150000000),
        ("2*10^3 m", 2000),
        (r"\boxed{\frac{3}{4}}", "3/4"),
        (r"x = -\dfrac{3}{4}$", "-3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"\frac{1{,}200}{7}", "1200/7"),
        (r"10,\!236", 10236),
        ("−7", -7),
        ("–7", -7),
        ("１，２３４．５", "1234.5"),
        ("－１２／５", "-12/5"),
        ("١٬٢٣٤٫٥", "1234.5"),
        ("\u200f-\u200e5\u202c", -5),
        ("1\u200b2", 12),
        (".5", "0.5"),
        ("-.5", "-0.5"),
        ("wait...5", 5),
        ("0007", 7),
        ("+7", 7),
        ("5.", 5),
        ("pages 3-5", 5),
        ("3–5", 5),
        ("2024-11-14", 14),
        ("(a)-5", 5),
        ("GPT-4", 4),
        ("well--5", 5),
        ("- 5 apples", 5),
        ("(-5)", -5),
        ("5-(-3)", -3),
        ("1,2", 2),
        ("1,2345", 2345),
        ("12345,678", 678),
        ("1,200,30", 30),
        ("1.2.3", 3),
        ("1e5e7", 7),
        ("9e", 9),
        ("10²", 10),
    ],
)
def test_last_number(text: str, number: int | str) -> None:
    assert last_number(text) == Fraction(number)


@pytest.mark.parametrize(
    "text", ["", "no idea", "-", ".", "1/0", "5, for 1/0 has no value", "0/0", "½", "inf", "nan", "²", "\ud800"]
)
def test_no_number(text: str) -> None:
    assert last_number(text) is None


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


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**30), max_value=10**30))
def test_decimals_are_read_back(number: Decimal) -> None:
    assert last_number(f"It is {number}.") == Fraction(number)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_read_back(number: float) -> None:
    read = last_number(repr(number))
    assert read is not None
    assert float(read) == number


@given(st.fractions())
def test_fractions_are_read_back(number: Fraction) -> None:
    assert last_number(f"It is {number}.") == number
    sign = "-" if number < 0 else ""
    assert last_number(rf"${sign}\frac{{{abs(number.numerator)}}}{{{number.denominator}}}$") == number


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("2_55", 175),
        ("2:55", 175),
        ("02:55", 175),
        ("14:55", 175),
        ("2：55", 175),
        ("２:５５", 175),
        ("12:00", 0),
        ("0:00", 0),
        ("12_05", 5),
        ("11:59 p.m.", 719),
        ("It is 2:55.", 175),
        ("Not 3:10 but 2:55", 175),
        ("time_2_55", 175),
        ("2:55:30", Fraction(351, 2)),
    ],
)
def test_clock_time(text: str, minutes: int | Fraction) -> None:
    assert clock_time(text) == minutes


@pytest.mark.parametrize(
    "text", ["", "no idea", "255", "2.55", "2:5", "2:555", "2:75", "24:00", "123:45", "1:02:03:04", "2:55:61", "2:55, no, 2:75"]
)
def test_no_time(text: str) -> None:
    assert clock_time(text) is None


@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from([":", "_"]))
def test_times_are_read_back(hour: int, minute: int, mark: str) -> None:
    assert clock_time(f"It is {hour}{mark}{minute:02}.") == (hour * 60 + minute) % 720


@pytest.mark.parametrize(
    "text",
    [
        "[10, 20, 110, 220]",
        "10 20 110 220",
        "10,20,110,220.",
        "(10,20),(110,220)",
        "<box>(10, 20) (110, 220)</box>",
        "[[10, 20], [110, 220]]",
        '```json\n[{"bbox_2d": [\n  10,\n  20,\n  110,\n  220\n], "label": "player 7"}]\n```',
        "[1, 2, 3, 4], no: [10, 20, 110, 220]",
        "[[1, 2, 3, 4], [10, 20, 110, 220]]",
        "[10, 20, 110, 220] [1, 2, 3]",
        "1 2 3 4\n10 20 110 220",
        "［１０，２０，１１０，２２０］",
        "[1e1, 20.0, 110, 220]",
    ],
)
def test_box(text: str) -> None:
    assert box(text) == (10, 20, 110, 220)


def test_a_box_keeps_signs_points_and_order() -> None:
    assert box("[0.5, -.25, -3, 4]") == (Fraction(1, 2), Fraction(-1, 4), -3, 4)
    assert box("[110, 220, 10, 20]") == (110, 220, 10, 20)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no box",
        "7",
        "[10, 20, 110]",
        "[1, 2, 3, 4, 5]",
        "(1,2),(3,4),(5,6)",
        "(1,2),(3,4),(5,6),(7,8)",
        "1-2-3-4",
        "(1,2), or (3,4)",
    ],
)
def test_no_box(text: str) -> None:
    assert box(text) is None


@given(TEXT)
def test_no_text_raises(text: str) -> None:
    number, minutes, sides = last_number(text), clock_time(text), box(text)
    assert number is None or isinstance(number, Fraction)
    assert minutes is None or 0 <= minutes < 720
    assert sides is None or [type(side) for side in sides] == [Fraction] * 4


@pytest.mark.parametrize(
    "piece",
    [
        "7",
        "1,",
        "111,",
        "1 ",
        "-",
        ".",
        "1/",
        "1e",
        "1.",
        "-$",
        "\\frac{",
        "\\frac{1}{",
        "1 × 10^",
        "2:55:",
        "(1,2),",
        "\u200f",
        "1{,}",
    ],
)
def test_time_grows_with_the_text_alone(piece: str) -> None:
    size = 50_000
    texts = [piece * (size // len(piece)), f"{piece}{' ' * size}{piece}"]
    began = time.perf_counter()
    for text in texts:
        last_number(text), clock_time(text), box(text)
    assert time.perf_counter() - began < 5  # 0.1 s; were it quadratic, minutes
