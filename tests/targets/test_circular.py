"""Times and angles: the end of the scale is next to its beginning."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.targets.small import written

from numerate.targets import CircularBell

MINUTE = {"width": 1, "shape": "uniform"}


@pytest.mark.parametrize(
    ("hours", "label", "texts"),
    [
        (24, "23:59", ("23:58", "23:59", "00:00")),
        (24, "9:59", ("9:58", "9:59", "10:00")),
        (24, "10:00", ("09:59", "10:00", "10:01")),
        (24, "11:59 PM", ("11:58 PM", "11:59 PM", "12:00 AM")),
        (24, "12:59 p.m.", ("12:58 p.m.", "12:59 p.m.", "1:00 p.m.")),
        (12, "12_00", ("11_59", "12_00", "12_01")),
        (12, "12_59", ("12_58", "12_59", "1_00")),
        (12, "01:00", ("12:59", "01:00", "01:01")),
    ],
)
def test_clock_times(hours: int, label: str, texts: tuple[str, ...]):
    assert CircularBell.clock(hours=hours, **MINUTE)(label).texts == texts


def test_seconds_and_writing():
    assert len(CircularBell.clock(hours=24, **MINUTE)("23:59:30")) == 121
    assert CircularBell.clock(width="0.0167", hours=24, shape="uniform")("23:59:59").texts == ("23:59:58", "23:59:59", "00:00:00")
    assert CircularBell.clock(padded=True, **MINUTE)("10_00").texts == ("09_59", "10_00", "10_01")
    assert CircularBell.clock(zero=True, **MINUTE)("0_00").texts == ("11_59", "0_00", "0_01")


def test_angles():
    assert CircularBell.angle(**MINUTE)("359").texts == ("358", "359", "0")
    assert CircularBell.angle(360, lowest=-180, **MINUTE)("-180").texts == ("179", "-180", "-179")
    assert CircularBell.angle(width="0.5", shape="uniform")("0.0").texts[:2] == ("359.5", "359.6")
    long = "100." + "0" * 33
    assert CircularBell.angle(width="1e-34", shape="uniform")(long + "5").texts == (long + "4", long + "5", long + "6")
    assert CircularBell.angle(width=100, shape="uniform")("1e2").texts == ("0e2", "1e2", "2e2")


def test_the_whole_circle_wraps_onto_itself():
    """A wide bell is the sum of its windings, by brute force."""
    answers = written(CircularBell.angle(12, width=5)("3"))
    windings = np.arange(-40, 41)
    expected = np.array([np.exp(-np.square((value - 3 + 12 * windings) / 5) / 2).sum() for value in range(12)])
    expected /= expected.sum()
    assert answers == pytest.approx({str(value): p for value, p in enumerate(expected)}, rel=1e-6)


@given(st.integers(0, 1439), st.sampled_from(["gaussian", "laplace", "uniform"]))
def test_turning_the_dial_turns_the_bell(minute: int, shape):
    target = CircularBell.clock(width=3, hours=24, shape=shape)
    noon = written(target("12:00"))
    turned = written(target(f"{minute // 60:02}:{minute % 60:02}"))

    def moved(text: str) -> str:
        there = (60 * int(text[:2]) + int(text[3:]) - 720 + minute) % 1440
        return f"{there // 60:02}:{there % 60:02}"

    assert turned == {moved(text): p for text, p in noon.items()}


def test_width_0_and_hard():
    assert CircularBell.clock(0)("2_55").texts == ("2_55",)
    assert written(CircularBell.clock(hard=0.4, **MINUTE)("2_55")) == pytest.approx({"2_54": 0.2, "2_55": 0.6, "2_56": 0.2})


def test_a_scale_of_ones_own():
    days = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
    target = CircularBell(
        7, 1, "uniform", lambda text: (Fraction(days.index(text)), Fraction(1)), lambda value, label: days[int(value)]
    )
    assert target("Mon").texts == ("Sun", "Mon", "Tue")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda label=label: CircularBell.clock(1)(label), "is not a time on 12 hours: expected 2_55")
            for label in ("25:00", "14:75", "noon", "14", "2:55 PM")
        ),
        (lambda: CircularBell.clock(1, hours=10), "hours=10 is not known: expected one of 12, 24"),
        (lambda: CircularBell(0, 1), "period=0 is out of range"),
        (lambda: CircularBell(7, 1, read="x"), "read='x' cannot be called"),
        (lambda: CircularBell.clock(width=5, step=7), "step=7 does not divide period=720: expected a part of it"),
        (lambda: CircularBell.clock(width=5, step=0.5)("2_55"), "step=0.5 is no multiple of 1, the last decimal of label='2_55'"),
        (lambda: CircularBell.angle(width=5, step=0), "step=0 is out of range"),
    ],
)
def test_what_is_refused(call, message: str):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def test_whole_steps_from_the_label():
    assert CircularBell.clock(width=5, step=5, shape="uniform")("12_02").texts == ("11_57", "12_02", "12_07")
    assert CircularBell.clock(width=0.5, step=0.5, hours=24, shape="uniform")("23:59:30").texts == (
        "23:59:00",
        "23:59:30",
        "00:00:00",
    )
    assert CircularBell.angle(width=45, step=45, shape="uniform")("0").texts == ("315", "0", "45")
