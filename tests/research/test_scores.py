"""research/scores.py on records whose scores are known."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from tests.research.runs import run_of, write

from numerate.lab.evaluation.likelihood import NUMBER_NLL, TEXT_NLL

EXAMPLES = 30
KNOWN = {"ce": (0.975, 0.5, 10), "ntil": (0.8, 0.502, 11), "ntil results": (0.8, 0.55, 20)}  # numbers, text, exact answers
WORDS = ["--metrics", f"exact,{NUMBER_NLL},{TEXT_NLL}", "--no-worse", TEXT_NLL]


@pytest.fixture
def words(script, tmp_path: Path) -> Path:
    folder = tmp_path / "words"
    write(folder / "experiment.json", {})
    for label, (numbers, text, right) in KNOWN.items():
        for seed in range(3):
            shift = 0.0001 * (seed - 1)
            likelihoods = [{NUMBER_NLL: numbers + shift + 0.01 * index, TEXT_NLL: text + shift} for index in range(EXAMPLES)]
            measures = [{"exact": float(index < right)} | likelihoods[index] for index in range(EXAMPLES)]
            rows = [{"split": "interpolate", "index": index, "measures": each} for index, each in enumerate(measures)]
            run_of(folder, label, seed, rows)
    run_of(folder, "ce", 1000, [], validation=True)  # a trial
    import_module("keep").keep_scores(folder, tmp_path)
    return tmp_path / "words_scores.csv.xz"


def rows_of(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    return {first: others for first, *others in cells[2:]}


def test_numbers_that_get_better_and_text_that_does_not_get_worse(script, words, capsys):
    script.main(["losses", str(words), *WORDS])
    printed = capsys.readouterr().out
    assert "**words, interpolate**: `smollm2`, 3 seeds, 30 examples\n" in printed
    rows = rows_of(printed)
    assert rows.keys() == {f"`{label}`" for label in KNOWN}
    assert rows["`ce`"] == ["33.3", "", "1.12", "", "0.500", "", ""]
    exact, gained, numbers, fewer, text, more, no_worse = rows["`ntil`"]
    assert (exact, numbers, text, no_worse) == ("36.7", "0.945", "0.502", "yes")  # 0.4 % more, with every seed
    assert gained.startswith("+3.3 (")
    assert fewer.startswith("−0.175 (−0.1")
    assert fewer.endswith("), p\u00a0<\u00a00.001")  # does not break in a narrow table
    assert more.startswith("+0.00200 (")
    assert rows["`ntil results`"][-1] == "not shown"  # 10 % more
