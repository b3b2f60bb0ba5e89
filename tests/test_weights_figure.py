"""scripts/weights_figure.py on a kept file, and on scores that are known."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SWEEP = RESULTS / "gsm8k_lambda-sweep_scores.csv.xz"


@pytest.fixture
def sweep(script):
    """Return 3 seeds x 40 examples: ``smmd`` lowers the measure by 1 % x weight, ``ntil`` raises it by 10 % x weight."""
    base = np.random.default_rng(0).uniform(1, 3, (3, 40))
    shares = {"ce": 1, "smmd lambda=3.0": 0.97, "smmd lambda=0.1": 0.999, "ntil lambda=1.0": 1.1, "ntil lambda=0.1": 1.01}
    scores = {(label, "greedy", "interpolate", "number_nll"): base * share for label, share in shares.items()}
    return script.Kept("sweep", "tiny", {label: {} for label in shares}, 3, scores)


def test_the_figure_is_drawn(script, tmp_path):
    script.main([str(tmp_path / "figures" / "weights.png"), str(SWEEP), "--measures", "number_nll,text_nll"])
    assert (tmp_path / "figures" / "weights.png").read_bytes()[:4] == b"\x89PNG"


def test_changes_are_relative_to_the_baseline_and_in_order_of_the_weight(script, sweep):
    found = script.changes(sweep, "number_nll")
    assert {loss: rows[:, 0].tolist() for loss, rows in found.items()} == {"smmd": [0.1, 3], "ntil": [0.1, 1]}
    assert found["smmd"][:, 2] == pytest.approx([-0.1, -3])
    assert found["ntil"][:, 2] == pytest.approx([1, 10])
    assert all((rows[:, 1] < rows[:, 2]).all() and (rows[:, 2] < rows[:, 3]).all() for rows in found.values())


def test_what_lies_above_the_figure_is_named(script, sweep):
    drawn, axis = plt.subplots()
    script.draw(axis, script.changes(sweep, "number_nll"), highest=5)
    assert [text.get_text() for text in axis.texts] == ["+10 %"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.1", "1", "3"]
    plt.close(drawn)


@pytest.fixture
def figures(monkeypatch):
    """Return the figures that are drawn."""
    found = []
    monkeypatch.setattr(plt, "close", found.append)
    return found


def test_panels_have_one_scale_with_room_for_the_lowest_interval(script, figures, tmp_path):
    script.main([str(tmp_path / "weights.png"), str(SWEEP), "--measures", "number_nll,text_nll", "--highest", "6"])
    (kept,) = script.read(SWEEP)
    lowest = min(rows[:, 1].min() for name in ("number_nll", "text_nll") for rows in script.changes(kept, name).values())
    left, right = (axis.get_ylim() for axis in figures[0].axes)
    assert left == right
    assert left[0] < lowest < 0
    assert left[1] == 6


@pytest.mark.parametrize(("name", "better"), [("number_nll", "lower is better"), ("exact", "higher is better")])
def test_the_axis_says_what_is_better(script, sweep, figures, tmp_path, name, better):
    scores = {(*key[:3], name): values / 4 for key, values in sweep.scores.items()}
    script.figure(script.Kept("sweep", "tiny", sweep.settings, 3, scores), tmp_path / "one.png", [name], 5, "One")
    assert figures[0].axes[0].get_ylabel().endswith(better)


def test_measures_that_disagree_have_no_hint(script, sweep, figures, tmp_path):
    both = {**sweep.scores, **{(*key[:3], "exact"): values / 4 for key, values in sweep.scores.items()}}
    script.figure(script.Kept("sweep", "tiny", sweep.settings, 3, both), tmp_path / "two.png", ["number_nll", "exact"], 5, "Two")
    assert figures[0].axes[0].get_ylabel() == "change from ce, %"


def test_a_measure_without_a_mean(script, sweep):
    scores = {(*key[:3], "absolute_error"): values for key, values in sweep.scores.items()}
    with pytest.raises(ValueError, match="measure 'absolute_error' is compared by examples won"):
        script.changes(script.Kept("sweep", "tiny", sweep.settings, 3, scores), "absolute_error")


def test_a_file_of_two_models(script, monkeypatch, tmp_path, capsys):
    every = 2 * script.read(SWEEP)
    monkeypatch.setattr(script, "read", lambda file: every)
    with pytest.raises(SystemExit):
        script.main([str(tmp_path / "x.png"), str(SWEEP), "--measures", "number_nll"])
    assert "has 2 models: expected one" in capsys.readouterr().err


def test_a_comparison_without_weights(script, tmp_path):
    with pytest.raises(ValueError, match="gsm8k has no weights: expected losses such as 'smmd lambda=0.3', got ce, emd"):
        script.main([str(tmp_path / "x.png"), str(RESULTS / "gsm8k_scores.csv.xz"), "--measures", "number_nll"])
