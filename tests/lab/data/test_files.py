"""Real data in the datasets' own formats, and what happens to files that are broken."""

from __future__ import annotations

import csv
import gzip
import json

import pytest
from tests.lab.data.formats import assert_named_or_skipped

from numerate.lab.data import Arithmetic, Regression, WordProblems
from numerate.lab.data.row_reader import BadData, RowReader, data_name

GSM8K = [
    {
        "question": "Natalia sold 48 clips in April, and half as many in May. How many altogether?",
        "answer": "48/2 = <<48/2=24>>24\n#### 72",
    },
    {"question": "A car costs $1,200 and a bike half. How much is both?", "answer": "1200 + 600 = 1800\n#### 1,800"},
    {"question": "From 3 take 5.", "answer": "3 - 5 = -2\n#### -2"},
]
SVAMP = [
    {
        "ID": "chal-1",
        "Body": "Each pack costs 76 dollars. There is a discount of 25 dollars",
        "Question": "How much?",
        "Equation": "( 76.0 - 25.0 )",
        "Answer": 51.0,
        "Type": "Subtraction",
    },
    {
        "ID": "chal-2",
        "Body": "Dan has 3.5 litres.",
        "Question": "How much in 2 days?",
        "Equation": "( 3.5 * 2.0 )",
        "Answer": 7.0,
        "Type": "Multiplication",
    },
]


def lines(path, *texts):
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def test_arithmetic_files(tmp_path):
    lines(tmp_path / "interpolate__arithmetic__mixed.txt", "What is 1/2 - 2?", "-3/2", "Evaluate 2 + 2.", "4")
    lines(tmp_path / "extrapolate__arithmetic__mixed_longer.txt", "10 - -71", "81")
    with gzip.open(tmp_path / "train-easy__arithmetic__mixed.txt.gz", "wt", encoding="utf-8") as file:
        file.write("Calculate 3*{4}.\n12\n")  # braces are text, not a place to fill in
    task = Arithmetic.from_files(tmp_path)
    assert {split: len(task.examples(split)) for split in task.splits} == {"train": 1, "interpolate": 2, "extrapolate": 1}
    assert task.examples("train")[0].prompt == "Calculate 3*{4}."
    example = next(example for example in task.examples("interpolate") if "/" in example.answer)
    assert example.prompt == "What is 1/2 - 2?"
    assert task.score(example, "I get -3/2")["exact"] == 1
    assert task.score(example, "3/2")["exact"] == 0
    assert Arithmetic.from_files(tmp_path / "interpolate__arithmetic__mixed.txt").splits == ("interpolate",)


def test_the_layout_of_the_published_archive(tmp_path):
    """v1.0 has folders train-easy, interpolate, extrapolate with a file for each module."""
    for folder in ("train-easy", "interpolate"):
        (tmp_path / folder).mkdir()
        lines(tmp_path / folder / "arithmetic__add_or_sub.txt", "What is 1 + 1?", "2")
    assert Arithmetic.from_files(tmp_path).splits == ("train", "interpolate")


def test_gsm8k(tmp_path):
    lines(tmp_path / "train.jsonl", *map(json.dumps, GSM8K[:2]))
    lines(tmp_path / "test.jsonl", json.dumps(GSM8K[2]))
    task = WordProblems.from_files(tmp_path)
    assert {split: len(task.examples(split)) for split in task.splits} == {"train": 2, "interpolate": 1}
    for split in task.splits:
        for example in task.examples(split):
            assert task.score(example, example.answer)["exact_strict"] == 1
    example = next(example for example in task.examples("train") if "car" in example.prompt)
    assert task.score(example, "It is $1800.")["exact"] == 1


def test_svamp(tmp_path):
    (tmp_path / "SVAMP.json").write_text(json.dumps(SVAMP * 20), encoding="utf-8")
    task = WordProblems.from_files(tmp_path / "SVAMP.json")
    found = {example.prompt: example.answer for split in task.splits for example in task.examples(split)}
    assert found == {
        "Each pack costs 76 dollars. There is a discount of 25 dollars. How much?": "76 - 25 = 51\n#### 51",
        "Dan has 3.5 litres. How much in 2 days?": "3.5 * 2 = 7\n#### 7",
    }


