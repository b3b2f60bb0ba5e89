"""research/tables.py on answers and errors that are known."""

from __future__ import annotations

import lzma

import numpy as np
import pytest

ANSWERS = """label,seed,row,gold,fallback,greedy,median
ce,0,0,10,50,17,14
ce,0,1,20,50,,26
ce,1,0,10,50,66/2,31
ce,1,1,20,50,11,20
soft,0,0,10,50,10,10
soft,0,1,20,50,22,20.25
soft,1,0,10,50,13,10
soft,1,1,20,50,22,20
"""


def test_answers_are_read(script, tmp_path):
    (tmp_path / "tables_stones.csv.xz").write_bytes(lzma.compress(ANSWERS.encode()))
    (tmp_path / "tables_stones_rivals.csv").write_text("baseline,seed,mae\nboosting,0,4\nboosting,1,2\n")
    found = script.read(tmp_path / "tables_stones.csv.xz")
    assert found.title == "stones, 1,000 rows"
    assert [*found.errors] == [(label, rule) for rule in ("greedy", "median") for label in ("ce", "soft")]
    assert found.errors["ce", "greedy"].tolist() == [[7, 30], [23, 9]]  # no answer counts as the median label, 50
    assert found.errors["soft", "median"].tolist() == [[0, 0.25], [0, 0]]
    assert found.typical(("soft", "greedy")) == pytest.approx(1.75)
    assert found.baselines["boosting"].tolist() == [4, 2]
    assert found.asked == ((0, 0, 10), (0, 1, 20), (1, 0, 10), (1, 1, 20))


def noisy(rng, sizes, seeds=8, rows=300):
    """Errors of losses that answer the same rows: a size each, times what is hard about a row."""
    hard = rng.exponential(1, rows)
    return {way: size * hard * rng.exponential(1, (seeds, rows)) for way, size in sizes.items()}


@pytest.fixture
def comparison(script):
    ways = [(label, rule) for label in ("ce", "ntil", "soft", "soft_jitter") for rule in ("greedy", "median")]
    sizes = dict.fromkeys(ways, 1.0) | {("ntil", "median"): 0.9, ("soft", "median"): 0.4}
    return script.Kept("tables_stones_10000", noisy(np.random.default_rng(0), sizes), {"boosting": np.full(8, 0.3)})


def test_tests_tell_a_difference_from_none(script, comparison):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.tests_table([comparison])]
    assert [row[2] for row in lines[2:]] == ["`ce`, greedy", "`ce`, median", "`ntil`, median"]
    assert all(row[-1] == "< 0.001" and row[-3] == "< 0.001" and row[5].startswith("−") for row in lines[2:])
    paths = [[cell.strip() for cell in line.split("|")[1:-1]] for line in script.paths_table([comparison])]
    by_way = {row[2]: row for row in paths[2:]}
    assert by_way["`soft_jitter`, median"][-1] == "< 0.001"
    assert float(by_way["`soft_jitter`, greedy"][-1]) > 0.01
    losses = [*script.losses_table([comparison])]
    assert losses[0].split("|")[3:6] == [" `ntil` ", " `soft` ", " `soft_jitter` "]
    assert "(< 0.001)" in losses[3].split("|")[4]
    decided = [*script.decisions_table([comparison])][2].split("|")
    assert ["(< 0.001)" in cell for cell in decided[2:6]] == [False, False, True, False]


def test_derailed_answers_have_more_digits_than_any_label(script, tmp_path):
    lines = "label,seed,row,gold,fallback,greedy,median,mean\n"
    for seed, greedy in enumerate(("999", "1000", "")):  # as long as the longest label, one digit longer, no number
        lines += f"ce,{seed},0,100,50,{greedy},7,2000.5\nce,{seed},1,9,50,-12345,7,999.9\n"
    files = [tmp_path / f"tables_stones{size}.csv.xz" for size in ("_10000", "")]
    for file in files:
        file.write_bytes(lzma.compress(lines.encode()))
    table = rows_of("\n".join(script.derailed_table([script.read(file) for file in files])))
    counts = ["4, in 3 of 3 runs", "0", "3, in 3 of 3 runs"]
    assert table[2:] == [["1,000", "`ce`", *counts], ["10,000", "`ce`", *counts]]


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
