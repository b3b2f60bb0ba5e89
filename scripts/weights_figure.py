"""Draw what the weight of a loss does: a panel for each measure, a line for each loss, a point for each weight.

    python scripts/weights_figure.py docs/images/words_weights.png docs/results/gsm8k_lambda-sweep_scores.csv.xz \
        --measures number_nll,text_nll --highest 6 --title "Worked solutions of GSM8K: what the weight of a loss does"

The file is one that ``scripts/scores.py keep`` wrote, of a comparison whose losses are named as in the preset ``lambda-sweep``:
``smmd lambda=0.3``. A point is the difference from ``ce`` with its 95 % interval, in per cent of the value of ``ce``. A point
above ``--highest`` per cent is an arrow with its value at the edge of the figure.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from scores import GREEDY, Floats, Kept, against_baseline, check, read, summary
from scores_figure import save

from numerate.lab.wording.measures import measure

BASELINE = "ce"
STYLES = {"smmd": ("#3b78b5", "o"), "number": ("#d1570c", "s"), "ntil": ("#3a8f5b", "D")}
OTHER = ("#777777", "^")


def changes(kept: Kept, name: str) -> dict[str, Floats]:
    """Return ``[W, 4]`` by loss: weights in order, and low end, estimate and high end of the change of a measure in per cent."""
    if measure(name).median:
        raise ValueError(
            f"measure {name!r} is compared by examples won, which is no change in per cent: expected a mean measure."
        )
    split = kept.splits(name)[0]
    scale = 100 / summary(measure(name), kept.scores[BASELINE, GREEDY, split, name])
    found: dict[str, list[list[float]]] = {}
    for label, result in against_baseline(kept, kept.labels, (GREEDY, split, name), BASELINE).items():
        loss, _, weight = label.partition(" lambda=")
        if weight:
            change = result.difference
            found.setdefault(loss, []).append([float(weight), *(scale * x for x in (change.low, change.estimate, change.high))])
    if not found:
        raise ValueError(f"{kept.name} has no weights: expected losses such as 'smmd lambda=0.3', got {', '.join(kept.labels)}.")
    return {loss: np.array(sorted(rows)) for loss, rows in found.items()}


def draw(axis: Any, found: Mapping[str, Floats], highest: float) -> None:
    """Draw a line for each loss, and an arrow for each point above the figure."""
    axis.axhline(0, color="#555555", linewidth=1, zorder=1)
    for loss, rows in found.items():
        color, marker = STYLES.get(loss, OTHER)
        weights, low, middle, high = rows.T
        within = middle <= highest
        axis.plot(weights, middle, color=color, marker=marker, markersize=7, linewidth=1.8, label=loss)
        error = np.stack([middle - low, high - middle])[:, within]
        axis.errorbar(weights[within], middle[within], error, fmt="none", color=color, elinewidth=1.4, capsize=3)
        for weight, beyond in zip(weights[~within], middle[~within], strict=True):
            axis.plot(weight, highest, "^", color=color, markersize=8, clip_on=False)
            axis.annotate(f"{beyond:+.0f} %", (weight, highest), (0, 7), textcoords="offset points", color=color, ha="center")
    axis.set_xscale("log")
    weights = sorted({weight for rows in found.values() for weight in rows[:, 0].tolist()})
    axis.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("weight of the loss")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#eeeeee")
    axis.set_axisbelow(True)


def figure(kept: Kept, file: Path, names: Sequence[str], highest: float, title: str) -> None:
    """Draw a panel for each measure, with one scale for all."""
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 12, "font.family": "sans-serif"})
    size = max(6.4, 4.9 * len(names)), 4.4
    drawn, axes = plt.subplots(1, len(names), figsize=size, layout="constrained", sharey=True, squeeze=False)
    panels = [changes(kept, name) for name in names]
    for axis, name, found in zip(axes[0], names, panels, strict=True):
        draw(axis, found, highest)
        axis.set_title(measure(name).plain, fontsize=12, loc="left", pad=22)
    if math.isfinite(highest):
        lowest = min(float(rows[:, 1].min()) for found in panels for rows in found.values())
        axes[0][0].set_ylim(min(0.0, lowest) - 0.05 * highest, highest)
    better = {measure(name).higher_is_better for name in names}
    hint = f"; {'higher' if better.pop() else 'lower'} is better" if len(better) == 1 else ""
    axes[0][0].set_ylabel(f"change from {BASELINE}, %{hint}")
    axes[0][0].legend(frameon=False, loc="upper left")
    save(drawn, file, title)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--measures", required=True, help="names, separated by commas")
    parser.add_argument("--highest", type=float, default=math.inf, help="where the axis ends; default: after all points")
    parser.add_argument("--title", default="")
    given = parser.parse_args(arguments)
    names = given.measures.split(",")
    kept, *others = read(given.file)
    if others:
        parser.error(f"{given.file} has {1 + len(others)} models: expected one")
    check(kept, {BASELINE}, names)
    figure(kept, given.out, names, given.highest, given.title)


if __name__ == "__main__":
    main()
