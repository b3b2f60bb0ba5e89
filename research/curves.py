"""How soon does a loss learn? Steps until half, and until 90 %, of the validation answers are exact.

    python research/keep.py curves runs/sums                                  # validation curves of all runs, and test scores
    python research/curves.py research/scores/sums_curves.csv                 # Markdown
    python research/curves.py research/scores/smmd-terms_curves.csv --baseline both      # against another loss
    python research/curves.py research/scores/sums_curves.csv research/scores/sums_slow_curves.csv --model small

A run that does not get there counts as if it did one validation after its last step. Differences from the baseline are tested on
the logarithm of the steps, and on the exact test answers, both paired over seeds; p-values are corrected by Holm's method over
the losses. Losses of a second file have its name beside theirs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd

from numerate.lab.stats import holm, paired_t
from numerate.lab.wording.text import p_text

BASELINE = "ce"
SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class Curve:
    """A run: the share of exact validation answers by step, and of exact test answers."""

    model: str
    label: str
    seed: int
    points: tuple[tuple[int, float], ...]
    tested: float

    def steps_to(self, share: float) -> int:
        """Return the first validated step with this share, or the one that would follow the last."""
        first, last = self.points[0][0], self.points[-1][0]
        return next((step for step, exact in self.points if exact >= share), last + first)

    def reached(self, share: float) -> bool:
        """Return whether it has ever had this share."""
        return any(exact >= share for _, exact in self.points)


def read(file: Path) -> list[Curve]:
    """Read a file of curves; the last line of a run is its test."""
    found = []
    for about, run in pd.read_csv(file, dtype={"step": str}).groupby(["model", "label", "seed"], sort=False):
        *points, (_, tested) = zip(run["step"], run["exact"].tolist(), strict=True)
        found.append(Curve(*about, tuple((int(step), exact) for step, exact in points), tested))
    return found


def together(files: Sequence[Path]) -> list[Curve]:
    """Return the runs of several files; losses of all but the first are called ``ce, sums_slow``."""
    runs = [(file, curve) for file in files for curve in read(file)]
    names = {file: file.name.removesuffix("_curves.csv") for file in files[1:]}
    return [replace(curve, label=f"{curve.label}, {names[file]}") if file in names else curve for file, curve in runs]


def table(runs: Sequence[Curve], baseline: str = BASELINE) -> Iterator[str]:
    """Yield a Markdown table for each model, with differences from a baseline."""
    for model in dict.fromkeys(curve.model for curve in runs):
        mine = [curve for curve in runs if curve.model == model]
        if not any(curve.label == baseline for curve in mine):
            labels = ", ".join(dict.fromkeys(repr(curve.label) for curve in mine))
            raise ValueError(f"no run of {baseline!r} with {model}: expected one of {labels}.")
        losses = [baseline, *sorted({curve.label for curve in mine} - {baseline})]
        columns = {share: {label: _log_steps(mine, label, share) for label in losses} for share in SHARES}
        exact = {label: [curve.tested for curve in mine if curve.label == label] for label in losses}
        p = [_p_values(values, baseline) for values in (*columns.values(), exact)]
        yield f"\n| `{model}` | steps to 50 % | p | steps to 90 % | p | exact at the end | p |\n|---|---|---|---|---|---|---|"
        for label in losses:
            cells = []
            for share, tested in zip(SHARES, p, strict=False):
                cells += [_steps(mine, label, share), tested.get(label, "")]
            yield f"| `{label}` | {' | '.join(cells)} | {100 * fmean(exact[label]):.1f} % | {p[-1].get(label, '')} |"


def _log_steps(runs: Sequence[Curve], label: str, share: float) -> list[float]:
    return [math.log(curve.steps_to(share)) for curve in runs if curve.label == label]


def _steps(runs: Sequence[Curve], label: str, share: float) -> str:
    """Return the median with the fewest and the most steps, and how many runs never get there."""
    mine = [curve for curve in runs if curve.label == label]
    steps = sorted(curve.steps_to(share) for curve in mine)
    missing = sum(not curve.reached(share) for curve in mine)
    text = f"{median(steps):,.0f} ({steps[0]:,} to {steps[-1]:,})"
    return f"{text}, {missing} never" if missing else text


def _p_values(by_loss: dict[str, list[float]], baseline: str) -> dict[str, str]:
    """Return the corrected p-values of the losses against the baseline, paired over seeds."""
    base = np.array(by_loss[baseline])[:, None]
    found = {
        label: paired_t(np.array(values)[:, None], base, over="seeds")
        for label, values in by_loss.items()
        if label != baseline and len(values) == len(base)
    }
    return {label: p_text(p) for label, p in holm(found).items()}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--baseline", default=BASELINE, help=f"default: {BASELINE}")
    parser.add_argument("--model", help="default: all")
    given = parser.parse_args(arguments)
    runs = [curve for curve in together(given.files) if given.model in (None, curve.model)]
    print("\n".join(table(runs, given.baseline)))


if __name__ == "__main__":
    main()
