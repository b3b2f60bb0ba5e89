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


def kept(script, found, name):
    """Return a comparison of scores ``[S, E]`` by loss."""
    values = {(label, "greedy", "interpolate", name): np.array(rows, dtype=float) for label, rows in found.items()}
    return script.scores.Kept("boxes", "tiny", {label: {"train_examples": "1000"} for label in found}, 2, values)


def test_changes_are_relative_to_the_baseline_and_what_lies_above_is_named(script, monkeypatch):
    base = np.random.default_rng(0).uniform(1, 3, (3, 40))
    shares = {"ce": 1, "smmd lambda=3.0": 0.97, "smmd lambda=0.1": 0.999, "ntil lambda=1.0": 1.1, "ntil lambda=0.1": 1.01}
    sweep = kept(script, {label: base * share for label, share in shares.items()}, "number_nll")
    found = script.changes(sweep, "number_nll")
    assert {loss: rows[:, 0].tolist() for loss, rows in found.items()} == {"smmd": [0.1, 3], "ntil": [0.1, 1]}
    assert found["smmd"][:, 2] == pytest.approx([-0.1, -3])
    assert found["ntil"][:, 2] == pytest.approx([1, 10])
    assert all((rows[:, 1] < rows[:, 2]).all() and (rows[:, 2] < rows[:, 3]).all() for rows in found.values())
    monkeypatch.setattr(script.scores, "read", lambda file: [sweep])
    drawn = script.weights_figure(["sweep"], "number_nll")
    (axis,) = drawn.axes
    assert [text.get_text() for text in axis.texts] == ["+10 %"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "1", "3"]
    assert axis.get_ylim()[0] < found["smmd"][:, 1].min() < 0
    plt.close(drawn)
