"""scripts/results.py on the folder of a small comparison, and on errors that are known."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def run(folder, label, seed, answers, *, validation=False, soft=None):
    """Write the files of a run that was asked for 10, 20, .. ; each answer is greedy, or (greedy, median)."""
    cell = folder / "cells" / f"{label}{seed}{validation}"
    cell.mkdir(parents=True)
    config = {"label": label, "seed": seed, "validation": validation, "soft": soft}
    config |= {"train_examples": 1000, "steps": 1200, "learning_rate": 0.001, "weight": 0.3}
    (cell / "config.json").write_text(json.dumps(config))
    (cell / "result.json").write_text(json.dumps({"label_median": "50"}))
    lines = [
        {"index": at, "gold": str(10 * at + 10), "answer": greedy, "decisions": {"median": {"answer": decided}}}
        for at, (greedy, decided) in enumerate(answers)
    ]
    (cell / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def kept(script, tmp_path):
    folder = tmp_path / "tables_stones"
    for seed in range(3):
        run(folder, "ce", seed, [("17", "14"), (None, "26"), ("66/2", "31")])
        run(folder, "soft", seed, [("11", "10"), ("22", "21"), (f"3{seed}", "30.25")], soft={"relative": 0.1, "width": None})
    run(folder, "ce", 1000, [("1", "1")] * 3, validation=True)  # a trial
    script.keep(folder, tmp_path / "kept")
    (tmp_path / "kept" / "tables_stones_rivals.csv").write_text("rival,seed,mae\nboosting,0,4\nboosting,1,2\nboosting,2,3\n")
    return tmp_path / "kept" / "tables_stones.csv.xz"


def test_answers_are_kept_and_read_again(script, kept):
    found = script.read(kept)
    assert found.title == "stones, 1,000 rows"
    assert set(found.errors) == {(label, rule) for label in ("ce", "soft") for rule in ("greedy", "median")}
    assert found.errors["ce", "greedy"].tolist() == [[7, 30, 3]] * 3  # the second counts as the median label, 50
    assert found.errors["soft", "greedy"][:, 2].tolist() == [0, 1, 2]
    assert found.errors["soft", "median"][0].tolist() == [0, 1, 0.25]
    assert found.typical(("soft", "greedy")) == pytest.approx(4 / 3)
    assert found.rivals["boosting"].tolist() == [4, 2, 3]


def test_settings_are_kept_once(script, kept, tmp_path):
    settings = kept.parent / "settings.csv"
    before = settings.read_text()
    assert before.splitlines()[1:] == [
        "tables_stones,ce,1000,1200,0.001,0.3,",
        "tables_stones,soft,1000,1200,0.001,0.3,relative 0.1",
    ]
    script.keep(tmp_path / "tables_stones", kept.parent)
    assert settings.read_text() == before


def noisy(rng, sizes, seeds=8, rows=300):
    """Errors of losses that answer the same rows: a size each, times what is hard about a row."""
    hard = rng.exponential(1, rows)
    return {way: size * hard * rng.exponential(1, (seeds, rows)) for way, size in sizes.items()}


@pytest.fixture
def comparison(script):
    ways = [(label, rule) for label in ("ce", "ntil", "soft", "soft_jitter") for rule in ("greedy", "median")]
    sizes = dict.fromkeys(ways, 1.0) | {("ntil", "median"): 0.9, ("soft", "median"): 0.4}
    return script.Kept("tables_stones_10000", noisy(np.random.default_rng(0), sizes), {"boosting": np.full(8, 0.3)})


def test_the_best_decision_of_each_published_loss(comparison):
    assert comparison.published == [("ntil", "median")]
    assert comparison.title == "stones, 10,000 rows"


def test_tests_tell_a_difference_from_none(script, comparison):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.tests_table([comparison])]
    assert [row[2] for row in lines[2:]] == ["`ce`, greedy", "`ce`, median", "`ntil`, median"]
    assert all(row[-1] == "< 0.001" and row[-3] == "< 0.001" and row[5].startswith("-") for row in lines[2:])
    paths = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.paths_table([comparison])]
    by_way = {row[2]: row for row in paths[2:]}
    assert by_way["`soft_jitter`, median"][-1] == "< 0.001"
    assert float(by_way["`soft_jitter`, greedy"][-1]) > 0.01
    losses = [*script.losses_table([comparison])]
    assert losses[0].split("|")[3:6] == [" `ntil` ", " `soft` ", " `soft_jitter` "]
    assert "(< 0.001)" in losses[3].split("|")[4]
    decided = [*script.decisions_table([comparison])][2].split("|")
    assert ["(< 0.001)" in cell for cell in decided[2:6]] == [False, False, True, False]


def test_errors_have_a_line_for_each_loss_and_rival(script, comparison):
    lines = [*script.errors_tables([comparison])]
    first = [line.split("|")[1].strip() for line in lines[3:]]
    assert first[0] == "`soft`"
    assert sorted(first) == ["`ce`", "`ntil`", "`soft_jitter`", "`soft`", "gradient boosting"]
    assert sum(line.count("**") for line in lines) == 2  # the best one
    assert len({line.count("|") for line in lines[1:]}) == 1


def test_the_figure_is_drawn(script, comparison, tmp_path):
    script.main(["figure", str(tmp_path / "figure.png"), str(ROOT / "docs" / "results" / "diamonds_soft.csv.xz")])
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_other_models_are_tested_over_runs(script, comparison):
    typical = script.number(comparison.typical(("soft", "median")))
    level = comparison.of_runs(("soft", "median")) * np.linspace(0.9, 1.1, 8)
    some = script.Kept("tables_more", comparison.errors, {"scalar": level})
    header, _, first, second = script.rivals_table([comparison, some])
    assert header == "| table | `soft`, median | a scalar head | gradient boosting |"
    assert first.split("|")[2:4] == [f" {typical} ", "  "]
    assert first.endswith("% (< 0.001) |")
    assert second.startswith(f"| more, 1,000 rows | {typical} | ")
    assert float(second.split("(")[1].split(")")[0]) > 0.05
