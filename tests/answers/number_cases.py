r"""How numbers in answers are written, and the number that every reader has to find. docs/numbers.md shows some of them.

Add a notation here: the readers, tasks, rewards and the page are checked against this list.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple


class Case(NamedTuple):
    """A text and its last number, None if it has none."""

    text: str
    number: str | None
    note: str = ""
    comma: str | None = "same"
    """The last number with ``decimal=","``."""

    whole: bool = True
    """Whether the text is one number and nothing else."""

    def value(self, decimal: str = ".") -> Fraction | None:
        number = self.number if decimal == "." or self.comma == "same" else self.comma
        return None if number is None else Fraction(number)


def part(text: str, number: str | None, note: str = "", comma: str | None = "same") -> Case:
    """Return a case whose text has more in it than the number."""
    return Case(text, number, note, comma, whole=False)


CASES = [
    Case("42", "42"),
    Case("007", "7"),
    Case("+7", "7"),
    Case("5.", "5"),
    Case("12.5", "12.5", "a point is the decimal mark by default", comma="5"),
    Case(".5", "0.5", comma="5"),
    Case("４２", "42", "digits of any script"),
    Case("١٬٢٣٤٫٥", "1234.5"),
    part("no idea", None),
    # Signs and ranges
    Case("-5", "-5"),
    Case("−5", "-5", "U+2212"),
    part("(-5)", "-5"),
    part("pages 3-5", "5", "a range"),
    part("-3–-5", "-5", "a range that ends at -5"),
    part("3−−5", "-5"),
    part("3--5", "5", "a range in LaTeX"),
    part("COVID-19", "19"),
    part("2024-11-14", "14", "dates and times are several numbers"),
    part("14/11/2024", "2024"),
    part("12:30", "30"),
    part("version 1.2.3", "3", comma="3"),
    # Thousands
    Case("1,234", "1234", "two readings: `decimal` decides", comma="1.234"),
    Case("1,234,567", "1234567"),
    Case("1,234.5", "1234.5", "of two marks, the last is the decimal mark"),
    Case("12,34,567", "1234567", "Indian groups", comma="567"),
    Case("1.234,5", "1234.5"),
    Case("1.234,567", "1234.567"),
    Case("1.234.567", "1234567", "a mark that occurs twice groups digits"),
    Case("1.234", "1.234", "two readings", comma="1234"),
    Case("1'234'567.8", "1234567.8"),
    Case("1’000", "1000"),
    Case("1_000", "1000", "groups of three only"),
    Case("1\u00a0234\u00a0567,8", "1234567.8", "no-break spaces"),
    Case("1\u2009234", "1234", "a thin space"),
    Case("1\u202f234", "1234", "a narrow no-break space"),
    Case(r"2\,500", "2500", "LaTeX"),
    Case(r"10{,}236", "10236", comma="10.236"),
    Case("1 000 000", "1000000", "no number begins with 0: the spaces group digits"),
    Case("1 000,5", "1000.5"),
    part("12 345", "345", "two readings: two numbers by default", comma="12345"),
    part("12 345,6", "6", "two readings", comma="12345.6"),
    part("3,14", "14", "two readings: two numbers by default", comma="3.14"),
    part("0,5", "5", "two readings", comma="0.5"),
    part("1,2,3", "3"),
    part("1,200,30", "30", "not a grouping"),
    # Fractions
    Case("3/4", "3/4"),
    Case("-3/4", "-3/4"),
    Case("2 1/2", "5/2"),
    Case("½", "1/2"),
    Case("-2½", "-5/2"),
    Case("1⁄2", "1/2"),
    Case("2¹⁄₂", "5/2"),
    Case(r"\frac{3}{4}", "3/4"),
    Case(r"-\dfrac{3}{4}", "-3/4"),
    Case(r"\frac12", "1/2"),
    Case(r"2\frac{1}{2}", "5/2"),
    part("1/0", None, "no value"),
    # Powers
    Case("1e5", "100000"),
    Case("1E+5", "100000"),
    Case("1.5e-3", "0.0015", comma="1/200"),
    Case("10^5", "100000"),
    Case("10^{-5}", "0.00001"),
    Case("10⁵", "100000"),
    Case("10⁻³", "0.001"),
    Case("2**10", "1024"),
    Case("-2^2", "-4"),
    Case("3 x 10^3", "3000"),
    Case("3 × 10³", "3000"),
    Case("3·10^-2", "0.03"),
    Case(r"3 \times 10^{8}", "300000000"),
    Case("2^3 × 10^5", "800000"),
    Case("2*10^3/4", "500"),
    part("2^0.5", None, "not a fraction: no value"),
    part("x^2", None, "the power of a letter is no number"),
    # Units
    Case("$1200", "1200"),
    Case("-$5", "-5"),
    Case("$-5", "-5"),
    Case("-₹5", "-5"),
    part("5 €", "5"),
    part("50%", "50", "`percent` reads 1/2"),
    part("20 m2", "20", "the power of a unit"),
    part("20 m²", "20"),
    part("9 m/s^2", "9"),
    part("9 kg/m3", "9"),
    part("5 cm^{3}", "5"),
    part("90°", "90"),
    part("3k", "3", "words and letters are not read"),
    part("3 million", "3"),
    part("H2O", "2", "digits after other letters are a number"),
]


def table() -> str:
    """Return the cases as a Markdown table."""
    rows = ['| text | last number | with `decimal=","` | note |', "|---|---|---|---|"]
    for case in CASES:
        comma = "" if case.comma == "same" else case.comma
        rows.append(f"| `{case.text}` | {case.number or 'none'} | {comma} | {case.note} |")
    return "\n".join(rows).replace("|  |", "| |").replace("|  |", "| |")
