"""Round trips of numbers and texts in every format, and the errors."""

from __future__ import annotations

import re
from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerate.formats import CLOCK, KINDS, FormatRows, NumberFormat, as_format
from numerate.formats.kinds import STEPS

_DIGITS = st.text("0123456789", min_size=1, max_size=9)
_CANONICAL = st.from_regex(r"-?(0|[1-9][0-9]{0,8})(\.[0-9]{1,6})?", fullmatch=True)


@given(numbers=st.lists(_CANONICAL, min_size=1, max_size=4))
def test_a_number_is_read_as_it_was_written(numbers: list[str]) -> None:
    """Of every kind the same value, and but for padding the same text."""
    for kind in KINDS:
        format = NumberFormat.fit(numbers, kind)
        for number in numbers:
            read = format.read(format.write(number))
            assert read is not None, kind
            assert Decimal(read) == Decimal(number), kind
            assert format.padded or read == number, kind
            assert format.fits(number), kind
        if len({len(number.lstrip("-").partition(".")[0]) for number in numbers}) == 1 and len(numbers) == 1:
            assert format.read(format.write(numbers[0])) == numbers[0], kind  # padded to its own width


@given(whole=_DIGITS, decimals=st.none() | _DIGITS, sign=st.sampled_from(["", "-", "+"]))
def test_zeros_and_signs_are_kept(whole: str, decimals: str | None, sign: str) -> None:
    number = f"{sign}{whole}" + ("" if decimals is None else f".{decimals}")
    for kind in KINDS:
        sizes = ((len(whole), 12), (len(decimals or ""), 12)) if "padded" in kind else ()
        format = NumberFormat(kind, *sizes)  # padded with as many zeros as the fewest digits and decimals say
        assert format.read(format.write(number)) == number, kind


@given(texts=st.lists(_CANONICAL, min_size=2, max_size=2))
def test_different_numbers_have_different_texts(texts: list[str]) -> None:
    for kind in KINDS:
        format = NumberFormat.fit(texts, kind)
        same = texts[0] == texts[1]
        if format.padded:
            same = Decimal(texts[0]) == Decimal(texts[1]) and texts[0][:1] == texts[1][:1]
        assert (format.write(texts[0]) == format.write(texts[1])) == same, kind


@given(text=st.text("0123456789-+.,: ", max_size=12))
def test_whatever_is_read_is_written_again(text: str) -> None:
    """A text is a number in the format only if writing that number gives the text, but for another width."""
    for kind in KINDS:
        format = NumberFormat(kind, 3, 2) if "padded" in kind else NumberFormat(kind)
        read = format.read(text)
        if read is not None and not format.padded:
            assert format.write(read) == text, kind
        elif read is not None:
            fitted = NumberFormat.fit([read], kind)
            assert Decimal(fitted.read(fitted.write(read)) or "NaN") == Decimal(read), kind


@given(numbers=st.lists(_CANONICAL, min_size=1, max_size=4))
def test_texts_are_read_as_they_were_written(numbers: list[str]) -> None:
    text = "On 2024-11-14, A380: " + " and ".join(f"{number} m" for number in numbers) + "."
    for kind, which in product(KINDS, ("answer", "all")):
        format = NumberFormat.fit(numbers, kind)
        written = format.write_text(text, which)
        assert written.startswith("On 2024-11-14, A380: "), kind
        assert re.sub(r"[-0-9. ]", "", format.read_text(written, which)) == re.sub(r"[-0-9. ]", "", text), kind
        values = [Decimal(found) for found in re.findall(r"(-?[0-9.]+) m", format.read_text(written, which))]
        assert values == [Decimal(number) for number in numbers], kind
        assert format.padded or format.read_text(written, which) == text, kind


def test_every_kind_says_what_it_is_for() -> None:
    for step in STEPS.values():
        assert step.summary
        assert step.__doc__ is not None
        assert "For " in step.__doc__
        assert len(step.__doc__.split("\n\n")) >= 2


def test_fit_finds_width_and_decimals() -> None:
    format = NumberFormat.fit(["7", -12.5, Decimal("1984.25"), 3], "padded+spaced")
    assert format == NumberFormat("padded+spaced", (1, 4), (0, 2))
    assert NumberFormat(**format.settings) == format
    assert NumberFormat.fit([7], "spaced+padded").kind == "padded+spaced"
    assert NumberFormat.fit([], "spaced") == NumberFormat("spaced")
    assert NumberFormat.fit(["1,234", ".5"], "padded") == NumberFormat("padded", (1, 4), (0, 1))


