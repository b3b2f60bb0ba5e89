"""Questions about the rows of a table: as a model was asked in training, by a template, or ready in a column.

Training keeps what the questions looked like beside the weights, in ``numerate.json``. New rows are then asked about in the same
words, whatever the order of their columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numerate.checks import nearest
from numerate.lab.data import TASKS, Task
from numerate.lab.data.base import generous_range
from numerate.lab.data.chats import is_chat
from numerate.lab.data.columns import shown_value
from numerate.lab.data.question import Question
from numerate.lab.data.readers import READERS, read_rows
from numerate.lab.data.regression import Regression, Row
from numerate.lab.data.row_reader import BadData, RowReader, check_path, delimiter, file_type
from numerate.lab.data.task_format import TaskFormat

if TYPE_CHECKING:
    from typing_extensions import Self

    from numerate.lab.models.loading import PromptEncoder

ASKED = "numerate.json"  # beside the weights
ANY_PROMPT = "{prompt}"  # the template of a served model that was not trained here

_FIELD = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True)
class Questions:
    """How a row becomes a question.

    Examples:
        >>> Questions(Regression(target="price", columns=("area",))).ask({"id": 7, "area": 84.0}, Path()).prompt
        'area: 84. price?'
        >>> Questions(Regression(), template="A flat of {area} m2 costs").ask({"area": 84.0}, Path()).prompt
        'A flat of 84 m2 costs'
    """

    task: Regression  # target, columns and decimal mark of the table
    optional: tuple[str, ...] = ()  # columns that rows may lack; they are then not shown
    template: str | None = None  # the question, with columns in braces; None: the question of the task
    chat: bool | None = None  # whether the model was trained with its chat template; None: it was not trained here
    # ``model`` and ``seed`` of the model that an adapter was trained on; None if all weights were.
    base: Mapping[str, Any] | None = None
    # The least and greatest number that may answer; None where the training labels are not known.
    answers: tuple[str, str] | None = None
    max_length: int | None = None  # tokens of a training example, to which long texts were cut; None where it is not known
    format: TaskFormat = field(default_factory=TaskFormat)  # how numbers are written
    members: int = 1  # models that were trained together

    @property
    def answer(self) -> str:
        """The column with the answer, where it is known."""
        return self.task.target or "answer"

    def known(self, values: Mapping[str, Any]) -> Any:
        """Return the cell of a row with its answer, None if it is not known."""
        return values.get(self.answer) if self.template is not None else self.task.raw_answer(values)

    def ask(self, values: Mapping[str, Any], folder: Path) -> Row:
        """Return the question about a row; images are relative to ``folder``."""
        if self.template is not None:
            row = Regression().ask({"prompt": "", "image": values.get("image")}, folder)
            return replace(row, prompt=filled(self.template, values))
        if not self.optional:
            return self.task.ask(values, folder)
        shown = tuple(name for name in self.task.columns or () if name in values or name not in self.optional)
        return replace(self.task, columns=shown).ask(values, folder)

    def check(self, values: Mapping[str, Any], path: Path, line: int) -> None:
        """Raise if the first row of a file lacks a column that the question shows."""
        if self.template is None and self.task.target is None and "prompt" not in values and not is_chat(values):
            listed = ", ".join(map(str, values))
            raise BadData(
                f"has the columns {listed}, but not prompt, and it is not known what to ask",
                "Name the column to predict (--target price), write the question (--prompt 'A flat of {area} m2 costs'), or name "
                "the folder of a run of a table, which knows it.",
                path,
            )
        with RowReader().row(path, None if file_type(path) in (".csv", ".tsv") else line):
            self.ask({name: value for name, value in values.items() if name != "image"}, path.parent)

    def to_dict(self) -> dict[str, Any]:
        """Return target, columns and wording; the inverse is :meth:`from_dict`."""
        task, names = self.task, {"columns": list(self.task.columns or ()), "optional_columns": list(self.optional)}
        return {"target": task.target, **names, "wording": task.wording, "decimal": task.decimal, "template": self.template}

    @classmethod
    def from_dict(cls, kept: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_dict`."""
        return cls(_table(kept), tuple(kept["optional_columns"]), kept["template"])

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what :func:`asked` returned."""
        try:
            kept = json.loads(file.read_text(encoding="utf-8"))
            task = _table(kept)
            answers = tuple(kept["answers"]) if kept.get("answers") else None  # older models have none
            more = {name: kept.get(name) for name in ("base", "max_length")}
            asked = task if kept["task"] == task.name else TASKS[kept["task"]]()
            more["format"] = TaskFormat.kept(asked, kept.get("format"))
            members = int(kept.get("members", 1))
            return cls(task, tuple(kept["optional_columns"]), chat=kept["chat"], answers=answers, members=members, **more)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{file} does not say how the model was asked ({error}): train again, or restore the file."
            ) from None


def _table(kept: Mapping[str, Any]) -> Regression:
    """Return the task of a table from its target, columns and wording."""
    return Regression(
        target=kept["target"],
        columns=tuple(kept["columns"]) or None,
        decimal=kept["decimal"],
        wording=kept.get("wording", "names"),  # older models have no other
    )


def asked(
    task: Task, data: str | None, encoder: PromptEncoder, base: Mapping[str, Any], members: int = 1
) -> dict[str, Any] | None:
    """Return what the questions of a training on a table looked like, the format of numbers, and how many members there are.

    None for other tasks in plain text with one member. ``base`` has the model and seed that an adapter belongs to; it is empty
    without one.
    """
    written = {} if encoder.format.plain else {"format": encoder.format.settings}
    of_table = isinstance(task, Regression) and data is not None
    if not of_table and not written and members == 1:
        return None
    table = task if isinstance(task, Regression) else Regression()
    columns, optional = ((), ()) if data is None else table.asked_columns(Path(data))
    names = {"columns": list(columns), "optional_columns": list(optional)}
    length = {} if encoder.max_length is None else {"max_length": encoder.max_length}
    words = {"wording": table.wording, "decimal": table.decimal, "chat": encoder.chat}
    low, high = generous_range([task.answer_of(row) for row in (task.rows or {}).get("train", ())])
    answers = {} if low is None or high is None else {"answers": [str(low), str(high)]}
    return {
        "task": task.name,
        "target": table.target,
        **names,
        **words,
        **({"base": dict(base)} if base else {}),
        **answers,
        **length,
        **written,
        **({} if members == 1 else {"members": members}),
    }


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return the template with ``{column}`` replaced by its value; ``{{`` and ``}}`` stand for braces.

    Examples:
        >>> filled("{{{x y}}}", {"x y": 3.0})
        '{3}'
    """
    cells, before, end = list[tuple[str, str]](), "", 0
    for match in _FIELD.finditer(template):
        before, end = before + template[end : match.start()], match.end()
        if match[0] in ("{{", "}}"):
            before += match[0][0]
            continue
        if match[1] is None:
            raise BadData(f"prompt={template!r} has a single {match[0]!r}", "Expected {column}; write {{ for a brace.")
        if match[1] not in values:
            known = [str(key) for key in values]
            hint = f"Columns here: {', '.join(known)}.{nearest(match[1], known)}"
            raise BadData(f"has no column {match[1]!r}, which the prompt names", hint)
        cells.append((before, shown_value(values[match[1]])))
        before = ""
    return Question.of(cells, before + template[end:])


