"""Draw a measure of every run of some comparisons: a panel for each comparison, a line for each loss, a point for each seed.

    python scripts/scores_figure.py docs/images/boxes.png docs/results/boxes{,_10000}_scores.csv.xz --measure acc_50 \
        --title "Boxes around a shape: IoU of at least 0.5, % of 1,000 test pictures"

The files are those that ``scripts/scores.py keep`` wrote. A tick is the mean over seeds. Answers are greedy, unless
``--decision`` names another rule.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from scores import GREEDY, Floats, Kept, check, read

from numerate.lab.wording.measures import measure

BASELINE, OURS = "ce", "soft"
COLORS = {BASELINE: "#555555", OURS: "#d1570c"}  # of results_figure.py
PUBLISHED = "#3b78b5"


def runs_of(kept: Kept, name: str, decision: str) -> dict[str, Floats]:
    """Return a measure of every seed ``[S]`` on the first split that has it, by loss: the baseline, then the best first."""
    about, split = measure(name), kept.splits(name)[0]
    scores = {label: kept.scores[label, decision, split, name] for label in kept.labels}
    found = {label: np.median(values, 1) if about.median else values.mean(1) for label, values in scores.items()}
    shown = {label: 100 * values if about.percent else values for label, values in found.items()}
    sign = -1 if about.higher_is_better else 1
    return dict(sorted(shown.items(), key=lambda item: (item[0] != BASELINE, sign * float(item[1].mean()))))


def draw(axis: Any, runs: dict[str, Floats]) -> None:
    """Draw a line for each loss."""
    for at, (label, values) in enumerate(runs.items()):
        color = COLORS.get(label, PUBLISHED)
        axis.scatter(values, np.full(len(values), -at), s=60, color=color, alpha=0.55, linewidths=0, label=label)
        axis.scatter(values.mean(), -at, s=420, marker="|", color=color, linewidths=2.5)
    axis.set_yticks([-at for at in range(len(runs))], [*runs])
    axis.set_ylim(0.5 - len(runs), 0.5)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="#eeeeee")


def title_of(kept: Kept) -> str:
    """Return how many training examples a comparison had."""
    return f"{int(next(iter(kept.settings.values()))['train_examples']):,} training examples"


def figure(every: Sequence[Kept], file: Path, name: str, decision: str, title: str) -> None:
    """Draw a panel for each comparison, with one scale for all."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "font.family": "sans-serif"})
    panels = [runs_of(kept, name, decision) for kept in every]
    size = max(8.4, 5.2 * len(panels)), 0.42 * max(map(len, panels)) + 1.5
    drawn, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for axis, kept, runs in zip(axes[0], every, panels, strict=True):
        draw(axis, runs)
        axis.set_title(title_of(kept), fontsize=12, loc="left")
    points = np.concatenate([values for runs in panels for values in runs.values()])
    axes[0][0].set_xlim(0, 1.04 * points[np.isfinite(points)].max(initial=0) or None)  # room for half of the largest point
    save(drawn, file, title)


def save(drawn: Any, file: Path, title: str) -> None:
    """Write a figure under its title, and forget it."""
    import matplotlib.pyplot as plt

    drawn.suptitle(title, fontsize=14)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=150)
    plt.close(drawn)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--measure", required=True)
    parser.add_argument("--decision", default=GREEDY, help=f"default: {GREEDY}")
    parser.add_argument("--title", default="", help="default: the measure")
    given = parser.parse_args(arguments)
    every = [kept for file in given.files for kept in read(file)]
    for kept in every:
        check(kept, set(), [given.measure])
    figure(every, given.out, given.measure, given.decision, given.title or measure(given.measure).heading)


if __name__ == "__main__":
    main()
