"""What the model predicts for the numeric tokens of the gold answers, given all tokens before: by place, and by probability."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from numerate.lab.report.analysis import Setup, interval
from numerate.lab.report.figures.drawing import (
    GREY,
    LEAST_COUNT,
    RESAMPLES,
    FigurePlan,
    Row,
    Styles,
    dots,
    legend,
    named,
    panels,
)
from numerate.lab.report.figures.svg import mark
from numerate.lab.report.records import Digits
from numerate.lab.report.tables import DataTable
from numerate.lab.wording.measures import Measure
from numerate.lab.wording.text import listed, split_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST_TOKENS = 20  # per point of a calibration curve
BINS = 10  # of confidence

_NO_DIGITS = "the records contain no digits"
_WRONG = Measure("wrong", True, False, True, "", "")


def by_place(setup: Setup, styles: Styles) -> FigurePlan:
    """Share of numeric tokens that are predicted wrong, by place, the largest place first."""
    rows: list[tuple[Any, ...]] = []
    for split in setup.splits:
        by_label = {label: _digits(setup, label, split) for label in setup.labels}
        if not all(by_label.values()):
            continue
        places, counts = np.unique(by_label[setup.labels[0]][0].place, return_counts=True)
        for place, count in sorted(zip(places.tolist(), counts.tolist(), strict=True), reverse=True):
            if count < LEAST_COUNT:
                continue
            for label, digits in by_label.items():
                wrong = np.stack([~seed.right[seed.place == place] for seed in digits]).astype(float)  # [S, tokens]
                rows.append((split, label, place, *interval(_WRONG, wrong, RESAMPLES).numbers, count))

    def said(row: Row) -> tuple[str, str]:
        wrong, low, high = (100 * row[key] for key in ("wrong", "low", "high"))
        return _place_name(row["place"]), f"{wrong:.1f} % ({low:.1f} to {high:.1f})"

    labels = ("place of the token in the gold number", "% of the tokens wrong")
    return FigurePlan(
        "places",
        "Errors by digit place",
        "Share of the gold answers' numeric tokens that the model predicts wrong, given all tokens before them, by place of the "
        "token, with 95 % intervals. Lower is better; an error in a place further left is larger.",
        _NO_DIGITS,
        DataTable(("split", "loss", "place", "wrong", "low", "high", "tokens"), rows),
        lambda data: dots(setup.labels, data, styles, ("place", "wrong"), labels, said, 100),
    )


def calibration(setup: Setup, styles: Styles) -> FigurePlan:
    """How often the most likely numeric token is right, by its probability; tokens of all seeds together."""
    rows, gaps = list[tuple[Any, ...]](), dict[str, list[str]]()
    for split in setup.splits:
        for label in setup.labels:
            digits = _digits(setup, label, split)
            if not digits:
                continue
            top, mass = (np.concatenate([getattr(seed, name) for seed in digits]) for name in ("top", "mass"))
            confidence = np.divide(top, mass, out=np.full_like(top, np.nan), where=mass > 0)
            right = np.concatenate([seed.right for seed in digits])
            known = np.isfinite(confidence)
            confidence, right = confidence[known].clip(0, 1), right[known]
            bins, off = np.minimum((confidence * BINS).astype(int), BINS - 1), 0.0
            for bin_ in np.unique(bins).tolist():
                mask = bins == bin_
                sure, held = (float(values[mask].mean()) for values in (confidence, right))
                rows.append((split, label, bin_ / BINS, sure, held, int(mask.sum())))
                off += abs(sure - held) * mask.mean()  # expected calibration error
            if len(bins):
                gaps.setdefault(split_name(split), []).append(f"{label} {100 * off:.1f}")

    def draw(data: DataTable) -> Figure:
        """Accuracy by confidence, one line per loss."""
        figure, axes_by = panels(data, height=3.8)
        for axes, split in axes_by:
            axes.plot([0, 100], [0, 100], color=GREY, linewidth=0.9, linestyle=(0, (2, 2)))
            for label in setup.labels:
                rows = [row for row in data.where(split=split, loss=label) if row["tokens"] >= LEAST_TOKENS]
                if not rows:  # a line of marks without marks would take the whole figure
                    continue
                x, y = ([100 * row[key] for row in rows] for key in ("confidence", "right"))
                texts = [f"{b:.0f} % right at {a:.0f} %, {row['tokens']:,} tokens" for a, b, row in zip(x, y, rows, strict=True)]
                tips = [f"{named(data, row)}: {text}" for row, text in zip(rows, texts, strict=True)]
                look: dict[str, Any] = {**styles[label].line, "marker": styles[label].marker, "markersize": 4, "clip_on": False}
                axes.plot(x, y, **look, zorder=3 if label == setup.baseline else 2, gid=mark(label, *tips))
            axes.set(xlim=(0, 100), ylim=(0, 100))
            axes.set_xlabel("probability of the most likely token, %")
        axes_by[0][0].set_ylabel("% of the tokens right")
        legend(figure, setup.labels, styles)
        return figure

    distances = "; ".join(f"{split} {listed(own)}" for split, own in gaps.items())
    return FigurePlan(
        "calibration",
        "Calibration",
        "How often the most likely numeric token is right, by its probability among numeric tokens; tokens of all seeds. On the "
        f"dotted line the two agree; below it the model is overconfident. Mean distance from it, in points: {distances}.",
        _NO_DIGITS,
        DataTable(("split", "loss", "from", "confidence", "right", "tokens"), rows),
        draw,
    )


def _digits(setup: Setup, label: str, split: str) -> list[Digits]:
    """Return the digits of every seed; empty if a seed has none or other digits."""
    by_seed = [cell.splits[split].digits for cell in setup.cells[label].values()]
    known = [digits for digits in by_seed if digits is not None]
    same = len(known) == len(by_seed) and all(np.array_equal(digits.place, known[0].place) for digits in known)
    return known if same else []


def _place_name(place: int) -> str:
    """Format a place: ``tens``, ``10⁵``."""
    names = {0: "ones", 1: "tens", 2: "hundreds", 3: "thousands", -1: "tenths", -2: "hundredths", -3: "thousandths"}
    return names.get(place, "10" + str(place).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")))