@dataclass(frozen=True)
class Table:
    """A file with rows to predict: read once for its columns, its length and the answers that are known."""

    path: Path
    columns: tuple[str, ...]
    rows: int
    answers: Sequence[Fraction | None] = ()  # of each row; empty if no row has one
    notes: tuple[str, ...] = ()
    how: Mapping[str, Any] = field(default_factory=dict)  # how the file is read: ``skip_bad``, ``encoding`` and ``sheet``

    @classmethod
    def scan(cls, path: Path, questions: Questions, *, limit: int | None = None, **how: Any) -> Self:
        """Read the first ``limit`` rows; raise if the first one lacks a column that the questions show.

        ``how`` are settings of :class:`~numerate.lab.data.row_reader.RowReader`: ``skip_bad``, ``encoding``, ``sheet``.
        """
        reader = RowReader(**how)
        columns: dict[str, None] = {}
        answers: list[Any] = []
        for line, values in islice(read_rows(path, reader), limit):
            if not answers:
                questions.check(values, path, line)
            columns |= dict.fromkeys(values)
            answer = None
            with RowReader(skip_bad=True).row(path, line):
                answer = questions.known(values)
            answers.append(answer)
        if not answers:
            raise BadData("has no rows", "Expected at least one row to predict.", path)
        skipped = reader.skipped
        notes = [f"Skipped rows that cannot be read: {len(skipped):,}; the first: {skipped[0]}"] if skipped else []
        notes += reader.notes
        known: list[Fraction | None] = []
        try:
            known = questions.task.numbers(
                answers, semicolons=file_type(path) == ".csv" and delimiter(path, reader.encoding) == ";"
            )
        except BadData as bad:
            notes.append(f"The known answers are not compared: {bad}")
        known = known if any(number is not None for number in known) else []
        return cls(path, tuple(columns), len(answers), known, tuple(notes), how)

    def batches(self, first: int, last: int, size: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the rows from ``first`` to before ``last``, ``size`` at a time, with the number of the first of them."""
        rows = islice(read_rows(self.path, RowReader(**self.how)), first, max(first, last))
        while batch := [values for _, values in islice(rows, size)]:
            yield first, batch
            first += len(batch)

    def answer(self, row: int) -> Fraction | None:
        """Return the known answer of a row."""
        return self.answers[row] if self.answers else None


def content_of(path: Path) -> str:
    """Return a hash of a file's content."""
    check_path(path)
    state = blake2b(digest_size=8)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                state.update(block)
    except FileNotFoundError:
        raise BadData("there is no such file", "Check the path.", path) from None
    except IsADirectoryError:
        raise BadData("is a folder", f"Expected a file: {', '.join(READERS)}.", path) from None
    return state.hexdigest()
