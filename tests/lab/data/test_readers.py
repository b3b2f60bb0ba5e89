"""Every format of a data file: the same rows, the same questions, and one line for what is broken."""

from __future__ import annotations

import json
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.data.formats import BROKEN, BROKEN_CHATS, CHATS, NESTED, WRITERS, said

from numerate.lab.data import Regression, WordProblems
from numerate.lab.data.chats import as_question
from numerate.lab.data.readers import READERS, data_file, default_task, read_rows
from numerate.lab.data.row_reader import BadData, RowReader, file_type

pandas = pytest.importorskip("pandas")
FLATS = [{"area": 20 + i, "city": "XY"[i % 2], "rent": 30 + i % 7} for i in range(30)]


def rows_of(path: Path) -> list[dict]:
    return [row for _, row in read_rows(path, RowReader())]


def questions(task: Regression) -> set[tuple[str, str, str]]:
    return {(split, example.prompt, example.answer) for split in task.splits for example in task.examples(split)}


def test_every_reader_is_tested():
    assert {file_type(Path(name)) for name in WRITERS} == {*READERS}
    assert {file_type(Path(name)) for name, _, _ in BROKEN.values()} == {*READERS}


# The same rows


NAMES = st.sampled_from(["area", "Größe, m²", "a b", 'quo"te', "x"])
CELLS = {
    "text": st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8),
    "number": st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False, width=64),
}
TABLES = st.dictionaries(NAMES, st.sampled_from([*CELLS]), min_size=1).flatmap(
    lambda kinds: st.lists(st.fixed_dictionaries({name: CELLS[kind] for name, kind in kinds.items()}), min_size=1, max_size=6)
)


def as_text(rows: list[dict]) -> list[dict[str, str]]:
    """Numbers as a text file has them; a Parquet column of whole and other numbers has floats alone."""
    return [{name: value if isinstance(value, str) else repr(float(value)) for name, value in row.items()} for row in rows]


@settings(max_examples=40, deadline=None)
@given(rows=TABLES)
@pytest.mark.parametrize("name", [*(name for name in WRITERS if ".xls" not in name), "frame"])  # a workbook takes long to write
def test_rows_come_back(name, rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    kinds = {name: type(value) for name, value in rows[0].items() if not isinstance(value, str)}
    rows = [{name: float(value) if name in kinds else value for name, value in row.items()} for row in rows]
    if name == "frame":
        back = rows_of(Path(data_file(pandas.DataFrame(rows), folder)))
    else:
        WRITERS[name](folder / name, rows)
        back = rows_of(folder / name)
    if name in ("t.csv", "t.tsv"):
        back = [{name: float(value) if name in kinds else value for name, value in row.items()} for row in back]
    assert as_text(back) == as_text(rows)


def test_values_of_parquet_and_of_frames_are_the_same(tmp_path):
    frame = pandas.DataFrame(
        {
            "when": pandas.to_datetime(["2024-04-10 00:00", "2024-04-11 12:30", None]),
            "short": pandas.Series([0.1, 0.2, None], dtype="float32"),
            "whole": pandas.Series([1, None, 3], dtype="Int64"),
            "kind": pandas.Categorical(["a", "b", "a"]),
            "yes": [True, False, True],
            "exact": [Decimal("1.50"), Decimal("2.00"), None],
            "day": [date(2024, 4, 10), None, date(2024, 4, 12)],
            "list": [[1, 2], [], [3]],
        }
    )
    frame.to_parquet(tmp_path / "t.parquet")
    rows = rows_of(tmp_path / "t.parquet")
    assert rows == rows_of(Path(data_file(frame, tmp_path)))
    whole = {"when": "2024-04-10", "short": 0.1, "whole": 1, "kind": "a", "yes": True, "exact": "1.50", "day": "2024-04-10"}
    assert rows[0] == whole | {"list": [1, 2]}
    assert rows[1]["when"] == "2024-04-11 12:30:00"
    assert [rows[i][name] for i, name in ((1, "whole"), (2, "when"), (2, "short"), (2, "exact"), (1, "day"))] == [None] * 5


def test_missing_values_are_shown_alike(tmp_path):
    rows = [{**row, "rooms": None if i % 3 else i} for i, row in enumerate(FLATS)]
    for name in WRITERS:
        WRITERS[name](tmp_path / name, rows)
    found = [questions(Regression.from_files(tmp_path / name, target="rent")) for name in WRITERS]
    assert all(own == found[0] for own in found)
    assert any("rooms: . rent?" in prompt for _, prompt, _ in found[0])


# Rows from Python


def test_a_frame_is_written_once(tmp_path):
    frame = pandas.DataFrame(FLATS, index=[f"r{i}" for i in range(30)])
    first = Path(data_file(frame, tmp_path))
    mark = first.stat().st_mtime_ns
    assert data_file(frame.copy(), tmp_path) == str(first)
    assert first.stat().st_mtime_ns == mark
    assert data_file(frame.assign(rent=1), tmp_path) != str(first)
    assert data_file(FLATS, tmp_path) == str(first)
    assert data_file("./my.csv", tmp_path) == "./my.csv"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (7, "data is a int: expected a path, a pandas frame, or a list of dicts"),
        ({"area": [1]}, "data is a dict"),
        ([1, 2], "row 1 of data is a int"),
        ([{"a": 1}, [2]], "row 2 of data is a list"),
        ([], "data has no rows"),
        (pandas.DataFrame(), "data has no rows"),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "data: columns 1 and 2 are both named 'a'"),
    ],
    ids=repr,
)
def test_what_is_not_rows(data, said, tmp_path):
    with pytest.raises((TypeError, ValueError), match=said):
        data_file(data, tmp_path)
    assert not [*tmp_path.iterdir()]


