"""The grammar of numbers against all texts that it could mean, exactly."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from tests.samples import refused

from numerate.answers import clock_time
from numerate.decode import NumberGrammar, TextGrammar

CHARACTERS = "-0123456789.,"


def numbers(
    *,
    sign: bool = True,
    digits: int | tuple[int, int] = (1, 12),
    decimals: int | tuple[int, int] = (0, 6),
    lowest: Any = None,
    highest: Any = None,
    thousands: bool = False,
    leading_zeros: bool = False,
) -> set[str]:
    """Every number of a grammar, by writing down all of them."""
    found = set()
    (least, most), (few, many) = ((size, size) if isinstance(size, int) else size for size in (digits, decimals))
    for width in range(least, most + 1):
        for places in range(few, many + 1):
            for drawn in product("0123456789", repeat=width + places):
                whole, rest = "".join(drawn[:width]), "".join(drawn[width:])
                if width > 1 and whole[0] == "0" and not leading_zeros:
                    continue
                value = Fraction(f"{whole}.{rest}" if rest else whole)
                if thousands:
                    whole = re.sub(r"(?<=\d)(?=(\d{3})+$)", ",", whole)
                text = f"{whole}.{rest}" if rest else whole
                found |= {text} if _within(value, lowest, highest) else set()
                found |= {f"-{text}"} if sign and value and _within(-value, lowest, highest) else set()
    return found


def _within(value: Fraction, lowest: Any, highest: Any) -> bool:
    low, high = (None if bound is None else Fraction(str(bound)) for bound in (lowest, highest))
    return (low is None or low <= value) and (high is None or value <= high)


def check_against(expected: set[str], grammar: NumberGrammar) -> None:
    """Compare what is accepted and allowed, for every prefix and every character after it."""
    prefixes = {text[:length] for text in expected for length in range(len(text) + 1)}
    assert sorted(grammar.following("")) == sorted(c for c in CHARACTERS if c in prefixes)
    continuations: dict[Any, tuple[bool, str]] = {}
    for prefix in prefixes:
        following = "".join(c for c in CHARACTERS if prefix + c in prefixes)
        assert grammar.allows(prefix)
        assert "".join(c for c in CHARACTERS if grammar.allows(prefix + c)) == following, prefix
        assert grammar.accepts(prefix) == (prefix in expected), prefix
        # One state, one future.
        assert continuations.setdefault(grammar.state(prefix), (prefix in expected, following)) == (prefix in expected, following)
    assert set("".join(expected)) <= set(grammar.alphabet)
    assert max(map(len, expected)) <= grammar.max_length


SETTINGS: list[dict[str, Any]] = [
    {"digits": (1, 2), "decimals": (0, 2)},
    {"digits": 2, "decimals": 1, "sign": False},
    {"digits": (3, 3), "decimals": (0, 0), "leading_zeros": True},
    {"digits": (1, 2), "decimals": (2, 2), "lowest": -3.25, "highest": 17.005},
    {"digits": (1, 2), "decimals": (0, 2), "lowest": -0.05, "highest": 0.05},
    {"digits": (1, 2), "decimals": (0, 2), "lowest": 9.99, "highest": 10.01},
    {"digits": (1, 3), "decimals": (0, 1), "lowest": -100, "highest": -99.9},
    {"digits": (1, 2), "decimals": (0, 2), "lowest": "0.3333", "highest": 0.341},
    {"digits": (1, 4), "decimals": (0, 0), "thousands": True, "lowest": -12, "highest": 1045},
    {"digits": (3, 4), "decimals": (0, 0), "thousands": True, "leading_zeros": True, "highest": 20, "sign": False},
    {"digits": (2, 3), "decimals": (0, 0), "lowest": 5, "highest": 5.5, "leading_zeros": True},
    {"digits": (2, 3), "decimals": (0, 0), "lowest": -9, "highest": 11},  # no negative number of two digits
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equal_to_all_numbers(settings: dict[str, Any]) -> None:
    check_against(numbers(**settings), NumberGrammar(**settings))


spans = st.tuples(st.integers(0, 2), st.integers(0, 2)).map(sorted).map(tuple)
bounds = st.none() | st.decimals(-120, 120, places=2) | st.fractions(-15, 15, max_denominator=9) | st.integers(-101, 101)


@examples(max_examples=50)
@given(
    st.fixed_dictionaries(
        {
            "sign": st.booleans(),
            "digits": spans.filter(lambda span: span[0] > 0),
            "decimals": spans.filter(lambda span: span[1] < 2),
            "lowest": bounds,
            "highest": bounds,
            "leading_zeros": st.booleans(),
        }
    )
)
def test_any_settings(settings: dict[str, Any]) -> None:
    if expected := numbers(**settings):
        check_against(expected, NumberGrammar(**settings))
    else:
        refused(ValueError, ["contains no number", "lowest", "highest", "expected"], lambda: NumberGrammar(**settings))


@examples(max_examples=50)
@given(st.data())
def test_a_walk_never_meets_a_dead_end(data: st.DataObject) -> None:
    """Long numbers, narrow ranges: any allowed step leads on, and the end is a number in range."""
    low = Fraction(data.draw(st.integers(-(10**18), 10**18), label="lowest"), 10**6)
    high = low + Fraction(data.draw(st.integers(0, 10**9), label="width"), 10**6)
    grammar = NumberGrammar(digits=(1, 20), decimals=(0, 8), lowest=low, highest=high, thousands=data.draw(st.booleans()))
    text = ""
    while following := grammar.following(text):
        if grammar.accepts(text) and data.draw(st.integers(0, 3)) == 0:
            break
        text += data.draw(st.sampled_from(following))
    assert grammar.accepts(text)
    assert low <= Fraction(text.replace(",", "")) <= high
    assert len(text) <= grammar.max_length


def test_floats_are_what_they_print() -> None:
    assert NumberGrammar(highest=0.1, lowest=0.1).accepts("0.1")
    assert NumberGrammar(highest=0.1 + 0.2).following("0.3") == "0"
    assert NumberGrammar(decimals=1, lowest=0.3, highest=0.3).accepts("0.3")


def test_the_largest_and_the_smallest_bound() -> None:
    assert NumberGrammar(highest="1e10000").accepts("9" * 12)
    assert not NumberGrammar(lowest="1e-10000").accepts("0")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"digits": 0}, ["digits=0", "1 <= least"]),
        ({"digits": (3, 2)}, ["digits=(3, 2)", "least <= most"]),
        ({"digits": (1, 2, 3)}, ["digits=(1, 2, 3)", "expected (least, most)"]),
        ({"digits": (1, 10**6)}, ["digits=(1, 1000000)", "<= 1000"]),
        ({"decimals": -1}, ["decimals=-1", "0 <= least"]),
        *(({"decimals": decimals}, [f"decimals={decimals}", "integer"]) for decimals in (1.5, True)),
        ({"sign": "yes"}, ["sign='yes'", "True or False"]),
        *(
            ({name: bound}, [f"{name}={bound!r}", "expected a finite number", "None for no bound"])
            for name, bound in product(("lowest", "highest"), ("five", float("nan"), float("inf"), True, "1e10001", "1e-10001"))
        ),
        ({"lowest": 3.1, "highest": 3.9, "decimals": 0}, ["contains no number", "lowest=3.1", "decimals=(0, 0)"]),
        ({"lowest": 2, "highest": 1}, ["contains no number", "highest=1"]),
        ({"highest": -1, "sign": False}, ["contains no number", "sign=True"]),
        ({"lowest": 100, "digits": (1, 2)}, ["contains no number", "digits=(1, 2)"]),
    ],
    ids=str,
)
def test_bad_settings(settings: dict[str, Any], parts: list[str]) -> None:
    refused((TypeError, ValueError), parts, lambda: NumberGrammar(**settings))


CLOCK = TextGrammar("012_", clock_time, most=3)


def test_texts_of_given_characters_by_enumeration() -> None:
    texts = ["".join(each) for size in range(5) for each in product("012_h", repeat=size)]
    for text in texts:
        good = len(text) <= 3 and "h" not in text
        assert CLOCK.state(text) == (len(text) if good else None)
        assert CLOCK.complete(text) == (text or None)
        assert CLOCK.value(text) == clock_time(text)
    assert [character for character in "012_h." if CLOCK.belongs(character)] == [*CLOCK.alphabet] == [*"012_"]
    assert CLOCK.max_length == 3


@pytest.mark.parametrize(
    ("change", "kind", "part"),
    [
        *(({"characters": characters}, ValueError, f"characters={characters!r}") for characters in ("", " ", 12, None, ["0"])),
        *(({"most": most}, ValueError, f"most={most!r}") for most in (0, -1, True, 2.0, "3", 1001)),
        ({"read": "clock_time"}, TypeError, "read='clock_time'"),
    ],
)
def test_bad_settings_of_a_text_grammar(change: dict[str, Any], kind: type[Exception], part: str) -> None:
    refused(kind, [part, "expected"], lambda: TextGrammar(**{"characters": "0123", "read": clock_time, **change}))
