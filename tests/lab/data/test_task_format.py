"""Formats of a task: texts that are read back to the same answers, for every task of text and every kind."""

from __future__ import annotations

import re
from functools import cache

import pytest

from numerate.formats import KINDS, NumberFormat
from numerate.lab.data import TASKS, Arithmetic, Clock, Grounding, Regression, WordProblems
from numerate.lab.data.task_format import TaskFormat, format_of, format_text

TEXT_TASKS = [
    *(kind() for kind in TASKS.values() if not kind.visual),
    Arithmetic(wording="bare", difficulty=4),
    Arithmetic(operands="decimals"),
    Arithmetic(operands="rationals", wording="bare"),
    Regression(kind="series"),
    WordProblems(largest=5000),
]


@cache
def known(task):
    """Examples of every split, each with the value of its answer and its scores; once for all kinds."""
    examples = [example for split in task.splits for example in task.examples(split, 100)]
    return [(example, task.read(example.answer), task.score(example, example.answer)) for example in examples]


@pytest.mark.parametrize("kind", KINDS)
def test_written_answers_are_read_back(kind):
    for task in TEXT_TASKS:
        if kind not in task.formats:
            continue
        format = TaskFormat.fit(task, kind, 200)
        for example, value, scores in known(task):
            said = format.answer(example.answer)
            assert task.read(format.read(said)) == value, (task, said)
            assert task.score(example, format.read(said)) == scores
            if format.plain:
                assert (format.question(example.prompt), said) == (example.prompt, example.answer)


@pytest.mark.parametrize("kind", KINDS)
def test_the_search_knows_the_answers_as_they_are_written(kind):
    for task in TEXT_TASKS:
        if task.answer_is != "one number" or kind not in task.formats:
            continue
        format = TaskFormat.fit(task, kind, 200)
        grammar = format.grammar(task.answer_grammar())
        for example in task.examples("train", 50):
            said = format.answer(example.answer)
            assert grammar.accepts(said), (task, said)
            assert grammar.value(said) == task.read(example.answer)


@pytest.mark.parametrize(
    ("task", "answer", "said"),
    [
        (Clock(), "2_05", "02_05"),
        (Clock(step=1), "12_59", "12_59"),
        (Grounding(form="thousandths"), "[7, 85, 440, 1000]", "[0007, 0085, 0440, 1000]"),
    ],
)
def test_times_and_coordinates_are_padded(task, answer, said):
    format = TaskFormat.of(task, NumberFormat("padded", digits=2 if isinstance(task, Clock) else 4, decimals=0))
    assert (format.answer(answer), format.read(said)) == (said, answer)
    for split in task.splits:
        for example in task.examples(split, 30):
            assert format.read(format.answer(example.answer)) == example.answer
    lengths = {len(format.answer(example.answer)) for example in task.examples("train", 30)}
    assert lengths == {len(said)}


@pytest.mark.parametrize(
    "task", [task for kind in TASKS.values() if (task := kind()).visual or task.formats != KINDS], ids=lambda task: task.name
)
def test_a_task_is_written_in_the_formats_that_it_has(task):
    for kind in KINDS:
        if kind not in task.formats:
            with pytest.raises(ValueError, match=f"format='{re.escape(kind)}' does not fit the task '{task.name}': expected"):
                TaskFormat.of(task, NumberFormat(kind, *((4, 3) if "padded" in kind else ())))
            continue
        format = TaskFormat.fit(task, kind, 40)
        for example in task.examples("train", 40):
            assert task.read(format.read(format.answer(example.answer))) == task.read(example.answer)


@pytest.mark.parametrize(
    ("kind", "question", "answer"),
    [
        ("padded:5", "00003-00012+(-00004)=", "-00009"),
        ("padded+reversed:3", "300-210+(-400)=", "-900"),
        ("spaced", "3-1 2+(-4)=", "-9"),
        ("exponent", "0:3-1:12+(0:-4)=", "0:-9"),
    ],
)
def test_operands_are_written_like_the_answer(kind, question, answer):
    format = TaskFormat.fit(Arithmetic(), kind, 100)
    assert (format.question("3-12+(-4)="), format.answer("-9")) == (question, answer)


def test_cells_of_a_table_keep_their_text():
    example = Regression().examples("train", 1)[0]
    assert TaskFormat.fit(Regression(), "spaced", 100).question(example.prompt) is example.prompt


@pytest.mark.parametrize(
    ("kind", "said"), [("exponent", "3:12"), ("exponent", "12"), ("spaced", "1 23"), ("exponent+spaced", "1 : 1 23")]
)
def test_part_of_a_text_in_no_format_is_no_answer(kind, said):
    assert Arithmetic().read(TaskFormat.of(Arithmetic(), NumberFormat(kind)).read(said)) is None


def test_a_sentence_around_the_number():
    format = TaskFormat.of(Regression(), NumberFormat("padded+spaced", digits=4, decimals=1))
    assert format.read("It is about 0 1 2 . 5 m.") == "It is about 12.5 m."


def test_widths_are_those_of_the_training_rows_or_given():
    task = Arithmetic(difficulty=3, longest=1, operations="+", signed=False)
    fitted = TaskFormat.fit(task, "padded", 500)
    assert fitted.settings == {"kind": "padded", "digits": (1, 4), "decimals": (0, 0)}
    assert fitted.misfits(task.examples("train", 500)) == 0
    assert TaskFormat.kept(task, fitted.settings) == fitted
    narrow = TaskFormat.fit(task, "padded:2", 500)
    assert narrow.answer("123") == "123"  # its own width
    assert narrow.misfits(task.examples("train", 500)) > 100
    with pytest.raises(ValueError, match=r"format='padded:2.0' is too narrow for '\d{3,4}' in a training row: expected as many"):
        narrow.check(task.examples("train", 500))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("paded", "format='paded' is not known: expected one of 'plain', .* Did you mean 'padded'?"),
        ("padded:x", "format='padded:x' has no such width: expected a kind, or a padded one"),
        ("padded:0", "digits=0 is out of range"),
        ("spaced:3", "format='spaced:3' has a width, which 'spaced' does not use: leave it out"),
        ("padded+exponent", "format='padded.exponent' is not known"),
    ],
)
def test_refusals(text, message):
    with pytest.raises(ValueError, match=message):
        format_of(text)


def test_names_of_formats():
    assert format_text("spaced+padded:5.0") == "padded+spaced:5"
    assert format_text("padded:05.20") == "padded:5.20"
