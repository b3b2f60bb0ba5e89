"""Every reader of numbers reads every notation of the table: extractors, tasks, rewards, and the documentation."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.answers.number_cases import CASES, Case, table

from numerate.answers import number_distribution
from numerate.answers.extract import EXTRACTORS
from numerate.answers.numerals import last_number, number, percent, rational
from numerate.lab.data import TASKS
from numerate.rewards import REWARDS

PAGE = Path(__file__).parents[2] / "docs" / "numbers.md"
FRAMES = ("{}", "It is {}.", "({})", "#### {}", "7 or {} in all", "**{}**")
LAST = {"last_number": last_number, "rational": rational}  # readers of the last number of a text
WHOLE = {"number": number}  # readers of texts that are a number
SHARES = {"percent": percent}
# A published rule, or no number.
OTHERS = {"gsm8k_strict", "gsm8k_flexible", "clock", "box", "boxes", "final_answer", "text"}


def test_every_extractor_is_checked() -> None:
    assert {*LAST, *WHOLE, *SHARES, *OTHERS} == {*EXTRACTORS}
    for name, reader in (LAST | WHOLE | SHARES).items():
        assert EXTRACTORS[name].function is reader


@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text.encode("ascii", "backslashreplace").decode())
def test_extractors(case: Case, decimal: str) -> None:
    value = case.value(decimal)
    for frame in FRAMES if value is not None else FRAMES[:4]:
        text = frame.format(case.text)
        for read in LAST.values():
            assert read(text, decimal=decimal) == value, text
    for read in WHOLE.values():
        if case.whole and case.comma == "same":
            assert read(f" {case.text}\n", decimal=decimal) == value
        elif decimal == ".":
            assert read(case.text, decimal=decimal) == (value if case.whole else None)
        else:  # a text may be a number with one mark only
            assert read(case.text, decimal=decimal) in (None, value)
    if case.whole and value is not None and not case.text.endswith("."):
        for read in SHARES.values():
            assert read(f"{case.text}%, or 7", decimal=decimal) == value / 100
    if decimal == ".":
        assert [EXTRACTORS[name](case.text) for name in LAST] == [value] * len(LAST)


def test_tasks() -> None:
    kinds = [kind for kind in TASKS.values() if kind.extractor in LAST]
    assert kinds
    for kind in kinds:
        assert [kind().read(f"It is {case.text}.") for case in CASES] == [case.value() for case in CASES]


@pytest.mark.parametrize("decimal", [".", ","])
def test_rewards(decimal: str) -> None:
    values = [case.value(decimal) for case in CASES]
    plain = ["no idea" if value is None else str(value) for value in values]
    readers = [reward for reward in REWARDS.values() if "decimal" in inspect.signature(reward).parameters]
    assert readers
    for reward in readers:
        scores = [reward(texts, [12] * len(CASES), decimal=decimal) for texts in ([case.text for case in CASES], plain)]
        assert scores[0] == scores[1]


def test_sampled_answers() -> None:
    for case in CASES:
        found = number_distribution([case.text, "8", "8", "8"])
        assert found.covered == (0.75 if case.value() is None else 1), case.text
        assert case.value() is None or float(case.value()) in found.floats, case.text  # type: ignore[arg-type]


def test_an_unknown_mark_is_refused() -> None:
    for read in (LAST | WHOLE | SHARES).values():
        with pytest.raises(ValueError, match=r"decimal='\*' is not known"):
            read("5", decimal="*")


def test_the_page_shows_some_of_the_cases() -> None:
    _, section = PAGE.read_text(encoding="utf-8").split("## Numbers in answers")
    shown = [line for line in section.splitlines() if line.startswith("| `")]
    assert len(shown) > 20
    assert [line for line in shown if line not in table().splitlines()] == []
