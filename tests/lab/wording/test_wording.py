"""Numbers, measures and untrusted text as the report and the command line write them."""

from __future__ import annotations

import math

import pytest

from numerate.answers.metrics import METRICS
from numerate.lab.wording.measures import measure
from numerate.lab.wording.text import listed, p_text, percent, rounded, safe_text


def test_numbers():
    accuracy, gap = measure("exact"), measure("time_gap")
    assert (accuracy.value(0.5731), accuracy.difference(-0.0123)) == ("57.3 %", "−1.2 points")
    assert (accuracy.signed(-0.0001), accuracy.signed_range(-0.02, 0.1)) == ("0.0", "−2.0 to +10.0")
    assert (gap.value(12.5), gap.value(math.inf)) == ("12.5 min", "∞")  # a missing time is a gap of 720 minutes
    error = measure("relative_error")
    assert (error.value(math.inf), error.score(math.inf), error.range(0.5, math.inf)) == (
        "no number",
        "no number",
        "50.0 to ∞",
    )
    assert measure("relative_error").heading == "median relative error, %"
    assert [p_text(p) for p in (1e-9, 0.0123, 0.5)] == ["< 0.001", "0.012", "0.50"]
    assert [rounded(x) for x in (0, 1234567, 1234.5, 12.345, 0.012345, -1e-9)] == [
        *("0", "1.23e+06", "1,234", "12.3", "0.0123", "-1.00e-09")
    ]
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]


def test_every_measure_has_a_name_and_a_direction():
    for name, metric in METRICS.items():
        assert measure(name).higher_is_better is metric.higher_is_better
        assert "_" not in measure(name).title


def test_safe_text():
    assert safe_text("a" * 200) == "a" * 159 + "…"
    assert safe_text("a\tb\nc") == "a\tb\nc"
    assert safe_text("שלום 中文 é") == "שלום 中文 é"
    assert safe_text("\x1b[31m\u2066x") == "⟨U+001B⟩[31m⟨U+2066⟩x"


@pytest.mark.parametrize(
    ("share", "text"), [(0.103, "+10.3 %"), (-1.0, "−100.0 %"), (29.458, "+2,946 %"), (1e30, "+1.00e+32 %"), (0.0, "0.0 %")]
)
def test_a_large_change_has_three_digits(share: float, text: str):
    assert percent(share) == text
