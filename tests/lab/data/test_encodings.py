"""Tables as people have them: encodings, Excel workbooks, and paths that are no tables."""

from __future__ import annotations

import gzip
import sys
from datetime import datetime, time
from pathlib import Path

import pytest

from numerate.lab.data import TASKS, Regression
from numerate.lab.data.readers import OLD, READERS, TEXTS
from numerate.lab.data.row_reader import ENCODINGS, BadData, check_encoding
from numerate.lab.models.questions import Questions, Table

FLATS = "Straße;Fläche;Miete\n" + "".join(f"Münchner Allee;{40 + i},5;1.{100 + i},50 €\n" for i in range(30))
ENCODED = {
    "UTF-8": FLATS.encode(),
    "UTF-8 with a mark": FLATS.encode("utf-8-sig"),
    "cp1252": FLATS.encode("cp1252"),
    "UTF-16 with a mark": FLATS.encode("utf-16"),
    "UTF-16, little-endian": FLATS.encode("utf-16-le"),
    "UTF-16, big-endian": FLATS.encode("utf-16-be"),
    "UTF-32 with a mark": FLATS.encode("utf-32"),
    "Windows line ends": FLATS.replace("\n", "\r\n").encode("cp1252"),
}


def answers(task) -> set[str]:
    return {row.answer for rows in task.rows.values() for row in rows}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", ENCODED)
def test_an_encoding_is_detected(name, packed, tmp_path):
    """Answers, texts and separator are the same, for training and for new rows."""
    file = tmp_path / ("flats.csv.gz" if packed else "flats.csv")
    file.write_bytes(gzip.compress(ENCODED[name]) if packed else ENCODED[name])
    task = Regression.from_files(file, target="Miete", columns=("Straße", "Fläche"))
    assert answers(task) == {f"1{100 + i}.50" for i in range(30)}
    assert all(
        row.prompt.startswith("Straße: Münchner Allee, Fläche: 4") or "Fläche: " in row.prompt for row in task.rows["train"]
    )
    assert any("is read as cp1252" in note for note in task.notes) == (b"\x80" in ENCODED[name])
    scanned = Table.scan(file, Questions(Regression(target="Miete", columns=("Straße",))))
    assert scanned.columns == ("Straße", "Fläche", "Miete")
    assert scanned.answers[0] == 1100.5
    assert next(scanned.batches(0, 1, 1))[1][0]["Straße"] == "Münchner Allee"


POLISH = "ulica,cena\n" + "".join(f"Żółta {i},{100 + i}\n" for i in range(12))


def test_an_encoding_that_is_named(tmp_path):
    file = tmp_path / "ceny.csv"
    file.write_bytes(POLISH.encode("cp1250"))
    task = Regression.from_files(file, target="cena", encoding="cp1250")
    assert any(row.prompt == "ulica: Żółta 1. cena?" for rows in task.rows.values() for row in rows)
    with pytest.raises(BadData, match=r"cannot be read with encoding='utf-8' .*--encoding"):
        Regression.from_files(file, target="cena", encoding="utf-8")
    file.write_bytes(POLISH.replace("Ż", "\u0452").encode("cp1251", "replace") + b"\x81\x8d,3\n")
    with pytest.raises(BadData, match="is neither UTF-8 nor cp1252. Name its encoding"):
        Regression.from_files(file, target="cena")


@pytest.mark.parametrize("name", ENCODINGS)
def test_named_encodings_are_known(name):
    check_encoding(name)
    for other in (f"{name}9", "hex"):  # a codec that is no encoding
        with pytest.raises(ValueError, match=f"encoding='{other}' is not known: expected .* such as utf-8, cp1252"):
            check_encoding(other)


def test_one_wrong_byte_in_utf8_is_told_with_its_line(tmp_path):
    file = tmp_path / "flats.csv"
    file.write_bytes(FLATS.encode() + b"caf\xe9;41,5;1.200,00\n")
    with pytest.raises(BadData, match=r"line 32: is not UTF-8 \(byte 0xe9 at column 4\)"):
        Regression.from_files(file, target="Miete")


@pytest.mark.parametrize(
    ("begin", "words"),
    [
        (b"PK\x03\x04\0\0", r"an Excel workbook\. Name an Excel workbook \.xlsx"),
        (b"\xd0\xcf\x11\xe0\0", r"before 2007\. Save it as \.xlsx or CSV"),
        (b"PAR1\0", "Parquet"),
        (b"\x1f\x8b\x08\0", r"Let its name end in \.gz"),
        (b"%PDF-1.7", "a PDF file"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\x7fELF\0\1\2\3\4\5\6", "is not a text file"),
    ],
)
@pytest.mark.parametrize("kind", TEXTS)
def test_a_file_that_is_no_text(begin, words, kind, tmp_path):
    file = tmp_path / f"flats{kind}"
    file.write_bytes(begin + bytes(range(200, 256)))
    with pytest.raises(BadData, match=words):
        Regression.from_files(file, target="Miete")


# Excel


def workbook(path: Path, **sheets: list[list]) -> Path:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)
    return path


