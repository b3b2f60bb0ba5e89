"""Targets of tables: what a cell is worth, what a column makes of it, and what is refused."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest

from numerate.lab.data import Arithmetic, Example, Regression, WordProblems
from numerate.lab.data.cells import answer_text, decimal_mark, is_blank, read_cell
from numerate.lab.data.row_reader import BadData

# Text of a cell -> the answer, whatever the decimal mark is; with a decimal point alone; with a decimal comma alone.
EITHER = {
    "5": "5", "+5": "5", "-5": "-5", "−5": "-5", "–5": "-5", "- 5": "-5", "007": "7", "-0": "0", "€ 70": "70", "$-5": "-5",
    "-$5": "-5", "US$ 5": "5", "EUR 70": "70", "70 EUR": "70", "'1 234": "1234", "12 345 678": "12345678", "12 %": "12",
    "12%": "12", "84 m2": "84", "84 m²": "84", "5 sq ft": "5", "20 °C": "20", "5 m": "5", "300 K": "300", "300K": "300000",
    "2M": "2000000", "-2M": "-2000000", "$5m": "5000000", "3 Mio. €": "3000000", "1e-5": "0.00001", "½": "0.5", "2½": "2.5",
    "-¾": "-0.75", "٣٤": "34", "\u200b7": "7", "123456789012345678901234567890123": "123456789012345678901234567890123",
}  # fmt: skip
POINT = {
    "70.50": "70.50", ".5": "0.5", "5.": "5", "$5.10": "5.10", "Rs. 12,34,567": "1234567", "(76.00)": "-76.00",
    "($76.00)": "-76.00", "$(76.00)": "-76.00", "0.125": "0.125", "1234.567": "1234.567", "1,234,567": "1234567",
    "1,234.56": "1234.56", "12,34,567": "1234567", "12,34,567.8": "1234567.8", "1'234.50": "1234.50",
    "1\u2009234.5": "1234.5", "12.5 km/h": "12.5", "3.5k": "3500", "3.5 k": "3500", "1.2bn": "1200000000",
    "1.5 million": "1500000", "1.5E3": "1500", "6.02e23": "6.02e23",
    "-0.12345678901234567890123456789012": "-0.12345678901234567890123456789012",
}  # fmt: skip
COMMA = {
    "70,50": "70.50", ",5": "0.5", "70,35 €": "70.35", "(76,00 €)": "-76.00", "0,125": "0.125", "1.234.567": "1234567",
    "1.234,56": "1234.56", "1’234,50": "1234.50", "1 234,5": "1234.5", "1\u00a0234,5": "1234.5", "1\u202f234,5": "1234.5",
    "3,5k": "3500", "2,5 Mrd": "2500000000",
}  # fmt: skip
CELLS = {  # with a point, with a comma; None where it is no number in that notation
    **{text: (answer, answer) for text, answer in EITHER.items()},
    **{text: (answer, None) for text, answer in POINT.items()},
    **{text: (None, answer) for text, answer in COMMA.items()},
    "1,234": ("1234", "1.234"),
    "1.234": ("1.234", "1234"),
}

REFUSED = [
    "2024-04-10", "10.04.2024", "10/04/2024", "10 April", "Apr 10", "12:30", "12 pm", "model 3", "A4", "#5", "3rd", "cheap", "x",
    "3-5", "3 to 5", "3/4", "5 ± 1", "~5", ">5", "<0.1", "5+", "10 x 5", "12 apples and 3 pears", "1 2",
    "12 34", "1..2", "1,2,3", "1.2.3", "1,23,4567", "1,234.5.6", "0,123,456", "+-5", "--5", "-(5)", "(5", "5)", "((5))", "1_000",
    "inf", "-inf", "∞", "1e400", "1e-400", "1e99999999", "9" * 400, "5e", "0x10", "5G", "⅓", "$5 €", "€", "()", "k",
]  # fmt: skip

VALUES = {5: "5", -3: "-3", 84.0: "84", 0.1: "0.1", 1e-7: "0.0000001", 1e22: "1e22", 10**20: str(10**20), 2500000.0: "2500000"}


@pytest.mark.parametrize("text", CELLS)
def test_cells(text):
    cell = read_cell(text)
    assert tuple(None if cell.numbers[mark] is None else answer_text(cell.numbers[mark]) for mark in ".,") == CELLS[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_not_one_number_is_refused(text):
    assert not is_blank(text)
    with pytest.raises(BadData, match="the answer .* (is|contains|has|may|looks)") as raised:
        read_cell(text)
    assert "skip_bad" in raised.value.remedy


@pytest.mark.parametrize("value", VALUES)
def test_numbers_of_json(value):
    assert answer_text(read_cell(value).numbers["."]) == VALUES[value]


@pytest.mark.parametrize("value", [True, False, [1], {"a": 1}, float("inf"), 10**400, b"5"], ids=repr)
def test_other_values_of_json_are_refused(value):
    with pytest.raises(BadData, match="the answer"):
        read_cell(value)


def test_no_answer():
    assert all(map(is_blank, ["", " ", "NA", "n/a", "NaN", "-", "–", None, float("nan"), "null", "#N/A"]))
    assert not any(map(is_blank, ["0", 0, 0.0, False, "x"]))


def test_every_answer_reads_as_the_number_it_is():
    """What the model is trained to write, and what its output is read as, agree."""
    task = Regression()
    for text in CELLS:
        for number in read_cell(text).numbers.values():
            if number is not None:
                answer = answer_text(number)
                assert task.read(answer) == number
                assert task.score(Example("?", answer), answer)["exact"] == 1


LONG = [
    "1" * 9999,
    "1" * 10**6,
    "1 " * 4999,
    "a" * 9999,
    "1" + "a" * 9000 + "!",
    "1,234" * 1800,
    "(" * 9000,
    "1" + "/a" * 4500 + "!",
]


@pytest.mark.parametrize("text", LONG, ids=lambda text: f"{text[:6]}{len(text)}")
def test_long_texts_are_rejected(text):
    """Without catastrophic backtracking, which would take minutes."""
    with pytest.raises(BadData):
        read_cell(text)


# Columns


def answers(task: Regression) -> list[str]:
    return [row.answer for split in task.splits for row in task.rows[split]]  # in the order of the file


def table(path, cells, delimiter=",", bom=False, header="price"):
    quoted = [f'"{cell}"' if delimiter in cell or '"' in cell else cell for cell in cells]
    text = "".join(f"{area}{delimiter}{cell}\n" for area, cell in enumerate(quoted))
    path.write_text(("\ufeff" if bom else "") + f"area{delimiter}{header}\n{text}", encoding="utf-8")
    return path


COLUMNS = {
    "European": (";", ["70,35 €", "1.234,56 €", "80 €"], ["70.35", "1234.56", "80"]),
    "one cell decides": (";", ["1.234", "2.500", "7,5"], ["1234", "2500", "7.5"]),
    "one cell decides for the point": (";", ["1,234", "2.5"], ["1234", "2.5"]),
    "English": (",", ["1,234.50", "2,000", "7"], ["1234.50", "2000", "7"]),
    "Swiss": (";", ["1'234.50", "70.00"], ["1234.50", "70.00"]),
    "French": (";", ["1\u202f234,5", "70,25"], ["1234.5", "70.25"]),
    "Indian": (",", ["12,34,567", "1,234"], ["1234567", "1234"]),
    "accounts": (",", ["(76.00)", "76.00"], ["-76.00", "76.00"]),
    "multiples": (",", ["3.5k", "900", "2M"], ["3500", "900", "2000000"]),
    "percent": ("\t", ["12 %", "7.5%"], ["12", "7.5"]),
    "thousands in a comma file": (",", ["1,234", "2,500"], ["1234", "2500"]),
    "three decimals": (",", ["1.234", "2.500"], ["1.234", "2.500"]),
    "plain": ("|", ["1", "2.50", "-3"], ["1", "2.50", "-3"]),
}


@pytest.mark.parametrize("bom", [False, True])
@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_is_read_as_a_whole(name, bom, tmp_path):
    delimiter, cells, expected = COLUMNS[name]
    path = table(tmp_path / ("t.tsv" if delimiter == "\t" else "t.csv"), cells, delimiter, bom)
    task = Regression.from_files(path, target="price")
    assert answers(task) == expected
    assert {e.prompt for split in task.splits for e in task.examples(split)} == {f"area: {i}. price?" for i in range(len(cells))}
    rewritten = cells != expected
    assert any("such as" in note for note in task.notes) == rewritten


def test_a_column_of_either_reading(tmp_path):
    """1,234 throughout: refused in a file with semicolons, else thousands, and it says so; `decimal` settles it."""
    semicolons = table(tmp_path / "a.csv", ["1,234", "2,500"], ";")
    with pytest.raises(
        BadData, match=r"a\.csv: column 'price' can be read in two ways: '1,234' \(line 2\) is 1234 with .* and 1\.234 "
    ):
        Regression.from_files(semicolons, target="price")
    assert answers(Regression.from_files(semicolons, target="price", decimal=",")) == ["1.234", "2.500"]
    assert answers(Regression.from_files(semicolons, target="price", decimal=".")) == ["1234", "2500"]
    commas = Regression.from_files(table(tmp_path / "b.csv", ["1,234", "2,500"]), target="price")
    assert "'1,234' is read as 1234, with a decimal point; decimal=',' reads it as 1.234." in commas.notes[-1]
    with pytest.raises(ValueError, match=r"decimal=';' is not known: expected one of '\.', ','"):
        Regression(decimal=";")


def test_a_column_of_two_notations(tmp_path):
    path = table(tmp_path / "t.csv", ["70,35", "71.20", "5"], ";")
    with pytest.raises(BadData, match=r"mixes decimal marks: '70,35' \(line 2\) has a comma, '71\.20' \(line 3\) a point"):
        Regression.from_files(path, target="price")
    with pytest.raises(BadData, match=r"line 3: the answer '71\.20' is not a number with the decimal mark ','"):
        Regression.from_files(path, target="price", decimal=",")
    assert answers(Regression.from_files(path, target="price", decimal=",", skip_bad=True)) == ["70.35", "5"]


@pytest.mark.parametrize(("odd", "usual"), [("500 g", "5 kg"), ("5", "5 kg"), ("5 kg", "5"), ("$5", "5 €"), ("0.12", "12 %")])
def test_a_column_has_one_unit(odd, usual, tmp_path):
    path = table(tmp_path / "t.csv", [usual, usual, odd, usual])
    with pytest.raises(BadData, match=r"t\.csv, line 4: the answer .* but the other rows are"):
        Regression.from_files(path, target="price")
    assert len(answers(Regression.from_files(path, target="price", skip_bad=True))) == 3


@pytest.mark.parametrize("text", ["2024-04-10", "12:30", "model 3", "cheap", "true"])
def test_rows_are_named_or_left_out(text, tmp_path):
    path = table(tmp_path / "t.csv", ["1", text, "3"])
    with pytest.raises(BadData, match=rf"t\.csv, line 3: the answer '{text}' .*skip_bad=True \(--skip-bad\)"):
        Regression.from_files(path, target="price")
    assert answers(Regression.from_files(path, target="price", skip_bad=True)) == ["1", "3"]


def test_quoted_cells_and_features_stay_as_they_are(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\ufeff"when";"how";"price"\n"2024-04-10";"1,5 ""x""";"1.234,50 €"\n12:30;-;70,00 €\n;;\n', encoding="utf-8")
    task = Regression.from_files(path, target="price")
    assert answers(task) == ["1234.50", "70.00"]
    assert {e.prompt for e in task.examples("train")} == {'when: 2024-04-10, how: 1,5 "x". price?', "when: 12:30, how: -. price?"}
    assert [bad.line for bad in task.skipped] == [4]


