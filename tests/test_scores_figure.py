"""scripts/scores_figure.py on kept files, and on scores that are known."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest

RESULTS = Path(__file__).parents[1] / "docs" / "results"


def kept(script, scores, name="acc_50", examples="1000"):
    """Return a comparison of seeds x examples by loss."""
    settings = {label: {"train_examples": examples} for label in scores}
    found = {(label, "greedy", "interpolate", name): np.array(values, dtype=float) for label, values in scores.items()}
    return script.Kept("boxes", "tiny-vlm", settings, 2, found)


def test_the_figure_is_drawn(script, tmp_path):
    files = [str(RESULTS / f"{name}_scores.csv.xz") for name in ("boxes", "boxes_10000")]
    script.main([str(tmp_path / "figures" / "boxes.png"), *files, "--measure", "acc_50"])
    assert (tmp_path / "figures" / "boxes.png").read_bytes()[:4] == b"\x89PNG"


def test_a_title_fits_a_single_panel_and_all_points_lie_within(script, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plt, "close", figures.append)
    one = kept(script, {"ce": [[0.9, 1.0]], "soft": [[0.9, 0.9]]}, "CRPS")
    title = "Ten people's ratings of 1,000 words: CRPS of the model's distribution"
    script.figure([one], tmp_path / "one.png", "CRPS", "greedy", title)
    (drawn,) = figures
    drawn.canvas.draw()
    box = drawn._suptitle.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= drawn.bbox.width
    assert drawn.axes[0].get_xlim() == pytest.approx((0, 1.04 * 0.95))


def test_a_run_without_numbers_is_left_out_of_the_figure(script, tmp_path):
    found = kept(script, {"ce": [[1.0, 1.0], [np.inf, 2.0]], "soft": [[0.9, 0.9], [0.9, 0.9]]}, "CRPS")
    script.figure([found], tmp_path / "some.png", "CRPS", "greedy", "CRPS")
    assert (tmp_path / "some.png").read_bytes()[:4] == b"\x89PNG"


def test_a_point_for_each_seed_and_the_best_loss_first(script):
    runs = script.runs_of(
        kept(script, {"emd": [[0, 0], [0, 1]], "ce": [[0, 1], [1, 1]], "soft": [[1, 1], [1, 0]]}), "acc_50", "greedy"
    )
    assert {label: values.tolist() for label, values in runs.items()} == {"ce": [50, 100], "soft": [100, 50], "emd": [0, 50]}
    assert [*runs] == ["ce", "soft", "emd"]
    drawn, axis = plt.subplots()
    script.draw(axis, runs)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ce", "soft", "emd"]
    points, mean = (np.asarray(each.get_offsets()).tolist() for each in axis.collections[2:4])
    assert (points, mean) == ([[100, -1], [50, -1]], [[75, -1]])
    plt.close(drawn)


def test_of_errors_the_smallest_is_first_and_medians_are_drawn(script):
    scores = {"emd": [[9, 9, 90]], "soft": [[1, 1, np.inf]], "ce": [[2, 3, 4]]}
    runs = script.runs_of(kept(script, scores, "absolute_error"), "absolute_error", "greedy")
    assert {label: values.tolist() for label, values in runs.items()} == {"ce": [3], "soft": [1], "emd": [9]}
    assert [*runs] == ["ce", "soft", "emd"]


def test_a_panel_is_named_by_its_examples(script):
    assert script.title_of(kept(script, {"ce": [[0]]}, examples="10000")) == "10,000 training examples"


def test_a_measure_that_was_not_kept(script, tmp_path):
    with pytest.raises(ValueError, match="boxes has no exact: expected some of acc_50, iou"):
        script.main([str(tmp_path / "x.png"), str(RESULTS / "boxes_scores.csv.xz"), "--measure", "exact"])
