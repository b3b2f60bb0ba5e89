"""research/recommended.py: the figures that the package quotes are those of the scores."""

from __future__ import annotations

import json


def test_the_figures_are_those_of_the_scores(script):
    kept = json.loads(script.FILE.read_text(encoding="utf-8"))
    assert script.figures() == kept, "run python research/recommended.py"