ROWS = [["Fläche", "seit", "um", "Miete"], *([40 + i / 2, datetime(2024, 4, 1), time(9, 30), 900 + i] for i in range(12))]


@pytest.mark.parametrize("kind", [".xlsx", ".xlsm"])
def test_a_workbook(kind, tmp_path):
    file = workbook(tmp_path / f"wohnungen{kind}", Tabelle1=[[], *ROWS[:5], [], *ROWS[5:]], Leer=[])
    task = Regression.from_files(file, target="Miete", columns=("Fläche", "seit", "um"))
    prompts = {row.prompt for rows in task.rows.values() for row in rows}
    assert prompts == {f"Fläche: {40 + i / 2:g}, seit: 2024-04-01, um: 09:30:00. Miete?" for i in range(12)}
    assert answers(task) == {str(900 + i) for i in range(12)}
    assert Table.scan(file, Questions(Regression(target="Miete", columns=("Fläche",)))).rows == 12


def test_the_sheets_of_a_workbook(tmp_path):
    file = workbook(tmp_path / "zwei.xlsx", Miete=ROWS, Kauf=ROWS[:11])
    with pytest.raises(BadData, match=r"zwei\.xlsx: has several sheets: Miete, Kauf\. Name one: sheet='\.\.\.' \(--sheet\)"):
        Regression.from_files(file, target="Miete")
    assert len(answers(Regression.from_files(file, target="Miete", sheet="Kauf"))) == 10
    with pytest.raises(BadData, match=r"has no sheet 'Kaufe'\. Sheets here: Miete, Kauf\. Did you mean 'Kauf'"):
        Regression.from_files(file, target="Miete", sheet="Kaufe")
    with pytest.raises(BadData, match="is empty"):
        Regression.from_files(workbook(tmp_path / "leer.xlsx", A=[]), target="Miete")
    with pytest.raises(BadData, match="has no rows below its first one"):
        Regression.from_files(workbook(tmp_path / "kopf.xlsx", A=ROWS[:1]), target="Miete")
    with pytest.raises(BadData, match="zweimal.xlsx, row 1: columns 1 and 2 are both named 'a'"):
        Regression.from_files(workbook(tmp_path / "zweimal.xlsx", A=[["a", "a"], [1, 2]]), target="a")


def test_a_workbook_that_cannot_be_read(tmp_path, monkeypatch):
    file = tmp_path / "flats.xlsx"
    file.write_text(FLATS)
    with pytest.raises(BadData, match="there is no such file"):
        Regression.from_files(tmp_path / "missing.xlsx", target="Miete")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(BadData, match=r"needs the package openpyxl\. Run pip install 'numerate\[excel\]'"):
        Regression.from_files(file, target="Miete")


@pytest.mark.parametrize("kind", OLD)
def test_other_spreadsheets_name_the_way_out(kind, tmp_path):
    with pytest.raises(BadData, match=r"which is not read\. Save it as \.xlsx or \.csv"):
        Regression.from_files(tmp_path / f"flats{kind}", target="Miete")


# Paths that are no tables


@pytest.mark.parametrize("name", TASKS)
def test_a_web_address(name):
    for address in ("https://example.com/flats.csv", "s3://bucket/flats"):
        with pytest.raises(BadData, match="is a web address. Download the file first"):
            TASKS[name].from_files(address)


def test_a_folder_lists_its_tables(tmp_path):
    with pytest.raises(BadData, match=r"is a folder\. Name one file in it\."):
        Regression.from_files(tmp_path, target="Miete")
    for name in ("b.csv", "a.xlsx", "notes.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(BadData, match=r"is a folder\. Name one file in it: it has a\.xlsx, b\.csv\."):
        Regression.from_files(tmp_path, target="Miete")


@pytest.mark.parametrize("kind", [kind for kind, read in READERS.items() if kind in (".csv", ".tsv")])
def test_a_header_without_rows(kind, tmp_path):
    (tmp_path / f"flats{kind}").write_text("area,rent\n")
    for reading in (Regression.from_files, lambda path, target: Table.scan(path, Questions(Regression(target=target)))):
        with pytest.raises(BadData, match=r"has a header \(area,? ?,?rent\) and no rows\. Expected a row per line below it"):
            reading(tmp_path / f"flats{kind}", target="rent")
