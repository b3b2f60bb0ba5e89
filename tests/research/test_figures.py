"""research/figures.py: every figure is drawn, and its points are those of known scores."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("name", ["results", "boxes", "words_weights", "sums"])
def test_a_figure_is_drawn(script, name, tmp_path):
    figure = script.FIGURES[name]
    assert len(figure.files) >= len(figure.patterns)
    (tmp_path / figure.file).parent.mkdir(parents=True)
    figure.draw(tmp_path)
    assert (tmp_path / figure.file).read_bytes()[:4] == b"\x89PNG"