def test_jsonl(tmp_path):
    path = tmp_path / "t.jsonl"
    good = [5, 5.5, "1,234.5", 1e-7, 10**25, "7 €"]
    path.write_text("".join(json.dumps({"x": 1, "y": value}) + "\n" for value in good[:5]))
    assert answers(Regression.from_files(path, target="y")) == ["5", "5.5", "1234.5", "0.0000001", str(10**25)]
    for bad in ("true", "[1]", '{"a": 1}', "1e400", "-Infinity", '"1e400"'):
        path.write_text(f'{{"x": 1, "y": 2}}\n{{"x": 1, "y": {bad}}}\n')
        with pytest.raises(BadData, match=r"t\.jsonl, line 2: the answer"):
            Regression.from_files(path, target="y")
    path.write_text('{"x": 1, "y": 2}\n{"x": 1, "y": NaN}\n{"x": 1, "y": null}\n')
    assert len(Regression.from_files(path, target="y").skipped) == 2


ANSWERS = {
    "70,35 €": "70.35",
    "(76.00)": None,  # beside a decimal comma
    "so 7 * 6 = 42": "so 7 * 6 = 42",
    "It is -1,200.": "It is -1,200.",
    "about 3/4": "about 3/4",
    "It costs 70,35 €": None,
    "on 2024-04-10": None,
    "at 12:30": None,
    "about 3.5k": None,
    "1.234,56 in all": "1.234,56 in all",
    "It is 1 234,5": None,
    "pages 3-5": None,
    "none that I know": None,
}