def test_a_number_that_does_not_fit() -> None:
    format = NumberFormat("padded", 3, 1)
    with pytest.raises(ValueError, match=r"number='1984' does not fit into digits=\(1, 3\) and decimals=\(0, 1\)"):
        format.write("1984")
    assert format.write("1984", strict=False) == "1984.0"
    assert format.write("3.14", strict=False) == "003.14"
    assert format.read("1984.0") == "1984"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NumberFormat("padded+exponent"), "kind='padded\\+exponent' is not known: expected one of 'plain', 'padded'"),
        (lambda: NumberFormat(3), "kind=3 is not known"),
        (
            lambda: NumberFormat("padded"),
            r"digits=None and decimals=None, and kind='padded' pads numbers: expected the most digits and decimals, such as "
            r"digits=\(1, 5\), decimals=\(1, 5\); use NumberFormat.fit",
        ),
        (lambda: NumberFormat("padded", digits=3), "^decimals=None, and kind='padded' pads numbers"),
        (lambda: NumberFormat("padded", decimals=3), "^digits=None, and kind='padded' pads numbers"),
        (lambda: NumberFormat("spaced", digits=3), "digits=3 has no effect on kind='spaced'"),
        (lambda: NumberFormat("padded", digits=0, decimals=0), "digits=0 is out of range"),
        (lambda: NumberFormat("padded", digits=(3, 1), decimals=0), r"digits=\(3, 1\) is out of range"),
        (lambda: NumberFormat.fit([], "padded"), "labels is empty"),
        (lambda: NumberFormat("spaced").write("1e5"), "number='1e5' is not a plain number.*powers of ten"),
        (lambda: NumberFormat("spaced").write("about 5"), "number='about 5' is not a plain number"),
        (lambda: NumberFormat("spaced").write(float("nan")), "is not a plain number"),
        (lambda: NumberFormat("spaced").write_text("1e5"), "powers of ten"),
        (lambda: NumberFormat("spaced").write_text("5", "last"), "numbers='last' is not known: expected one of 'answer', 'all'"),
        (lambda: as_format("spacy"), "Did you mean 'spaced'"),
        (lambda: FormatRows("spaced")({"input_ids": [1]}), "columns 'input_ids': expected text, prompt and completion"),
    ],
)
def test_errors(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_which_numbers_of_a_text() -> None:
    format = NumberFormat("spaced")
    assert format.write_text("id 123: 45 for 67", "all", keep=re.compile(r"id \d+")) == "id 123: 4 5 for 6 7"
    assert format.write_text("price: 45, 67", re.compile(r"price: (\d+)")) == "price: 4 5, 67"
    assert format.write_text("45 67", [(3, 5)]) == "45 6 7"
    assert format.write_text("1e5 is 100", strict=False) == "1e5 is 1 0 0"
    assert format.write_text("no number") == "no number"
    hours = NumberFormat("padded", 2, 0)
    assert [hours.write_text(time, CLOCK) for time in ("2_55", "11_55")] == ["02_55", "11_55"]
    assert hours.read_text("02_55", CLOCK) == "2_55"


def test_rows_of_chats_and_parts() -> None:
    rows = FormatRows("spaced", prompts="all")
    asked = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "12?"}]}]
    answer = [{"role": "assistant", "content": "It is 34."}]
    row = rows({"prompt": asked, "completion": answer, "id": 7})
    assert row["prompt"][0]["content"] == [{"type": "image"}, {"type": "text", "text": "1 2?"}]
    assert row["completion"] == [{"role": "assistant", "content": "It is 3 4."}]
    assert row["id"] == 7
    assert rows.prompt(asked) == row["prompt"]
    assert asked[0]["content"][1]["text"] == "12?"  # the caller's row stays as it is
    fitted = FormatRows.fit([{"messages": [*asked, *answer]}, {"messages": [{"role": "assistant", "content": "5678"}]}], "padded")
    assert fitted.format == NumberFormat("padded", (2, 4), 0)
    assert FormatRows("spaced", columns=("target",))({"target": "12", "text": "12"}) == {"target": "1 2", "text": "12"}


def test_a_map_for_datasets() -> None:
    from datasets import Dataset as Table

    table = Table.from_dict({"prompt": ["12 + 30 =", "1 + 2 ="], "completion": [" 42", " 3"]})
    rows = FormatRows.fit(table, "padded+reversed", prompts="all")
    assert table.map(rows)[0] == {"prompt": "21 + 03 =", "completion": " 24"}