# Your own data


def test_a_table_that_nobody_prepared(tmp_path):
    """As a spreadsheet writes it: a BOM, semicolons, quotes, an empty line, a text column."""
    rows = [f'{20 + i};"{i % 4}, with balcony";{100 * i}' for i in range(60)]
    (tmp_path / "flats.csv").write_text("\ufeffarea;rooms;price\n" + "\n".join(rows) + "\n\n", encoding="utf-8")
    task = Regression.from_files(tmp_path / "flats.csv", target="price")
    sizes = {split: len(task.examples(split)) for split in task.splits}
    assert sum(sizes.values()) == 60
    assert sizes["train"] > sizes["interpolate"] > 3
    assert next(e for e in task.examples("train") if e.answer == "500").prompt == "area: 25, rooms: 1, with balcony. price?"
    far = Regression.from_files(tmp_path / "flats.csv", target="price", extrapolate=0.2, columns=("area",))
    largest = [int(example.answer) for example in far.examples("extrapolate")]
    assert len(largest) == 12
    assert min(largest) > max(int(e.answer) for split in ("train", "interpolate") for e in far.examples(split))
    assert far.examples("train")[0].prompt.count(":") == 1


def test_prompts_and_answers_of_your_own(tmp_path):
    from PIL import Image

    Image.new("RGB", (8, 6), "red").save(tmp_path / "a.png")
    rows = [{"prompt": "How many?", "answer": "3", "image": "a.png"}, {"prompt": "And now?", "answer": 4, "split": "test"}]
    task = Regression.from_files(lines(tmp_path / "my.jsonl", *map(json.dumps, rows)))
    examples = [example for split in task.splits for example in task.examples(split)]
    assert sorted(example.answer for example in examples) == ["3", "4"]
    assert next(example.image for example in examples if example.answer == "3").size == (8, 6)
    assert [example.answer for example in task.examples("interpolate") if example.prompt == "And now?"] == ["4"]


# Broken files