@pytest.mark.parametrize("text", ANSWERS)
def test_prompts_and_answers(text, tmp_path):
    """Answers that are cells become numbers; texts stay, unless their last number would be misread."""
    rows = [{"prompt": "a", "answer": "1,5"}, {"prompt": "b", "answer": text}]
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    if ANSWERS[text] is None:
        with pytest.raises(BadData, match=r"t\.jsonl(, line 2: the answer|: column 'answer' mixes)"):
            Regression.from_files(path)
    else:
        assert answers(Regression.from_files(path)) == ["1.5", ANSWERS[text]]


@pytest.mark.parametrize(
    ("answer", "expected"), [("51.0", "51.0"), (51.0, "51"), ("1e400", None), (float("inf"), None), (True, None)]
)
def test_answers_of_svamp(answer, expected, tmp_path):
    row = {"Body": "A.", "Question": "B?", "Equation": "( 1.0 + 50.0 )", "Answer": answer}
    path = tmp_path / "SVAMP.json"
    path.write_text(json.dumps([row]))
    if expected is None:
        with pytest.raises(BadData, match="row 1: the answer"):
            WordProblems.from_files(path)
    else:
        task = WordProblems.from_files(path)
        assert task.examples(task.splits[0])[0].answer.endswith(f"#### {expected}")


