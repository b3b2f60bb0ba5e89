"""How soon does a loss learn? Steps until half, and until 90 %, of the validation answers are exact.

    numerate compare experiments/sums.yaml --tune 5
    python scripts/learning_speed.py keep runs/sums docs/results          # validation curves of all runs, and test scores
    python scripts/learning_speed.py table docs/results/sums_curves.csv   # Markdown
    python scripts/learning_speed.py table docs/results/smmd-terms_curves.csv --baseline both    # against another loss
    python scripts/learning_speed.py table docs/results/sums_curves.csv docs/results/sums_slow_curves.csv --model small
    python scripts/learning_speed.py figure docs/images/sums.png docs/results/sums_curves.csv

The runs need ``validate_every``. A run that does not get there counts as if it did one validation after its last step.
Differences from the baseline are tested on the logarithm of the steps, and on the exact test answers, both paired over seeds;
p-values are corrected by Holm's method over the losses. Losses of a second file have its name beside theirs.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

BASELINE, TEST = "ce", "test"
COLUMNS = ("model", "label", "seed", "step", "exact")
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


def curves(folder: Path) -> list[Curve]:
    """Return the runs of a comparison, without trials."""
    found = []
    for cell in sorted((folder / "cells").iterdir()):
        config = json.loads((cell / "config.json").read_text(encoding="utf-8"))
        if config.get("validation"):
            continue
        points = [json.loads(line) for line in (cell / "curve.jsonl").read_text(encoding="utf-8").splitlines()]
        validated = tuple((point["step"], point["validation/exact"]) for point in points if "validation/exact" in point)
        if not validated:
            raise SystemExit(f"{cell} has no validation in its curve: run the comparison with validate_every.")
        records = [json.loads(line) for line in (cell / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
        tested = fmean(record["measures"]["exact"] for record in records if record["split"] == "interpolate")
        found.append(Curve(config["model"], config["label"], config["seed"], validated, tested))
    return sorted(found, key=lambda curve: (curve.model, curve.label, curve.seed))


def keep(folder: Path, out: Path) -> None:
    """Write the curves of a comparison, and the test scores as the step ``test``."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{folder.name}_curves.csv").open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(COLUMNS)
        for curve in curves(folder):
            about = curve.model, curve.label, curve.seed
            lines.writerows((*about, step, exact) for step, exact in [*curve.points, (TEST, curve.tested)])


def read(file: Path) -> list[Curve]:
    """Read what :func:`keep` wrote."""
    runs: dict[tuple[str, str, int], list[tuple[str, float]]] = {}
    with file.open(encoding="utf-8", newline="") as text:
        for row in csv.DictReader(text):
            runs.setdefault((row["model"], row["label"], int(row["seed"])), []).append((row["step"], float(row["exact"])))
    return [
        Curve(*about, tuple((int(step), exact) for step, exact in points[:-1]), points[-1][1]) for about, points in runs.items()
    ]


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
    import numpy as np

    from numerate.lab.stats import holm, paired_t
    from numerate.lab.wording.text import p_text

    base = np.array(by_loss[baseline])[:, None]
    found = {
        label: paired_t(np.array(values)[:, None], base, over="seeds")
        for label, values in by_loss.items()
        if label != baseline and len(values) == len(base)
    }
    return {label: p_text(p) for label, p in holm(found).items()}


def figure(runs: Sequence[Curve], file: Path) -> None:
    """Draw the median curve of each loss over seeds, with the band of the middle half."""
    import matplotlib.pyplot as plt
    import numpy as np

    models = [*dict.fromkeys(curve.model for curve in runs)]
    drawn, axes = plt.subplots(1, len(models), figsize=(7.5 * len(models), 4.4), sharey=True, squeeze=False, layout="constrained")
    for axis, model in zip(axes[0], models, strict=True):
        mine = [curve for curve in runs if curve.model == model]
        for label in [BASELINE, *sorted({curve.label for curve in mine} - {BASELINE})]:
            group = [curve for curve in mine if curve.label == label]
            steps = [step for step, _ in group[0].points]
            low, middle, high = np.quantile(
                [[100 * exact for _, exact in curve.points] for curve in group], (0.25, 0.5, 0.75), axis=0
            )
            control = label.endswith((" equal", " shuffled"))
            style = {"color": "black", "linewidth": 2.4} if label == BASELINE else {"linestyle": "--" if control else "-"}
            (line,) = axis.plot(steps, middle, label=label, **style)
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.08, linewidth=0)
        axis.set_title(model)
        axis.set_xlabel("steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("exact validation answers, %")
    drawn.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.savefig(file, dpi=130)
    plt.close(drawn)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("keep", help="write the validation curves of a comparison")
    one.add_argument("folder", type=Path)
    one.add_argument("out", type=Path)
    printed = commands.add_parser("table", help="print steps to 50 and 90 %%, and exact answers")
    printed.add_argument("files", type=Path, nargs="+")
    printed.add_argument("--baseline", default=BASELINE, help=f"default: {BASELINE}")
    printed.add_argument("--model", help="default: all")
    drawn = commands.add_parser("figure", help="draw the curves")
    drawn.add_argument("out", type=Path)
    drawn.add_argument("file", type=Path)
    given = parser.parse_args(arguments)
    if given.command == "keep":
        if not (given.folder / "cells").is_dir():
            parser.exit(2, f"{given.folder} has no cells: expected a folder written by `numerate compare`.\n")
        keep(given.folder, given.out)
    elif given.command == "figure":
        figure(read(given.file), given.out)
    else:
        runs = [curve for curve in together(given.files) if given.model in (None, curve.model)]
        print("\n".join(table(runs, given.baseline)))


if __name__ == "__main__":
    main()
