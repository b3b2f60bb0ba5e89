"""Tables that come with the package, compressed files, and questions with the values alone."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from numerate.lab.data import Regression
from numerate.lab.data.row_reader import BadData
from numerate.lab.data.tables import FOLDER, TABLES, table_file
from numerate.lab.prediction.answering import find_source
from numerate.lab.prediction.predict import predict
from numerate.lab.training.config import RunConfig, checked
from numerate.lab.training.run import run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[3]
FLATS = "area,rooms,rent\n" + "".join(f"{20 + i},{i % 3},{300 + 10 * i}\n" for i in range(40))


# The packaged table


def test_diamonds_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = Regression.from_files("diamonds", target="price")
    assert {split: task.count(split) for split in task.splits} == {"train": 4755, "interpolate": 1245}
    assert not task.skipped
    rows = [row for split in task.splits for row in task.rows[split]]
    prices = [int(row.answer) for row in rows]
    assert (min(prices), max(prices)) == (334, 18787)
    first = task.examples("train", 1)[0]
    assert (first.prompt, first.answer) == ("carat: 1.01, cut: Ideal, color: E, clarity: SI1. price?", "5262")


def test_esol_by_name():
    task = Regression.from_files("esol", target="logSolubility", wording="bare")
    assert {split: task.count(split) for split in task.splits} == {"train": 931, "interpolate": 197}
    assert not task.skipped
    assert "Cc1occc1C(=O)Nc2ccccc2" in {row.prompt for split in task.splits for row in task.rows[split]}
    assert task.measures[0] == "absolute_error"  # logarithms have both signs


def test_a_file_comes_before_a_table_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "diamonds").mkdir()  # a folder is no table
    assert table_file(Path("diamonds")) == FOLDER / "diamonds.csv.gz"
    (tmp_path / "diamonds.csv").write_text(FLATS, encoding="utf-8")
    assert sum(map(len, Regression.from_files("diamonds.csv", target="rent").rows.values())) == 40
    (tmp_path / "diamonds").rmdir()
    (tmp_path / "diamonds").write_text(FLATS, encoding="utf-8")
    with pytest.raises(BadData, match=r"diamonds: has the file type \(none\)"):
        Regression.from_files("diamonds", target="rent")


def test_an_unknown_name_lists_the_tables():
    with pytest.raises(BadData, match=r"diamond: is neither a file nor .* tables: diamonds, esol. Did you mean 'diamonds'\?"):
        Regression.from_files("diamond", target="price")
    with pytest.raises(BadData, match="there is no such file"):
        Regression.from_files("diamond.csv", target="price")


def test_every_table_is_small_and_has_its_origin_and_licence():
    origins = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert TABLES
    for name in TABLES:
        assert (FOLDER / f"{name}.csv.gz").stat().st_size < 100_000
        section = origins.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert "Origin:" in section
        assert "Licence:" in section
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert str((FOLDER / "README.md").relative_to(FOLDER.parents[4])) in project["license-files"]


# Compressed files


def test_a_compressed_table_with_decimal_commas(tmp_path):
    packed = tmp_path / "flats.csv.gz"
    packed.write_bytes(gzip.compress(b"area;rent\n84;1,234\n51;9,702\n"))
    with pytest.raises(BadData, match="decimal"):  # as in a plain file with semicolons, either mark is likely
        Regression.from_files(packed, target="rent")
    assert {row.answer for row in Regression.from_files(packed, target="rent", decimal=",").rows["train"]} == {"1.234", "9.702"}


def test_other_compressed_files_are_refused(tmp_path):
    with pytest.raises(BadData, match=r"has the file type \.txt"):
        Regression.from_files(tmp_path / "flats.txt.gz", target="rent")


# Values alone


def test_bare_questions_have_the_columns_in_order(tmp_path):
    file = tmp_path / "flats.csv"
    file.write_text("area,note,rent,city\n84.0,a,900,Ulm\n", encoding="utf-8")
    prompts = [
        Regression.from_files(file, target="rent", wording="bare", columns=columns).examples("train")[0].prompt
        for columns in (None, ("city", "area"))
    ]
    assert prompts == ["84.0 a Ulm", "Ulm 84.0"]


def test_bare_wording_needs_a_table():
    with pytest.raises(ValueError, match="wording='bare' needs a target"):
        Regression(wording="bare")
    with pytest.raises(ValueError, match="wording='short' is not known: expected one of 'names', 'bare'"):
        Regression(target="rent", wording="short")


def test_a_run_with_the_packaged_table_and_bare_questions(tmp_path):
    """Predictions ask in the words of the training, and find the test rows of the packaged table."""
    settings = {"target": "price", "wording": "bare"}
    quick = {"steps": 2, "batch_size": 4, "train_examples": 16, "eval_examples": 2, "keep_model": True}
    config = checked(RunConfig, {"task": "regression", "data": "diamonds", "task_settings": settings, **quick})
    run(config, tmp_path / "run")
    record = json.loads((tmp_path / "run" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert len(record["prompt"].split(" ")) in (4, 5)  # `Very Good` has a blank
    new = tmp_path / "new.csv"
    new.write_text("carat,cut,color,clarity\n0.3,Ideal,G,VS2\n", encoding="utf-8")
    said: list[str] = []
    result = predict(tmp_path / "run", new, tmp_path / "out.csv", explain=1, say=said.append)
    assert result.explained[0].prompt == "0.3 Ideal G VS2"
    assert said == ["intervals are calibrated on 200 test rows of the training table"]
    (tmp_path / "run" / "model" / "numerate.json").unlink()  # a run of before
    row = {"carat": "1", "cut": "Fair", "color": "E", "clarity": "IF"}
    assert find_source(str(tmp_path / "run")).questions.ask(row, tmp_path).prompt == "1 Fair E IF"
