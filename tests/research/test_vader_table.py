"""research/vader_table.py on a lexicon of a few words, the runs of its experiment, and records whose scores are known."""

from __future__ import annotations

import csv
import json
import lzma
import sys
from pathlib import Path

import pytest

from numerate.lab.comparison.plan import comparison_settings, read_experiment
from numerate.lab.data.settings import make_task
from numerate.lab.models.loading import load_encoder
from numerate.lab.training.run import check_run

LEXICON = "good\t2.0\t0.6\t[1, 2, 3]\nbad\t-2.0\t0.0\t[-2, -2, -2]\ngood\t2.0\t0.6\t[3, 3, 3]\n"
SURE = {"values": ["2"], "probabilities": [1.0]}
TORN = {"values": ["1", "3"], "probabilities": [0.5, 0.5]}


@pytest.fixture
def table(script, tmp_path):
    words = "".join(f"w{i}\t1.0\t0.8\t[0, 1, 2]\n" for i in range(40))
    (tmp_path / "lexicon.txt").write_text(words)
    script.write_table(script.words(tmp_path / "lexicon.txt"), tmp_path / "vader.csv")
    return tmp_path / "vader.csv"


def record(index, word, distribution, error):
    decisions = {"median": {"answer": "1", "measures": {"absolute_error": error}}}
    measures = {"absolute_error": error, "exact": 0.0}
    about = {"split": "interpolate", "index": index, "prompt": f"word: {word}. rating?", "gold": 1.0}
    return about | {"measures": measures, "decisions": decisions, "distribution": distribution}


def test_words_and_their_ratings(script, tmp_path):
    (tmp_path / "lexicon.txt").write_text(LEXICON)
    assert script.words(tmp_path / "lexicon.txt") == {"good": [1, 2, 3], "bad": [-2, -2, -2]}  # a word keeps its first ones
    script.write_table({"good": [1, 2, 3]}, tmp_path / "vader.csv")
    assert (tmp_path / "vader.csv").read_text().splitlines() == ["word,rating", 'good,"[1, 2, 3]"']


def test_a_distribution_against_every_rating(script):
    sure = script.against_ratings(record(0, "good", SURE, 1.0), [1, 2, 3])
    assert sure == {
        "CRPS_of_the_ratings": "0.66667",  # the mean of 1, 0 and 1
        "CRPS_of_their_mean": "1",
        "ratings_in_the_90_%_interval": "0.33333",
        "mean_error": "1",
        "median mean_error": "1",
    }
    torn = script.against_ratings(record(0, "good", TORN, 1.0), [1, 2, 3])
    assert torn["CRPS_of_the_ratings"] == "0.5"  # E|X - r| is 1 for each of the three, less half of E|X - X'|
    assert torn["ratings_in_the_90_%_interval"] == "1"
    assert script.against_ratings(record(0, "good", None, None), [1, 2]) == {"mean_error": "", "median mean_error": ""}


def test_the_scores_of_a_comparison(script, table, tmp_path, monkeypatch, capsys):
    runs = tmp_path / "vader"
    for label, distribution in (("ce", SURE), ("soft", TORN)):
        cell = runs / "cells" / label
        cell.mkdir(parents=True)
        config = {"model": "tiny", "label": label, "seed": 0, "steps": 5, "learning_rate": 1e-3, "weight": 0.3}
        (cell / "config.json").write_text(json.dumps(config))
        (cell / "result.json").write_text("{}")
        rows = [record(index, f"w{index}", distribution, 0.5) for index in range(3)]
        (cell / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (runs / "experiment.json").write_text(json.dumps({"cells": ["ce", "soft"]}))
    monkeypatch.setattr(sys, "argv", ["vader_table.py", str(table), "--score", str(runs), "--out", str(tmp_path / "kept")])
    script.main()
    assert capsys.readouterr().out.splitlines() == [
        "CRPS of the ratings, of a forecast that is the word's own ratings: 0.444",
        "CRPS of the ratings, of one that is certain of their mean: 0.667",
    ]
    with lzma.open(tmp_path / "kept" / "vader_scores.csv.xz", "rt") as text:
        kept = [*csv.DictReader(text)]
    assert [(row["label"], row["row"], row["CRPS_of_the_ratings"]) for row in kept] == [
        *(("ce", str(index), "1") for index in range(3)),  # 2, 1 and 0 from 2
        *(("soft", str(index), "0.83333") for index in range(3)),  # |X - r| is 2, 1 and 1, less 0.5
    ]
    assert {row["median mean_error"] for row in kept} == {"0.5"}
