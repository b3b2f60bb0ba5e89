"""research/figures.py: every figure is drawn, and its points are those of known scores."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["results", "gains", "boxes", "words_weights", "sums"])
def test_a_figure_is_drawn(script, name, tmp_path):
    figure = script.FIGURES[name]
    assert len(figure.files) >= len(figure.patterns)
    (tmp_path / figure.file).parent.mkdir(parents=True)
    figure.draw(tmp_path)
    assert (tmp_path / figure.file).read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(("page", "name"), [("README.md", "gains"), ("docs/results.md", "results")])
def test_the_ranges_that_a_description_of_tables_quotes(script, page, name):
    """Of 1,000 rows, which come first in both."""
    (text,) = re.findall(rf"!\[([^]]*)\]\([\w/]*{name}.png\)", (ROOT / page).read_text(encoding="utf-8"))
    quoted = text.partition("six tables")[2]
    drawn = script.FIGURES["gains"]
    figure = drawn.drawing(drawn.files)
    ranges = {dots.get_label(): dots.get_offsets()[:, 0] for axis in figure.axes for dots in axis.collections}
    script.plt.close(figure)
    for label, words in {
        "soft labels, median": "soft labels (?:with the median )?lie",
        "soft labels, median, pool of eight": "pools of eight (?:with soft labels )?",
        "gradient boosting": "gradient boosting ",
    }.items():
        assert re.search(rf"{words} ?at {ranges[label].min():.0f} to {ranges[label].max():.0f}", quoted), label
