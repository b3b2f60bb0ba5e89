"""Draw the figure of docs/results.md: typical errors of every loss on every table, relative to cross-entropy with greedy answers.

    python scripts/results_figure.py docs/images/results.png docs/results/tables_*.csv.xz

Each file that ``scripts/results.py keep`` wrote is a line. Best weights (names that end in ``_best``) have lines of their own,
relative to cross-entropy with its best weights. Gradient boosting is drawn from files such as ``tables_births_rivals.csv``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from results import BASELINE, GREEDY, OURS, Kept, read
from scores_figure import save

PUBLISHED = "a published loss"


def figure(every: Sequence[Kept], file: Path) -> None:
    """Draw the typical errors relative to greedy cross-entropy: tables and rows x objectives and decisions."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "font.family": "sans-serif"})
    drawn, axis = plt.subplots(figsize=(10.5, 0.5 * len(every) + 2.4), layout="constrained")
    draw(axis, every)
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, columnspacing=1.2)
    save(drawn, file, "Predicting numbers of real tables: mean absolute error, lower is better")


_STYLES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("cross-entropy", GREEDY, {"marker": "o", "facecolors": "white", "edgecolors": "#555555", "s": 75, "linewidths": 1.8}),
    ("cross-entropy", "median", {"marker": "o", "color": "#555555", "s": 75}),
    (PUBLISHED, GREEDY, {"marker": "D", "facecolors": "white", "edgecolors": "#3b78b5", "s": 34, "linewidths": 1.3}),
    (PUBLISHED, "median", {"marker": "D", "color": "#3b78b5", "s": 34}),
    ("soft labels", GREEDY, {"marker": "o", "facecolors": "white", "edgecolors": "#d1570c", "s": 95, "linewidths": 2.2}),
    ("soft labels", "median", {"marker": "o", "color": "#d1570c", "s": 95}),
)


def draw(axis: Any, every: Sequence[Kept]) -> None:
    """Draw a line for each file: 1,000 rows first, then those with their best weights, then 10,000 rows."""
    group = sorted(every, key=lambda kept: (kept.data.endswith("10,000 rows"), kept.best))
    axis.axvline(100, color="#cccccc", linewidth=1, zorder=0)
    for name, decision, style in _STYLES:
        points = []
        for at, kept in enumerate(group):
            base = kept.typical((BASELINE, GREEDY))
            losses = {"cross-entropy": [BASELINE], "soft labels": [OURS[0]]}.get(name, [label for label, _ in kept.published])
            points += [(100 * kept.typical((label, decision)) / base, len(group) - at) for label in losses]
        order = {"cross-entropy": 2, PUBLISHED: 1, "soft labels": 3}[name]
        axis.scatter(*zip(*points, strict=True), label=f"{name}, {decision}", zorder=order, **style)
    boosted = [
        (100 * float(np.median(kept.rivals["boosting"])) / kept.typical((BASELINE, GREEDY)), len(group) - at)
        for at, kept in enumerate(group)
        if "boosting" in kept.rivals
    ]
    if boosted:
        axis.scatter(*zip(*boosted, strict=True), label="gradient boosting", marker="|", s=320, color="black", zorder=0)
    axis.set_yticks([len(group) - at for at in range(len(group))], [kept.title for kept in group])
    axis.set_ylim(0.4, len(group) + 0.6)
    axis.set_xlabel("cross-entropy with greedy answers = 100")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="#eeeeee", zorder=-1)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    figure([read(file) for file in given.files], given.out)


if __name__ == "__main__":
    main()