# Files that are broken


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_file_is_one_line(case, tmp_path):
    name, text, said = BROKEN[case]
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=r".") as raised:
        Regression.from_files(tmp_path / name, target="rent")
    message = str(raised.value)
    assert message.startswith(str(tmp_path / name))
    assert said in message
    assert "\n" not in message


def test_rows_of_parquet_are_numbered(tmp_path):
    WRITERS["t.parquet"](tmp_path / "t.parquet", [{"area": 1, "rent": "2"}, {"area": 2, "rent": "cheap"}])
    with pytest.raises(BadData, match=r"t\.parquet, row 2: the answer 'cheap'"):
        Regression.from_files(tmp_path / "t.parquet", target="rent")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadData, match=r"is not a readable Parquet file \(.+\)\. It may be truncated"):
        Regression.from_files(tmp_path / "t.parquet", target="rent")
    with pytest.raises(BadData, match="there is no such file"):
        Regression.from_files(tmp_path / "nowhere.parquet", target="rent")


def test_parquet_without_its_package(tmp_path, monkeypatch):
    WRITERS["t.parquet"](tmp_path / "t.parquet", FLATS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadData, match=r"needs the package pyarrow\. Run pip install pyarrow"):
        Regression.from_files(tmp_path / "t.parquet", target="rent")


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_with_the_name_of_a_file(name, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(BadData, match=rf"{name}: (is a folder|is not a readable Parquet file)"):
        Regression.from_files(tmp_path / name, target="rent")


# Chats


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", NESTED)
def test_chats_in_every_format(name, chat, tmp_path):
    WRITERS[name](tmp_path / name, [CHATS[chat](f"{i} + 1?", str(i + 1)) for i in range(30)])
    assert default_task(tmp_path / name) == "regression"
    task = Regression.from_files(tmp_path / name)
    assert {(prompt, answer) for _, prompt, answer in questions(task)} == {(f"{i} + 1?", str(i + 1)) for i in range(30)}
    assert set(task.splits) == {"train", "interpolate"}


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", NESTED)
def test_chats_with_worked_answers(name, chat, tmp_path):
    WRITERS[name](tmp_path / name, [CHATS[chat](f"{i} + 1?", f"{i} + 1 = {i + 1}\n#### {i + 1}") for i in range(30)])
    assert default_task(tmp_path / name) == "word_problems"
    task = WordProblems.from_files(tmp_path / name)
    assert set(task.splits) == {"train", "interpolate"}
    example = task.examples("train")[0]
    assert task.score(example, example.answer)["exact_strict"] == 1


@pytest.mark.parametrize("case", BROKEN_CHATS)
@pytest.mark.parametrize("name", ["t.jsonl", "t.json"])
def test_a_broken_chat_is_one_line(name, case, tmp_path):
    row, said = BROKEN_CHATS[case]
    good = CHATS["messages" if "messages" in row else "answer"]("1 + 1?", "2")
    (tmp_path / name).write_text(
        f"{json.dumps(good)}\n{json.dumps(row)}\n" if name.endswith("l") else f"[{json.dumps(good)},\n{json.dumps(row)}]"
    )
    with pytest.raises(BadData, match=rf"{name}, line 2: ") as raised:
        Regression.from_files(tmp_path / name)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(Regression.from_files(tmp_path / name, skip_bad=True).skipped) == 1


def test_longer_chats():
    turns = [{"role": "system", "content": "Be brief."}, *said("1 + 1?", "2"), *said("And 2 more?", " 4 ")]
    assert as_question({"messages": turns, "id": 7}) == {
        "id": 7,
        "prompt": "system: Be brief.\n\nuser: 1 + 1?\n\nassistant: 2\n\nuser: And 2 more?",
        "answer": "4",
    }
    assert as_question({"messages": [turns[0], turns[1], turns[2]]})["prompt"] == "Be brief.\n\n1 + 1?"
    assert as_question({"messages": turns[:2]}) == {"prompt": "Be brief.\n\n1 + 1?", "answer": None}
    assert as_question({"prompt": turns[:2]}) == {"prompt": "Be brief.\n\n1 + 1?"}


@pytest.mark.parametrize(("task", "answer"), [(Regression, "{}"), (WordProblems, "so\n#### {}")])
@pytest.mark.parametrize("form", ["messages", "prompt"])
def test_chats_of_several_turns_are_counted_in_a_note(task, answer, form, tmp_path):
    def row(i: int, turns: int) -> dict[str, object]:
        messages = [message for turn in range(turns) for message in said(f"{i} + {turn}?", answer.format(i))]
        return {"messages": messages} if form == "messages" else {"prompt": messages[:-1], "completion": messages[-1:]}

    WRITERS["t.jsonl"](tmp_path / "t.jsonl", [row(i, 1 + i % 3) for i in range(30)])
    (note,) = [note for note in task.from_files(tmp_path / "t.jsonl").notes if "turns" in note]
    assert note.startswith("20 of 30 chats have several turns: only the last answer of each is trained on")
    WRITERS["t.jsonl"](tmp_path / "t.jsonl", [row(i, 1) for i in range(30)])
    assert not any("turns" in note for note in task.from_files(tmp_path / "t.jsonl").notes)


def test_a_table_with_a_column_of_that_name(tmp_path):
    """A target makes it a table, whatever its columns are called."""
    WRITERS["t.jsonl"](tmp_path / "t.jsonl", [{"messages": i, "completion": 2 * i, "cost": 3 * i} for i in range(20)])
    task = Regression.from_files(tmp_path / "t.jsonl", target="cost")
    assert ("messages: 3, completion: 6. cost?", "9") in {pair[1:] for pair in questions(task)}


def test_which_task_reads_a_file(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps({"question": "1 + 1?", "answer": "1 + 1 = 2\n#### 2"}))
    assert default_task(tmp_path) == default_task(tmp_path / "train.jsonl") == "word_problems"
    assert [default_task(data) for data in ("diamonds", tmp_path / "nowhere.csv", "no-table", tmp_path / "x.xlsx")] == [
        "regression"
    ] * 4


# Columns


def table(folder: Path, rows: list[dict]) -> Path:
    WRITERS["t.jsonl"](folder / "t.jsonl", rows)
    return folder / "t.jsonl"


def test_columns_that_tell_nothing_are_left_out(tmp_path):
    path = table(tmp_path, [{"flat_id": f"f{i}", **row, "unit": "EUR"} for i, row in enumerate(FLATS)])
    task = Regression.from_files(path, target="rent")
    assert task.examples("train")[0].prompt.count(":") == 2
    assert [*task.left_out] == ["rent", "flat_id", "unit"]
    assert (
        "rent is asked from area, city. Left out: flat_id (another value in every row, by its name an index); " in task.notes[0]
    )
    assert "unit ('EUR' in every row)" in task.notes[0]
    assert task.asked_columns(path) == (("area", "city"), ())
    shown = Regression.from_files(path, target="rent", columns=("unit", "flat_id"))
    assert any(prompt == "unit: EUR, flat_id: f3. rent?" for _, prompt, _ in questions(shown))
    assert shown.left_out == {"rent": "what is asked", "area": "not chosen", "city": "not chosen"}
    assert not shown.notes


def test_long_texts_stay(tmp_path):
    rows = [{**row, "essay": f"{i} words " * 500} for i, row in enumerate(FLATS)]
    task = Regression.from_files(table(tmp_path, rows), target="rent")
    assert [*task.left_out] == ["rent"]
    assert len(task.examples("train")[0].prompt) > 4000


def test_columns_that_stay(tmp_path):
    """Years in order are no index, and a text that some rows lack may tell something."""
    rows = [{"year": 1990 + i, **row, **({"garden": "yes"} if i % 2 else {})} for i, row in enumerate(FLATS)]
    task = Regression.from_files(table(tmp_path, rows), target="rent")
    assert [*task.left_out] == ["rent"]
    assert Regression.from_files(table(tmp_path, [{"unit": "EUR", "rent": i} for i in range(20)]), target="rent").left_out == {
        "rent": "what is asked"  # nothing would be left to ask from
    }
    assert [*Regression.from_files(table(tmp_path, rows[:9]), target="rent").left_out] == ["rent"]


def test_columns_to_leave_out(tmp_path):
    path = table(tmp_path, FLATS)
    task = Regression.from_files(path, target="rent", without=("city",))
    assert {prompt for _, prompt, _ in questions(task)} == {f"area: {20 + i}. rent?" for i in range(30)}
    assert task.asked_columns(path) == (("area",), ())
    with pytest.raises(BadData, match=r"t\.jsonl: has no column 'citty'\. Columns here: area, city, rent\. Did you mean 'city'"):
        Regression.from_files(path, target="rent", without=("citty",))
    with pytest.raises(BadData, match=r"line 1: has no column 'aera'\. .* Did you mean 'area'"):
        Regression.from_files(path, target="rent", columns=("aera",))
    with pytest.raises(ValueError, match="are both set"):
        Regression(target="rent", columns=("area",), without=("city",))
    with pytest.raises(ValueError, match="has the target 'rent'"):
        Regression(target="rent", columns=("area", "rent"))


def test_dates(tmp_path):
    rows = [{**row, "since": datetime(2024, 4, 1 + i % 28)} for i, row in enumerate(FLATS)]
    task = Regression.from_files(data_file(rows, tmp_path), target="rent")
    assert ("area: 23, city: Y, since: 2024-04-04. rent?", "33") in {pair[1:] for pair in questions(task)}
    assert task.notes == ("since: dates are shown as they are written, such as '2024-04-01'.",)
    with pytest.raises(BadData, match=r"the answer '2024-04-01' is a date\. Add a column with a number that is computed from it"):
        Regression.from_files(data_file(rows, tmp_path), target="since")
