"""Draw the figures of the results from the scores.

    python research/figures.py                      # all of FIGURES
    python research/figures.py boxes sums           # these alone

A figure holds the digest of the scores that it was drawn from, so that a test notices one that is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import curves
import pool_tables
import scores
import tables
from keep import GREEDY, SCORES

from numerate.lab.wording.measures import measure

ROOT = Path(__file__).parents[1]
BASELINE, OURS = "ce", "soft"
COLORS = {BASELINE: "#555555", OURS: "#d1570c"}
PUBLISHED = "#3b78b5"
MODEL_TITLES = {"small": "one digit to a token", "tiny-3": "up to three digits to a token"}
FORMAT_COLORS = {"ce padded": "#d1570c", "ce spaced": "#3a8f5b", "ce padded+spaced": "#8a4fb0"}
WEIGHT_STYLES = {"smmd": (PUBLISHED, "o"), "number": ("#d1570c", "s"), "ntil": ("#3a8f5b", "D")}
HIGHEST = 6  # per cent: where the axis of the figure of weights ends
DIGEST = "Scores"  # the field of a picture that names what it was drawn from


# Errors on tables: a line for each table, relative to cross-entropy with greedy answers


_STYLES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("cross-entropy", GREEDY, {"marker": "o", "facecolors": "white", "edgecolors": "#555555", "s": 75, "linewidths": 1.8}),
    ("cross-entropy", "median", {"marker": "o", "color": "#555555", "s": 75}),
    ("a published loss", GREEDY, {"marker": "D", "facecolors": "white", "edgecolors": PUBLISHED, "s": 34, "linewidths": 1.3}),
    ("a published loss", "median", {"marker": "D", "color": PUBLISHED, "s": 34}),
    ("soft labels", GREEDY, {"marker": "o", "facecolors": "white", "edgecolors": "#d1570c", "s": 95, "linewidths": 2.2}),
    ("soft labels", "median", {"marker": "o", "color": "#d1570c", "s": 95}),
)


def errors_figure(files: Sequence[Path]) -> Any:
    """Draw the typical errors of every loss and decision, of pools, and of gradient boosting: 1,000 rows first, then 10,000."""
    lines = sum(file.suffix == ".xz" for file in files)
    drawn, axis = plt.subplots(figsize=(10.5, 0.5 * lines + 2.4), layout="constrained")
    _draw_errors(axis, files, _STYLES)
    drawn.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, columnspacing=1.2)
    return drawn


def _draw_errors(axis: Any, files: Sequence[Path], styles: Sequence[tuple[str, str, dict[str, Any]]]) -> None:
    pools = {file.name.removesuffix("_pools.csv"): file for file in files if file.suffix == ".csv"}
    every = sorted((tables.read(file) for file in files if file.suffix == ".xz"), key=lambda kept: kept.rows == "10,000")
    axis.axvline(100, color="#cccccc", linewidth=1, zorder=0)
    places = {kept.name: len(every) - at for at, kept in enumerate(every)}
    bases = {kept.name: kept.typical((BASELINE, GREEDY)) for kept in every}
    for name, decision, style in styles:
        points = []
        for kept in every:
            losses = {"cross-entropy": [BASELINE], "soft labels": [OURS]}.get(name, [label for label, _ in kept.published])
            points += [(100 * kept.typical((label, decision)) / bases[kept.name], places[kept.name]) for label in losses]
        order = {"cross-entropy": 2, "soft labels": 3}.get(name, 1)
        axis.scatter(*zip(*points, strict=True), label=f"{name}, {decision}", zorder=order, **style)
    pooled = []
    for kept in (kept for kept in every if f"pools_{kept.short}" in pools):
        one, eight = map(np.median, pool_tables.one_and_eight(pools[f"pools_{kept.short}"]))
        pooled.append((100 * kept.typical((OURS, "median")) / bases[kept.name] * eight / one, places[kept.name]))
    axis.scatter(
        *zip(*pooled, strict=True), label="soft labels, median, pool of eight", marker="*", s=150, color="#7a1fa2", zorder=4
    )
    boosted = [
        (100 * np.median(kept.baselines["boosting"]) / bases[kept.name], places[kept.name])
        for kept in every
        if "boosting" in kept.baselines
    ]
    axis.scatter(*zip(*boosted, strict=True), label="gradient boosting", marker="|", s=320, color="black", zorder=1)
    axis.set_yticks([places[kept.name] for kept in every], [kept.title for kept in every])
    axis.set_ylim(0.4, len(every) + 0.6)
    axis.set_xlabel("cross-entropy with greedy answers = 100")
    _plain(axis)


# Scores of every run: a panel for each comparison, a line for each loss, a point for each seed


def runs_of(kept: scores.Kept, name: str) -> dict[str, scores.Floats]:
    """Return a metric of every seed ``[S]`` on the first split that has it, by loss: the baseline, then the best first."""
    about, split = measure(name), kept.splits(name)[0]
    found = {label: kept.scores[label, GREEDY, split, name].mean(1) for label in kept.labels}
    sign = -1 if about.higher_is_better else 1
    ordered = sorted(found, key=lambda label: (label != BASELINE, sign * float(found[label].mean())))
    return {label: (100 if about.percent else 1) * found[label] for label in ordered}


def runs_figure(files: Sequence[Path], name: str) -> Any:
    """Draw a point for each run and a tick for the mean over seeds, with one scale for all panels."""
    every = [kept for file in files for kept in scores.read(file)]
    panels = [runs_of(kept, name) for kept in every]
    size = max(8.4, 5.2 * len(panels)), 0.42 * max(map(len, panels)) + 1.5
    drawn, axes = plt.subplots(1, len(panels), figsize=size, layout="constrained", sharex=True, squeeze=False)
    for axis, kept, runs in zip(axes[0], every, panels, strict=True):
        for at, (label, values) in enumerate(runs.items()):
            color = COLORS.get(label, PUBLISHED)
            axis.scatter(values, np.full(len(values), -at), s=60, color=color, alpha=0.55, linewidths=0, label=label)
            axis.scatter(values.mean(), -at, s=420, marker="|", color=color, linewidths=2.5)
        axis.set_yticks([-at for at in range(len(runs))], [*runs])
        axis.set_ylim(0.5 - len(runs), 0.5)
        _plain(axis)
        axis.set_title(f"{int(kept.settings[BASELINE]['train_examples']):,} training examples", fontsize=12, loc="left")
    largest = max(values.max() for runs in panels for values in runs.values())
    axes[0][0].set_xlim(0, 1.04 * largest)  # room for half of the largest point
    return drawn


# What the weight of a loss does: a panel for each metric, a line for each loss


def changes(kept: scores.Kept, name: str) -> dict[str, scores.Floats]:
    """Return ``[W, 4]`` by loss: weights in order, and low end, estimate and high end of the change from ``ce`` in per cent."""
    split = kept.splits(name)[0]
    scale = 100 / scores.summary(measure(name), kept.scores[BASELINE, GREEDY, split, name])
    found: dict[str, list[list[float]]] = {}
    for label, result in scores.against_baseline(kept, kept.labels, (GREEDY, split, name), BASELINE).items():
        loss, _, weight = label.partition(" lambda=")
        change = result.difference
        found.setdefault(loss, []).append([float(weight), *(scale * x for x in (change.low, change.estimate, change.high))])
    return {loss: np.array(sorted(rows)) for loss, rows in found.items()}


def weights_figure(files: Sequence[Path], *names: str) -> Any:
    """Draw changes with their intervals; one above the figure is an arrow with its value."""
    (kept,) = scores.read(files[0])
    panels = [changes(kept, name) for name in names]
    drawn, axes = plt.subplots(1, len(names), figsize=(4.9 * len(names), 4.4), layout="constrained", sharey=True, squeeze=False)
    for axis, name, found in zip(axes[0], names, panels, strict=True):
        _draw_changes(axis, found)
        axis.set_title(measure(name).plain, fontsize=12, loc="left", pad=22)
    lowest = min(float(rows[:, 1].min()) for found in panels for rows in found.values())
    axes[0][0].set_ylim(min(0.0, lowest) - 0.05 * HIGHEST, HIGHEST)
    axes[0][0].set_ylabel(f"change from {BASELINE}, %; lower is better")
    axes[0][0].legend(frameon=False, loc="upper left")
    return drawn


def _draw_changes(axis: Any, found: Mapping[str, scores.Floats]) -> None:
    axis.axhline(0, color="#555555", linewidth=1, zorder=1)
    for loss, rows in found.items():
        color, marker = WEIGHT_STYLES[loss]
        weights, low, middle, high = rows.T
        within = middle <= HIGHEST
        axis.plot(weights, middle, color=color, marker=marker, markersize=7, linewidth=1.8, label=loss)
        error = np.stack([middle - low, high - middle])[:, within]
        axis.errorbar(weights[within], middle[within], error, fmt="none", color=color, elinewidth=1.4, capsize=3)
        for weight, beyond in zip(weights[~within], middle[~within], strict=True):
            axis.plot(weight, HIGHEST, "^", color=color, markersize=8, clip_on=False)
            axis.annotate(f"{beyond:+.0f} %", (weight, HIGHEST), (0, 7), textcoords="offset points", color=color, ha="center")
    axis.set_xscale("log")
    ticks = sorted({weight for rows in found.values() for weight in rows[:, 0].tolist()})
    axis.set_xticks(ticks, [f"{weight:g}" for weight in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlabel("weight of the loss")
    _plain(axis, "top", "right")


# Gain against size: a panel for each table, a line for each loss and decision


SIZES = {  # millions of parameters
    "SmolLM2-135M-Instruct": 135,
    "Gemma-3-270M": 268,
    "Qwen2.5-Coder-0.5B-Instruct": 494,
    "Qwen2.5-Coder-1.5B-Instruct": 1544,
}
_WAYS = (
    (BASELINE, "median", "cross-entropy, median", "#555555", "o"),
    ("soft_a", GREEDY, "soft labels, greedy", "#f0b48a", "s"),
    ("soft_a", "median", "soft labels, median", "#d1570c", "s"),
    ("smmd", "median", "SMMD, median", PUBLISHED, "D"),
    ("ntil", "median", "NTIL, median", "#3a8f5b", "^"),
)


def typical_error(kept: scores.Kept, label: str, decision: str) -> float:
    """Return the mean absolute error of a typical run: the median over seeds."""
    return float(np.median(kept.scores[label, decision, "interpolate", "absolute_error"].mean(1)))


def _millions(count: int) -> str:
    return f"{count} M" if count < 1000 else f"{count / 1000:.1f} B"


def sizes_figure(files: Sequence[Path]) -> Any:
    """Draw typical errors relative to cross-entropy with greedy answers, by the size of the model."""
    drawn = plt.figure(figsize=(5.0 * len(files), 4.6), layout="constrained")
    _draw_sizes(drawn, files)
    return drawn


def _draw_sizes(drawn: Any, files: Sequence[Path]) -> None:
    axes = drawn.subplots(1, len(files), sharey=True, squeeze=False)
    for axis, file in zip(axes[0], files, strict=True):
        every = sorted(scores.read(file), key=lambda kept: SIZES[kept.model])
        axis.axhline(100, color="#555555", linewidth=1, linestyle=":")
        for label, decision, title, color, marker in _WAYS:
            shares = [100 * typical_error(kept, label, decision) / typical_error(kept, BASELINE, GREEDY) for kept in every]
            axis.plot([SIZES[kept.model] for kept in every], shares, color=color, marker=marker, markersize=8, label=title)
        seeds = [kept.seeds for kept in every]
        told = f"{seeds[0]} seeds" if len({*seeds}) == 1 else f"{', '.join(map(str, seeds))} seeds"
        axis.set_title(f"{file.name.split('_')[1]}, {told}", fontsize=12, loc="left")
        axis.set_xscale("log")
        axis.set_xticks([SIZES[kept.model] for kept in every], [_millions(SIZES[kept.model]) for kept in every])
        axis.margins(x=0.1)
        axis.set_xticks([], minor=True)
        axis.set_xlabel("parameters")
        _plain(axis, "top", "right")
    axes[0][0].set_ylabel("cross-entropy, greedy = 100")
    drawn.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)


# Both, on 1,000 rows


def gains_figure(files: Sequence[Path]) -> Any:
    """Draw what pre-trained models gain by size, and below it what a small model gains on each table, alone and in a pool."""
    pretrained = [file for file in files if file.name.startswith("sizes_")]
    drawn = plt.figure(figsize=(12, 8.4), layout="constrained")
    above, below = drawn.subfigures(2, 1, height_ratios=(5, 4))
    _draw_sizes(above, pretrained)
    above.suptitle("Pre-trained models of 135 M to 1.5 B parameters, fine-tuned", fontsize=13)
    axis = below.subplots()
    chosen = [("cross-entropy", GREEDY), ("soft labels", "median")]
    _draw_errors(axis, [file for file in files if file not in pretrained], [style for style in _STYLES if style[:2] in chosen])
    below.suptitle("A model of 0.6 M parameters from scratch, eight seeds", fontsize=13)
    below.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return drawn


# Learning curves: a panel for each model, the median over seeds with the middle half


def curves_figure(files: Sequence[Path]) -> Any:
    """Draw the exact validation answers by step: of losses, and of formats in the files after the first."""
    runs = curves.together(files)
    models = [*dict.fromkeys(curve.model for curve in runs)]
    drawn, axes = plt.subplots(1, len(models), figsize=(7.5 * len(models), 4.4), sharey=True, squeeze=False, layout="constrained")
    for axis, model in zip(axes[0], models, strict=True):
        mine = [curve for curve in runs if curve.model == model]
        for label in [BASELINE, *sorted({curve.label for curve in mine} - {BASELINE})]:
            group = [curve for curve in mine if curve.label == label]
            steps = [step for step, _ in group[0].points]
            shares = [[100 * exact for _, exact in curve.points] for curve in group]
            low, middle, high = np.quantile(shares, (0.25, 0.5, 0.75), axis=0)
            control = label.endswith((" equal", " shuffled"))
            name, _, other_file = label.partition(", ")
            style: dict[str, Any] = {"linestyle": "--" if control else "-"}
            if label == BASELINE or other_file:
                style = {"color": FORMAT_COLORS.get(name, "black"), "linewidth": 2.4}
            (line,) = axis.plot(steps, middle, label=name, **style)
            axis.fill_between(steps, low, high, color=line.get_color(), alpha=0.08, linewidth=0)
        axis.set_title(model)
        axis.set_xlabel("steps")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("exact validation answers, %")
    named = {text: line for axis in axes[0] for line, text in zip(*axis.get_legend_handles_labels(), strict=True)}
    drawn.legend([*named.values()], [*named], loc="outside right center", frameon=False)
    return drawn


def formats_figure(files: Sequence[Path]) -> Any:
    """Draw the exact test answers of each format, a point for each run, with their mean; plain text is a line."""
    runs = [curve for file in files for curve in curves.read(file)]
    models = [*dict.fromkeys(curve.model for curve in runs)]
    drawn, axes = plt.subplots(1, len(models), figsize=(5.2 * len(models), 4.4), sharex=True, sharey=True, layout="constrained")
    labels = [*dict.fromkeys(curve.label for curve in runs)]
    for axis, model in zip(axes, models, strict=True):
        shares = {label: [100 * run.tested for run in runs if (run.model, run.label) == (model, label)] for label in labels}
        axis.axvline(np.mean(shares[BASELINE]), color=COLORS[BASELINE], linewidth=1, linestyle="--")
        for place, label in enumerate(reversed(labels)):
            color = COLORS[BASELINE] if label == BASELINE else PUBLISHED
            axis.scatter(shares[label], [place] * len(shares[label]), s=14, color=color, alpha=0.35, linewidths=0)
            axis.scatter(np.mean(shares[label]), place, s=75, color=color)
        axis.set_title(MODEL_TITLES[model], fontsize=11)
        axis.set_xlabel("exact answers, %")
        _plain(axis, "top", "right", "left")
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(labels)), [label.removeprefix("ce ") for label in [*labels[:0:-1], "plain"]])
    return drawn


def _plain(axis: Any, *sides: str) -> None:
    axis.spines[[*(sides or ("top", "right", "left"))]].set_visible(False)
    if not sides:
        axis.tick_params(axis="y", length=0)
    axis.set_axisbelow(True)
    axis.grid(axis="y", color="#eeeeee", zorder=-1)


# All of them


@dataclass(frozen=True)
class Figure:
    """A picture, the scores that it shows, and what draws them."""

    file: str
    patterns: tuple[str, ...]  # of files in research/scores
    drawing: Callable[..., Any]
    metrics: tuple[str, ...] = ()
    title: str = ""

    @property
    def files(self) -> list[Path]:
        """The files of scores, in the order of the patterns."""
        return [file for pattern in self.patterns for file in sorted(SCORES.glob(pattern))]

    @property
    def digest(self) -> str:
        """What changes with the scores."""
        found = blake2b(digest_size=8)
        for file in self.files:
            found.update(file.read_bytes())
        return found.hexdigest()

    def draw(self, root: Path = ROOT) -> None:
        """Write the picture."""
        plt.rcParams.update({"font.size": 12, "font.family": "sans-serif"})
        drawn = self.drawing(self.files, *self.metrics)
        drawn.suptitle(self.title, fontsize=14)
        drawn.savefig(root / self.file, dpi=150, metadata={DIGEST: self.digest})
        plt.close(drawn)


FIGURES = {
    "results": Figure(
        "docs/images/results.png",
        ("diamonds_soft.csv.xz", "tables_*[ds].csv.xz", "*_10000.csv.xz", "pools_*_pools.csv"),
        errors_figure,
        title="Predicting numbers of real tables: mean absolute error, lower is better",
    ),
    "boxes": Figure(
        "docs/images/boxes.png",
        ("boxes_scores.csv.xz", "boxes_10000_scores.csv.xz"),
        runs_figure,
        ("acc_50",),
        "Boxes around a shape: IoU of at least 0.5, % of 1,000 test pictures",
    ),
    "raters": Figure(
        "research/images/raters.png",
        ("vader_scores.csv.xz",),
        runs_figure,
        ("CRPS_of_the_ratings",),
        "CRPS of ten people's ratings of 1,000 words (smaller is better)",
    ),
    "words_weights": Figure(
        "research/images/words_weights.png",
        ("gsm8k_lambda-sweep_scores.csv.xz",),
        weights_figure,
        ("number_nll", "text_nll"),
        "Worked solutions of GSM8K: what the weight of a loss does",
    ),
    "sizes": Figure(
        "docs/images/sizes.png",
        ("sizes_diamonds_scores.csv.xz", "sizes_esol_scores.csv.xz", "sizes_births_scores.csv.xz"),
        sizes_figure,
        title="Pre-trained models fine-tuned on 1,000 rows: mean absolute error, lower is better",
    ),
    "gains": Figure(
        "docs/images/gains.png",
        (
            *(f"sizes_{name}_scores.csv.xz" for name in ("diamonds", "esol", "births")),
            "diamonds_soft.csv.xz",
            *(f"tables_{name}.csv.xz" for name in ("births", "flights", "rodents", "storms", "demand")),
            "pools_*_pools.csv",
        ),
        gains_figure,
        title="Trained on 1,000 rows: mean absolute error, lower is better",
    ),
    "sums": Figure("research/images/sums.png", ("sums_curves.csv",), curves_figure),
    "sums_tokens": Figure("research/images/sums_tokens.png", ("sums_tokens_curves.csv",), curves_figure),
    "formats_products": Figure(
        "docs/images/formats_products.png",
        ("formats_products_curves.csv",),
        formats_figure,
        title="Products of two numbers of up to two digits: each run, and the mean of eight",
    ),
    "formats_sums": Figure("docs/images/formats_sums.png", ("sums_tokens_curves.csv", "formats_sums_curves.csv"), curves_figure),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(FIGURES)}; default: all")
    for name in parser.parse_args(arguments).names or FIGURES:
        FIGURES[name].draw()


if __name__ == "__main__":
    main()