@pytest.mark.parametrize("answer", ["2*sqrt(3)", "-1a3", "12,5", "True"])
def test_answers_of_arithmetic_files(answer, tmp_path):
    path = tmp_path / "train.txt"
    path.write_text(f"1 + 1\n2\nWhat?\n{answer}\n")
    with pytest.raises(BadData, match=r"line 4: the answer .* is not one number"):
        Arithmetic.from_files(path)
    assert len(Arithmetic.from_files(path, skip_bad=True).examples("train")) == 1


@pytest.mark.parametrize("n", [1, 3, 9, 10, 11, 40])
def test_a_table_is_split_if_it_has_ten_rows(n, tmp_path):
    """Whatever the hashes of its rows are: some to train on, two or more to test on; a smaller table is not split."""
    for seed in range(30):
        path = table(tmp_path / "t.csv", [str(1000 * seed + i) for i in range(n)])
        task = Regression.from_files(path, target="price")
        tested = task.count("interpolate")
        assert task.count("train") + tested == n
        assert (2 <= tested < n / 2 + 2) if n >= 10 else tested == 0


def test_the_mark_of_an_empty_column():
    assert decimal_mark([], "price") == "."
    assert answer_text(Decimal("-0")) == "0"


@pytest.mark.parametrize(("zeros", "first"), [(0, "relative_error"), (9, "relative_error"), (10, "absolute_error")])
def test_a_table_with_many_zeros_is_judged_by_the_absolute_error(zeros, first, tmp_path):
    """An answer to a label of 0 has no relative error."""
    rows = [f"{i},{0 if i < zeros else i + 1}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["area,rent", *rows]), encoding="utf-8")
    task = Regression.from_files(tmp_path / "t.csv", target="rent")
    assert task.measures[0] == first
    assert sorted(task.measures) == sorted(Regression.measures)
    note = "rent: 10 of 40 answers are 0, which have no relative error: the absolute error is the main metric."
    assert (note in task.notes) == (first == "absolute_error")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("09:29", 569), ("9:29 pm", 1289), ("12:05 AM", 5), ("09:29:15", 569), ("15h30", 930), ("09:29 Uhr", 569), ("23:59", 1439)],
)
def test_a_time_names_the_number_to_predict_instead(text, minutes):
    with pytest.raises(BadData, match=rf"is a time\. .* minutes since midnight .*\({minutes}\)"):
        read_cell(text)


@pytest.mark.parametrize("value", ["[1, 2, 3]", "48.1, 11.6", "3;4", "10x20", "(3, 4)", "5,5; 6,5", [1, 2], (3.5, 4)])
def test_several_numbers_name_the_way_out(value):
    with pytest.raises(BadData, match=r"looks like several numbers\. Give each number a column of its own"):
        read_cell(value)
