"""scripts/results_figure.py on kept files, and on errors that are known."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

ROOT = Path(__file__).parents[1]


def test_the_figure_is_drawn(script, tmp_path):
    script.main([str(tmp_path / "figure.png"), str(ROOT / "docs" / "results" / "diamonds_soft.csv.xz")])
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"


def test_best_weights_have_lines_of_their_own(script):
    sizes = {"stones_10000": 1, "stones_best": 5, "stones": 10}  # of the errors of cross-entropy
    every = [
        script.Kept(
            f"tables_{name}",
            {
                (label, rule): np.full((2, 3), 10 * size * share)
                for label, share in (("ce", 1), ("ntil", 0.8), ("soft", 0.5))
                for rule in ("greedy", "median")
            },
            {},
        )
        for name, size in sizes.items()
    ]
    drawn, axis = plt.subplots()
    script.draw(axis, every)
    lines = {round(at): label.get_text() for at, label in zip(axis.get_yticks(), axis.get_yticklabels(), strict=True)}
    assert lines == {3: "stones, 1,000 rows", 2: "stones, 1,000 rows, best weights", 1: "stones, 10,000 rows"}
    points = {each.get_label(): np.asarray(each.get_offsets()).tolist() for each in axis.collections}
    assert points["cross-entropy, greedy"] == [[100, 3], [100, 2], [100, 1]]  # each relative to its own
    assert points["soft labels, median"] == [[50, 3], [50, 2], [50, 1]]
    plt.close(drawn)


@pytest.mark.parametrize("page", ["results.md", "results/tables.md"])
def test_commands_for_the_last_weights_leave_the_best_ones_out(page, tmp_path):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    patterns = {pattern for pattern in re.findall(r"docs/results/(tables_\S*\*\S*)", text) if "best" not in pattern}
    assert patterns
    tables = ("births", "demand", "diamonds", "flights", "rodents", "storms")
    for table in tables:
        for kind in ("", "_10000", "_best"):
            (tmp_path / f"tables_{table}{kind}.csv.xz").touch()
    for pattern in patterns:
        assert sorted(file.name for file in tmp_path.glob(pattern)) == [f"tables_{table}.csv.xz" for table in tables]
