"""FormatGrammar against the enumeration of all numbers of small ranges: every kind, prefix and state."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.decode.enumeration import members

from numerate.decode import FormatGrammar, NumberGrammar, format_grammar
from numerate.formats import KINDS, NumberFormat

RANGES = {
    "integers": NumberGrammar(digits=(1, 3), decimals=0, lowest=-20),
    "positive": NumberGrammar(digits=(1, 2), decimals=(0, 1), lowest=0, sign=False),
    "narrow": NumberGrammar(digits=(1, 2), decimals=(0, 1), lowest="-3.25", highest="41.5"),
    "small": NumberGrammar(digits=1, decimals=(0, 3), lowest="0.002", highest="0.31", sign=False),
    "zeros": NumberGrammar(digits=(1, 2), decimals=(0, 1), leading_zeros=True, negative_zero=True, highest=72),
}


# The power of ten of 007 is that of its first 0; with exponents, the grammar has no such numbers.
CASES = [(kind, name) for kind in KINDS[1:] for name in RANGES if "exponent" not in kind or not RANGES[name].leading_zeros]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_states_are_those_of_all_numbers(kind: str, name: str) -> None:
    numbers = RANGES[name]
    (_, digits), (_, decimals) = numbers.spans
    format = NumberFormat(kind, digits, decimals) if "padded" in kind else NumberFormat(kind)
    grammar, texts = FormatGrammar(format, numbers), members(format, numbers)
    continuations: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        for end in range(len(text) + 1):
            continuations[text[:end]].add(text[end:])
    states = {prefix: grammar.state(prefix) for prefix in continuations}
    assert None not in states.values()
    by_state = defaultdict(set)
    for prefix, state in states.items():
        by_state[state].add(frozenset(continuations[prefix]))
        for character in "-0123456789.,: x#":
            assert grammar.allows(prefix + character) == (prefix + character in continuations), prefix + character
        assert grammar.accepts(prefix) == ("" in continuations[prefix]), prefix
    assert all(len(found) == 1 for found in by_state.values())
    assert {text: grammar.value(text) for text in texts} == texts
    assert grammar.max_length == max(map(len, texts))
    assert {*grammar.alphabet} >= {*"".join(texts)}
    if "reversed" in kind and name == "integers":
        assert len(by_state) < 60 < len(continuations)  # few states, although a prefix does not bound the value


def test_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="contains no number"):
        format_grammar("reversed", lowest="0.25", highest="0.5", decimals=0)


def test_plain_is_the_number_grammar() -> None:
    assert format_grammar("plain", decimals=2) == NumberGrammar(decimals=2)
