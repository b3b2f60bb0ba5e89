"""The notebook in `examples/`: its cells run in order in one namespace, and leave what they promise."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "own_table.ipynb"
MOST_BYTES = 120_000  # of the file, with its picture


@pytest.fixture(scope="module")
def notebook() -> dict:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def code(notebook: dict) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_file(notebook):
    """What Jupyter and GitHub need to show it, with the printed results and one picture."""
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert NOTEBOOK.stat().st_size < MOST_BYTES
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len({*ids}) == len(ids)
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert "/tmp" not in json.dumps(outputs)
    text = "".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert all((NOTEBOOK.parent / link).is_file() for link in links)


@pytest.mark.launch
def test_it_runs(notebook, tmp_path, monkeypatch, capsys):
    for package in ("pandas", "transformers", "peft"):
        pytest.importorskip(package)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "notebook"}
    for number, cell in enumerate(code(notebook)):
        exec(compile(cell, f"code cell {number}", "exec"), space)
    runs = tmp_path / "runs"
    for name in ("diamonds/model/README.md", "compare-diamonds/report.html", "one_row.png"):
        assert (runs / name).stat().st_size > 0
    with (runs / "predictions.csv").open(newline="", encoding="utf-8") as file:
        rows = [*csv.DictReader(file)]
    assert rows
    assert all(float(row["low"]) <= float(row["prediction"]) <= float(row["high"]) for row in rows)
    printed = capsys.readouterr().out
    assert "median relative error of greedy answers" in printed
    assert "truth:" in printed
    assert len(space["frame"]) == 1500