LATIN = "Größe,Preis\n1,2\n".encode("latin1")
BROKEN = {
    "truncated line": ("data.jsonl", (json.dumps(GSM8K[0]) + "\n" + json.dumps(GSM8K[1])[:40]).encode(), 2, "broken JSON", 1),
    "wrong column": (
        "data.jsonl",
        b'{"question": "1 + 1?", "anwser": "#### 2"}\n' + json.dumps(GSM8K[0]).encode(),
        1,
        "'answer' is missing. Columns here: question, anwser",
        1,
    ),
    "no number": (
        "data.jsonl",
        b'{"question": "1 + 1?", "answer": "two"}\n' + json.dumps(GSM8K[0]).encode(),
        1,
        "no number after ####",
        1,
    ),
    "wrong encoding": ("data.jsonl", json.dumps(GSM8K[0]).encode() + b"\n\xff\xfe", 2, r"not UTF-8 \(byte 0xff at column 1\)", 1),
    "list without end": ("data.json", json.dumps(SVAMP)[:-1].encode(), 2, "the list does not end", 2),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_rows_are_named_or_skipped(what, tmp_path):
    name, content, line, message, good = BROKEN[what]
    path = tmp_path / name
    path.write_bytes(content)
    unit = "line" if b"\n" in content else "row"  # lines do not tell the objects of one line apart
    assert assert_named_or_skipped(WordProblems, path, rf"{name}, {unit} {line}: .*{message}", good).remedy


def test_broken_tables(tmp_path):
    path = lines(tmp_path / "t.csv", "area,price", "10,100", "11,110,7", "12,cheap", "13,130")
    with pytest.raises(BadData, match=r"t\.csv, line 3: has 3 values, but the header names 2 columns\. Quote"):
        Regression.from_files(path, target="price")
    task = Regression.from_files(path, target="price", skip_bad=True)
    assert sorted(example.answer for split in task.splits for example in task.examples(split)) == ["100", "130"]
    assert [bad.line for bad in task.skipped] == [3, 4]
    with pytest.raises(BadData, match=r"line 2: has no column 'prize'\. Columns here: area, price\. Did you mean 'price'"):
        Regression.from_files(path, target="prize")
    with pytest.raises(BadData, match=r"Name the column to predict: target='\.\.\.' \(--target\)"):
        Regression.from_files(path)
    path.write_bytes(LATIN)
    assert "is read as cp1252" in Regression.from_files(path, target="Preis").notes[0]
    with pytest.raises(BadData, match=r"t\.csv, line 1: columns 1 and 3 are both named 'a'\. Give each column its own name"):
        Regression.from_files(lines(path, "a,b, a", "1,2,3"), target="a")
    with pytest.raises(BadData, match="columns 1 and 2 both have no name"):
        Regression.from_files(lines(path, ",,a", "1,2,3"), target="a")
    with pytest.raises(BadData, match=r"has the file type \.doc\. Expected \.csv, \.tsv, \.jsonl"):
        Regression.from_files(tmp_path / "my.doc", target="a")


PLAIN = "area,price\n" + "".join(f"{area},{9 * area}\n" for area in range(20, 40))
LONG = 200_000  # characters; the csv module stops at 131,072
SAME = {
    "CR of old Macs": PLAIN.replace("\n", "\r"),
    "CR in UTF-16": PLAIN.replace("\n", "\r").encode("utf-16"),
    "CRCRLF of a file that was converted twice": PLAIN.replace("\n", "\r\r\n"),
    "blank lines": "\n\n" + PLAIN.replace("\n", "\n\n"),
    "blank lines of spaces and commas": " \n,\n" + PLAIN.replace("\n30,", "\n  \n30,"),
    "spaces around names": PLAIN.replace("area,price", " area , price "),
    "tabs, and a comma in a name": PLAIN.replace(",", "\t").replace("area", "area, m2"),
    "semicolons, and commas in a name": PLAIN.replace(",", ";").replace("area", '"area, in m2, net"'),
    "empty columns at the end": PLAIN.replace("\n", ",,\n"),
    "a separator at the end of the rows": PLAIN.replace("price\n", "price").replace("\n", ",\n").replace("price", "price\n"),
}


@pytest.mark.parametrize("how", SAME)
@pytest.mark.parametrize("name", ["t.csv", "T.CSV", "t.csv.GZ"])
def test_a_table_in_another_way(how, name, tmp_path):
    """Other line ends, separators and empty cells, and names in capitals, are the same table."""
    content = SAME[how]
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("GZ") else content)
    task = Regression.from_files(tmp_path / name, target="price")
    found = [example for split in task.splits for example in task.examples(split)]
    assert sorted(example.answer for example in found) == [str(9 * area) for area in range(20, 40)]
    assert all(str(int(example.answer) // 9) in example.prompt for example in found)
    assert not task.skipped
    assert data_name(tmp_path / name).lower() == "t"


def test_cells_that_are_long_or_of_several_lines(tmp_path):
    path, limit = tmp_path / "t.csv", csv.field_size_limit()
    path.write_text(f'text,price\n"{"word " * (LONG // 5)}",1\n"two\n\nlines, \r""2""",2\nx,3\ny,three\n', newline="")
    reader = RowReader()
    rows = [*reader.table(path)]
    assert [(line, len(row["text"]), row["price"]) for line, row in rows] == [
        (2, LONG, "1"),
        (3, 16, "2"),
        (7, 1, "3"),
        (8, 1, "three"),
    ]
    assert csv.field_size_limit() == limit
    with pytest.raises(BadData, match="line 8: the answer 'three' contains no number"):
        Regression.from_files(path, target="price")


@pytest.mark.parametrize("at", range(2))
def test_a_quotation_mark_that_is_not_closed(at, tmp_path):
    """It would swallow the rest of the file, and in the last column the rows would be missing without a word."""
    rows = [["1", "a"], ["2", "b"], ["3", "c"], ["4", "d"]]
    rows[2][at] = f'"{rows[2][at]}'
    path = lines(tmp_path / "t.csv", "price,text", *map(",".join, rows))
    with pytest.raises(BadData, match=r"t\.csv, line 4: a quotation mark that opens here is not closed\. Close it"):
        Regression.from_files(path, target="price")
    task = Regression.from_files(path, target="price", skip_bad=True)
    assert sorted(example.answer for example in task.examples("train")) == ["1", "2"]
    assert [bad.line for bad in task.skipped] == [4]


@pytest.mark.parametrize("name", ["t.jsonl", "t.json"])
def test_halves_of_characters(name, tmp_path):
    """Programs that cut texts in the middle of an emoji write them; tokenizers do not take them."""
    row = r'{"text": "cut \ud83d", "whole": "\ud83d\ude00 \\ud83d", "price": 7}'
    (tmp_path / name).write_text(row if name == "t.jsonl" else f"[{row}]")
    (example,) = Regression.from_files(tmp_path / name, target="price").examples("train")
    assert example.prompt == "text: cut ?, whole: \U0001f600 \\ud83d. price?"


@pytest.mark.parametrize("name", ["t.csv.gz", "t.jsonl.gz"])
def test_damaged_compressed_files(name, tmp_path):
    """Whatever byte is wrong, the error names the file."""
    text = PLAIN if name == "t.csv.gz" else "".join(f'{{"area": {i}, "price": {i * i % 97}}}\n' for i in range(99))
    whole = gzip.compress(text.encode(), mtime=0)
    for at in range(0, len(whole), 7):
        (tmp_path / name).write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            Regression.from_files(tmp_path / name, target="price")
        except BadData as error:
            assert error.path == tmp_path / name  # noqa: PT017 - a byte of the header may be of no consequence


def test_missing_things(tmp_path):
    with pytest.raises(BadData, match="there is no such file. Check the path"):
        WordProblems.from_files(tmp_path / "nowhere.jsonl")
    with pytest.raises(BadData, match="Expected those of mathematics_dataset"):
        Arithmetic.from_files(tmp_path)
    path = lines(tmp_path / "my.jsonl", json.dumps({"prompt": "?", "answer": "1", "image": "none.png"}))
    with pytest.raises(BadData, match=r"line 1: the image .*none\.png is missing"):
        Regression.from_files(path)
    with pytest.raises(
        ValueError, match=r"no rows that could be read: expected data\. 1 were skipped, the first: .*none\.png is"
    ):
        Regression.from_files(path, skip_bad=True)


def test_arithmetic_files_that_end_too_early(tmp_path):
    path = lines(tmp_path / "train__x.txt", "1 + 1", "2", "1 + 2")
    with pytest.raises(BadData, match="line 3: the last question has no answer"):
        Arithmetic.from_files(path)
    assert len(Arithmetic.from_files(path, skip_bad=True).examples("train")) == 1
    whole = gzip.compress(b"1 + 1\n2\n" * 5000)
    (tmp_path / "train__y.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadData, match="the compressed file is broken"):
        Arithmetic.from_files(tmp_path / "train__y.txt.gz")
    assert Arithmetic.from_files(tmp_path / "train__y.txt.gz", skip_bad=True).skipped


def test_asking_for_more_than_was_read(tmp_path):
    task = Arithmetic.from_files(lines(tmp_path / "train.txt", "1 + 1", "2"))
    with pytest.raises(ValueError, match="n=2 is more than the 1 examples of 'train'"):
        task.examples("train", 2)
    with pytest.raises(ValueError, match="split='extrapolate' has no examples here: expected one of train"):
        task.examples("extrapolate")
