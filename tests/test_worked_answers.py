"""scripts/worked_answers.py on records whose likelihoods are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from numerate.lab.likelihood import NUMBER_NLL, TEXT_NLL

EXAMPLES = 30
KNOWN = {"ce": (1.0, 0.5, 10), "ntil": (0.8, 0.502, 11), "ntil results": (0.8, 0.55, 20)}  # numbers, text, exact answers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    described = {"name": "words", "created": "", "command": "", "baseline": "ce", "config": {}, "environment": {}}
    write(tmp_path / "experiment.json", described)
    for label, (numbers, text, right) in KNOWN.items():
        for seed in range(3):
            cell = tmp_path / "cells" / f"{label}-{seed}"
            same = {"model": "smollm2", "task": "word_problems", "task_settings": {}, "data": "svamp", "steps": 5}
            write(cell / "config.json", {**same, "label": label, "loss": label.split()[0], "seed": seed, "weight": 0.3})
            write(cell / "result.json", {"headline": "exact", "splits": {"interpolate": {"n": EXAMPLES}}, "cost": {}})
            shift = 0.0001 * (seed - 1)
            rows = []
            for index in range(EXAMPLES):
                measures = {"exact": float(index < right), NUMBER_NLL: numbers + shift + 0.01 * index, TEXT_NLL: text + shift}
                texts = {"prompt": f"problem {index}", "gold": "#### 5", "output": "#### 5", "answer": "5"}
                rows.append({"split": "interpolate", "index": index, **texts, "measures": measures})
            (cell / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def write(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def rows_of(lines: list[str]) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| ")]
    return {first: others for first, *others in cells[2:]}


def test_numbers_that_get_better_and_text_that_does_not_get_worse(script, folder):
    lines = list(script.table(folder))
    assert lines[1].endswith("3 seeds, 30 problems, smollm2, against ce")
    rows = rows_of(lines)
    assert rows.keys() == KNOWN.keys()
    assert rows["ce"] == ["33.3", "", "1.1450", "", "0.5000", "", ""]
    exact, gained, numbers, fewer, text, more, no_worse = rows["ntil"]
    assert (exact, numbers, text, no_worse) == ("36.7", "0.9450", "0.5020", "yes")  # 0.4 % more, with every seed
    assert gained.startswith("+3.3 (")
    assert fewer.startswith("−0.2000 (−0.2")
    assert fewer.endswith("), p < 0.001")
    assert more.startswith("+0.0020 (")
    assert rows["ntil results"][-1] == "not shown"  # 10 % more


def test_another_contrast(script, folder):
    rows = rows_of(list(script.table(folder, "ntil", ["ntil results"])))
    assert rows.keys() == {"ntil", "ntil results"}
    assert rows["ntil results"][1].startswith("+30.0 (")
    assert rows["ntil results"][5].startswith("+0.0480 (")


def test_unknown_losses_are_named(script, folder):
    with pytest.raises(ValueError, match="has no runs of emd: expected some of ce, .*ntil"):
        list(script.table(folder, losses=["emd"]))
    with pytest.raises(ValueError, match="has no runs of smmd: expected some of"):
        list(script.table(folder, "smmd"))
