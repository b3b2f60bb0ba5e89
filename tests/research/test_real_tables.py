"""research/real_tables.py on packages with the names and columns of the real ones and a few rows, and on the real ones."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import pytest

from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.data.tables import FOLDER

ROOT = Path(__file__).parents[2]


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
