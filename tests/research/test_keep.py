"""research/keep.py on the folders of small comparisons."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import pytest
from tests.research.runs import run_of, write


@pytest.fixture
def comparison(tmp_path: Path) -> Path:
    """Two losses of three seeds that were asked for 10 and 20."""
    folder = tmp_path / "tables_stones"
    write(folder / "experiment.json", {})
    answers = {"ce": [("17", "14"), (None, "26")], "soft": [("66/2", "10"), ("22", "21.25")]}
    for label, pairs in answers.items():
        for seed in range(3):
            rows = [
                {
                    "split": "interpolate",
                    "index": at,
                    "gold": str(10 * at + 10),
                    "answer": greedy,
                    "measures": {"exact": 0.5, "absolute_error": None if greedy is None else 1 / 3},
                    "decisions": {"median": {"answer": decided, "measures": {"exact": 1.0}}},
                }
                for at, (greedy, decided) in enumerate(pairs)
            ]
            soft = {"relative": 0.1, "width": None} if label == "soft" else None
            run_of(folder, label, seed, rows, {"label_median": "50"}, soft=soft)
    run_of(folder, "ce", 1000, [], validation=True)  # a trial
    return folder


def lines(file: Path) -> list[str]:
    return lzma.decompress(file.read_bytes()).decode().splitlines()


def test_scores(script, comparison, tmp_path):
    script.main(["scores", str(comparison), "--out", str(tmp_path)])
    head, *rows = lines(tmp_path / "tables_stones_scores.csv.xz")
    about = "model,label,seed,split,row,train_examples,steps,learning_rate,weight,width"
    assert head == f"{about},exact,absolute_error,median exact"
    assert rows[:2] == [
        "smollm2,ce,0,interpolate,0,80,5,0.001,0.3,,0.5,0.33333,1",
        "smollm2,ce,0,interpolate,1,80,5,0.001,0.3,,0.5,,1",
    ]
    assert rows[-1] == "smollm2,soft,2,interpolate,1,80,5,0.001,0.3,relative 0.1,0.5,0.33333,1"
    assert len(rows) == 12
    script.main(["scores", str(comparison), "--metrics", "exact", "--out", str(tmp_path)])
    assert lines(tmp_path / "tables_stones_scores.csv.xz")[0] == f"{about},exact,median exact"


def test_answers_and_settings(script, comparison, tmp_path):
    script.main(["answers", str(comparison), "--out", str(tmp_path)])
    head, *rows = lines(tmp_path / "tables_stones.csv.xz")
    assert head == "label,seed,row,gold,fallback,greedy,median"
    assert rows[:2] == ["ce,0,0,10,50,17,14", "ce,0,1,20,50,,26"]
    assert rows[-2:] == ["soft,2,0,10,50,66/2,10", "soft,2,1,20,50,22,21.25"]
    settings = (tmp_path / "settings.csv").read_text()
    assert settings.splitlines() == [
        "comparison,label,train_examples,steps,learning_rate,weight,width",
        "tables_stones,ce,80,5,0.001,0.3,",
        "tables_stones,soft,80,5,0.001,0.3,relative 0.1",
    ]
    script.main(["answers", str(comparison), "--out", str(tmp_path)])
    assert (tmp_path / "settings.csv").read_text() == settings  # once


def test_pools(script, tmp_path):
    folder = tmp_path / "pools_stones"
    write(folder / "experiment.json", {})

    def part(answer: float) -> dict:
        return {
            "decisions": {"median": {"answer": str(answer), "measures": {"absolute_error": abs(answer - 10)}}},
            "interval": [str(answer - 2), str(answer + 3)],
            "covers": True,
            "crps": answer / 4,
        }

    def record(at: int, pools: dict) -> dict:
        first = {"split": "interpolate", "index": at, "measures": {"absolute_error": None}, "fallback": {"absolute_error": 7.0}}
        return first | part(11 + at) | {"pools": pools, "seconds": {"search": 0.002}}

    for seed in (0, 1):
        rows = [record(at, {"1": part(14 + at), "2": part(12 + at)}) for at in (0, 1)]
        run_of(folder, "soft", seed, rows, {"cost": {"train_seconds": 30.0}}, members=4)
    script.main(["pools", str(folder), "--out", str(tmp_path)])
    found = (tmp_path / "pools_stones_pools.csv").read_text().splitlines()
    about = "model,label,seed,train_examples,steps,learning_rate,weight,width,split,members,decision,rows"
    assert found[0] == f"{about},absolute_error,train_seconds,crps,covers,interval,milliseconds"
    about = "smollm2,soft,0,80,5,0.001,0.3,,interpolate"
    assert found[1:5] == [
        f"{about},1,greedy,2,7,30,,,,",
        f"{about},1,median,2,4.5,30,3.625,1,5,",
        f"{about},2,median,2,2.5,30,3.125,1,5,",
        f"{about},4,median,2,1.5,30,2.875,1,5,2",
    ]
    script.main(["pools", str(folder), "--out", str(tmp_path)])
    assert (tmp_path / "pools_stones_pools.csv").read_text().splitlines() == found  # once


@pytest.mark.parametrize("what", ["scores", "answers", "curves", "pools"])
def test_a_folder_that_is_no_comparison_or_is_not_finished(script, comparison, tmp_path, what):
    with pytest.raises(SystemExit, match="has no cells: expected a folder written by `numerate compare`"):
        script.main([what, str(tmp_path), "--out", str(tmp_path / "kept")])
    assert not (tmp_path / "kept").exists()
    (comparison / "cells" / "soft-2" / "result.json").unlink()
    with pytest.raises(ValueError, match="expected the same seeds of every loss of smollm2, but has ce 3, soft 2"):
        script.keep_scores(comparison, tmp_path)


def test_scores_join_those_of_other_runs(script, comparison, tmp_path):
    script.keep_scores(comparison, tmp_path)
    file = tmp_path / "tables_stones_scores.csv.xz"
    before = lines(file)
    for folder in (comparison / "cells").iterdir():  # another model, on another machine: one seed is there twice
        config = json.loads((folder / "config.json").read_text())
        config |= {"model": "larger"} if config["seed"] else {}
        write(folder / "config.json", config)
    script.keep_scores(comparison, tmp_path)
    found = lines(file)
    assert set(before) < set(found)
    assert len(found) == len(before) + 8  # two losses, two seeds, two rows
    assert {line.split(",")[0] for line in found[1:]} == {"larger", "smollm2"}
    script.keep_scores(comparison, tmp_path)
    assert lines(file) == found
