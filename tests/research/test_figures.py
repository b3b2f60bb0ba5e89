"""research/figures.py: every figure is drawn, and its points are those of known scores."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest


@pytest.mark.parametrize("name", ["results", "boxes", "words_weights", "sums"])
def test_a_figure_is_drawn(script, name, tmp_path):
    figure = script.FIGURES[name]
    assert len(figure.files) >= len(figure.patterns)
    (tmp_path / figure.file).parent.mkdir(parents=True)
    figure.draw(tmp_path)
    assert (tmp_path / figure.file).read_bytes()[:4] == b"\x89PNG"


def test_errors_are_relative_to_cross_entropy_on_the_same_table(script, monkeypatch, tmp_path):
    sizes = {"tables_stones_10000": 1, "tables_stones": 10}  # of the errors of cross-entropy
    shares = {"ce": 1, "ntil": 0.75, "soft": 0.5}
    ways = [(label, rule) for label in shares for rule in ("greedy", "median")]
    every = {
        name: script.tables.Kept(
            name, {way: np.full((2, 3), size * shares[way[0]]) for way in ways}, {"boosting": np.ones(2) * size}
        )
        for name, size in sizes.items()
    }
    monkeypatch.setattr(script.tables, "read", every.__getitem__)
    drawn = script.errors_figure([*every])
    (axis,) = drawn.axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["stones, 1,000 rows", "stones, 10,000 rows"]
    points = {each.get_label(): np.asarray(each.get_offsets()).tolist() for each in axis.collections}
    assert points["cross-entropy, greedy"] == points["gradient boosting"] == [[100, 2], [100, 1]]
    assert points["a published loss, greedy"] == [[75, 2], [75, 1]]
    assert points["soft labels, median"] == [[50, 2], [50, 1]]
    plt.close(drawn)
