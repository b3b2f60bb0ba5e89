"""How good the models of a table are: MAE, RMSE, R², correlations, relative error and coverage, beside those of baselines.

MAE, RMSE and R² are those of a typical run, the median over seeds, which one derailed run does not decide; the other figures are
means over seeds, as everywhere in the report. The lowest and the highest run are beside them. An answer without a number counts
in MAE, RMSE and R² as :mod:`numerate.lab.evaluation.missing` says, and as the median label in correlations. Each loss and
decision is compared with each baseline, paired by row and seed: by the mean absolute error or, if a few answers
dominate it, by the share of rows that are closer minus the share farther. P-values are corrected by Holm's method. Below three
seeds, every run by itself must differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np

from numerate.answers.overall import pearson, r_squared, rmse, spearman
from numerate.distribution.exact import Floats
from numerate.lab.baselines.kept import TITLES, KeptBaselines, kept_baselines
from numerate.lab.data import TABLE_TASK
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.missing import NO_NUMBER, WHY_INFINITE, ZERO_LABELS, finite_mean, with_middle
from numerate.lab.models.names import BUILT
from numerate.lab.report.analysis import LEVEL, Setup, few_decide
from numerate.lab.report.records import Predictions, numbers_in
from numerate.lab.stats import LEAST_SEEDS, compare, holm
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.text import MOST_NAMED, listed, minus, p_equation, percent, rounded, sentence

Verdict = Literal["better", "worse"]

FIGURES = {
    "mae": ("MAE", False),
    "rmse": ("RMSE", False),
    "r2": ("R²", True),
    "pearson": ("Pearson's r", True),
    "spearman": ("Spearman's ρ", True),
    "median_absolute_error": ("Median absolute error", False),
    "median_relative_error": ("Median relative error", False),
    "coverage": ("Gold in interval", None),
}
"""Name of each figure in tables, and whether higher is better; None if it should be the level of the interval."""

MOST_MISSING = "most outputs held no number"
FEW = "a few answers dominate MAE, RMSE and R²"
_IN_DATA = ("pearson", "spearman", "median_absolute_error")  # in report.json and report.csv; the table would be too wide
_AVERAGED = ("pearson", "spearman", "median_absolute_error", "median_relative_error", "coverage")  # over seeds


@dataclass(frozen=True)
class RunFigure:
    """Median over runs, or the mean for figures that no single run ruins, and the lowest and the highest run."""

    typical: float
    low: float
    high: float


@dataclass(frozen=True)
class Gap:
    """Difference of a loss and decision from a baseline."""

    change: float | None  # of the typical MAE, as a share of theirs; None if that is 0 or one of them is infinite
    p: float  # of the difference, corrected
    verdict: Verdict | None  # if the difference is significant, and typical MAE and test agree
    closer: bool  # whether the loss is significantly closer by the test, whatever its MAE


@dataclass(frozen=True)
class Level:
    """Figures of a loss and decision, or of a baseline, on a split."""

    name: str  # of the loss, or of the baseline
    decision: str  # empty for a baseline
    split: str
    seeds: int
    examples: int
    figures: Mapping[str, RunFigure]  # by name in ``FIGURES``; those that do not apply are left out
    no_number: float  # share of outputs without a number in a typical run
    few: bool = False  # whether a few answers dominate the means
    zeros: float = 0.0  # share of labels that are 0, where an answer has no relative error
    gaps: Mapping[str, Gap] = field(default_factory=dict)  # by baseline
    note: str = ""  # what to keep in mind about this row, or empty

    @property
    def is_model(self) -> bool:
        """Whether this is a model of the comparison, not a baseline."""
        return bool(self.decision)

    @property
    def title(self) -> str:
        """``soft decided by median``, ``ce with greedy answers``, ``constant``."""
        return pair(self.name, self.decision) if self.is_model else self.name

    @property
    def beats_constant(self) -> bool:
        """Whether this is significantly better than a constant; by closer rows, if a few answers dominate its MAE."""
        gap = self.gaps.get("constant")
        return gap is not None and (gap.verdict == "better" or (self.few and gap.closer))

    @property
    def below_constant(self) -> bool:
        """Whether this is significantly worse than a constant."""
        gap = self.gaps.get("constant")
        return gap is not None and gap.verdict == "worse"

    @property
    def mae(self) -> float:
        """MAE of a typical run."""
        return self.figures["mae"].typical

    def shown(self, name: str) -> str:
        """Format a figure of a typical run; empty if it does not apply."""
        return "" if name not in self.figures else self._text(name, self.figures[name].typical)

    def spread(self, name: str) -> str:
        """Format the lowest and the highest run: ``600 to 1.6e+07``; empty if there is one run or nothing to tell apart."""
        if name not in self.figures or self.seeds < 2:
            return ""
        low, high = (self._text(name, end) for end in (self.figures[name].low, self.figures[name].high))
        return "" if low == high else f"{low.removesuffix(' %')} to {high}"

    def _text(self, name: str, value: float) -> str:
        if math.isinf(value):
            if name == "median_relative_error" and max(self.zeros, self.no_number) >= 0.5:
                return ZERO_LABELS if self.zeros >= 0.5 else NO_NUMBER
            return minus("-∞" if value < 0 else "∞")
        if name == "coverage":
            return f"{100 * value:.1f} %"
        if name == "median_relative_error":
            return f"{rounded(100 * value)} %"
        return minus(f"{value:.3f}" if name in ("r2", "pearson", "spearman") and abs(value) < 10 else rounded(value))


@dataclass(frozen=True)
class Levels:
    """Rows of the table, what the answer says about them, and notes; ``interval`` is the level of the interval, if any."""

    rows: Sequence[Level]
    sentences: tuple[str, ...]
    notes: tuple[str, ...]
    interval: float | None

    @property
    def noted(self) -> bool:
        """Whether a row has a note."""
        return any(row.note for row in self.rows)

    @property
    def learned(self) -> bool:
        """Whether some model is significantly better than a constant on the first split.

        If none is, differences between losses say nothing about them. True if there is no constant to compare with.
        """
        first = self.of(self.rows[0].split)
        compared = any("constant" in row.gaps for row in first)
        return not compared or any(row.beats_constant for row in first)

    @property
    def baselines(self) -> list[str]:
        """Names of the baselines."""
        return [*dict.fromkeys(row.name for row in self.rows if not row.is_model)]

    def of(self, split: str) -> list[Level]:
        """Return the rows of a split."""
        return [row for row in self.rows if row.split == split]

    def columns(self) -> list[tuple[str, str]]:
        """Return name and heading of each available figure of the table."""
        found = {name for row in self.rows for name in row.figures}
        headings = {name: heading for name, (heading, _) in FIGURES.items() if name in found and name not in _IN_DATA}
        if self.interval is not None:
            headings |= {"coverage": f"Gold in {100 * self.interval:g} % interval"} if "coverage" in found else {}
        return [*headings.items()]


def levels(setup: Setup, folder: Path) -> Levels | None:
    """Return the levels of a comparison on a table in this folder; None for another task, or answers that are no numbers."""
    first = setup.first
    if (
        setup.task != TABLE_TASK
        or first.config.get("data") is None
        or "absolute_error" not in first.splits[setup.splits[0]].measures
    ):
        return None
    golds = {split: numbers_in(setup.examples(split).golds) for split in setup.splits}
    if not all(np.isfinite(numbers).all() for numbers in golds.values()):
        return None
    runs = {seed: cell.config for cells in setup.cells.values() for seed, cell in cells.items()}
    kept = kept_baselines(folder, [*runs.values()], {split: setup.examples(split).golds for split in setup.splits})
    return found_levels(setup, golds, kept)


def found_levels(setup: Setup, golds: Mapping[str, Floats], kept: KeptBaselines) -> Levels:
    """Return the levels, given the gold numbers by split and the answers of the baselines."""
    rows: list[Level] = []
    theirs: dict[tuple[str, str], Mapping[int, Floats]] = {}  # errors of baselines by split and seed
    mine: dict[int, tuple[list[int], Floats]] = {}  # seeds, and errors [S, E], of each row of a loss
    for split in setup.splits:
        for label, cells in setup.cells.items():
            seeds = sorted(cells)
            parts = [cells[seed].splits[split] for seed in seeds]
            for decision in setup.decisions(label):
                errors = setup.values(label, split, "absolute_error", decision, filled=True)
                mine[len(rows)] = seeds, errors
                answers = [part.numbers(decision) for part in parts]
                rows.append(_level(label, decision, split, golds[split], errors, answers, parts))
        for baseline, by_seed in kept.answers.items():
            off = {seed: np.abs(numbers[split] - golds[split]) for seed, numbers in by_seed.items()}
            theirs[baseline, split] = off
            answers = [numbers[split] for numbers in by_seed.values()]
            rows.append(_level(TITLES[baseline], "", split, golds[split], np.stack([*off.values()]), answers))
    for baseline in kept.answers:
        for at, gap in _gaps(rows, mine, baseline, theirs):
            rows[at] = replace(rows[at], gaps={**rows[at].gaps, baseline: gap})
    rows = [replace(row, note=_note(setup, row)) for row in rows]
    decided = setup.examples(setup.splits[0]).decided
    zeros = any(row.shown("median_relative_error") == ZERO_LABELS for row in rows)
    notes = (*kept.notes, *([f"{sentence(WHY_INFINITE[ZERO_LABELS])}."] if zeros else []))
    return Levels(rows, tuple(_sentences(setup, rows)), notes, None if decided is None else decided.level)


def _level(
    name: str,
    decision: str,
    split: str,
    golds: Floats,
    errors: Floats,
    answers: Sequence[Floats | None],
    parts: Sequence[Predictions] = (),
) -> Level:
    """Return the figures of runs with the absolute errors ``[S, E]`` and these answers; ``parts`` are the records of a loss."""
    with np.errstate(over="ignore"):
        found: dict[str, list[float | None]] = {
            "mae": [float(row.mean()) for row in errors],
            "rmse": [rmse(row) for row in errors],
            "r2": [r_squared(golds, row) for row in errors],
            "median_absolute_error": [float(np.median(row)) for row in errors],
        }
    for figure, correlation in (("pearson", pearson), ("spearman", spearman)):
        told = [None if own is None else with_middle(golds, own) for own in answers]
        found[figure] = [None if own is None else correlation(golds, own) for own in told]
    missing = [0.0]
    if not parts:
        with np.errstate(over="ignore"):
            relative = np.divide(errors, np.abs(golds), out=np.where(errors == 0, 0.0, np.inf), where=golds != 0)
        found["median_relative_error"] = [float(np.median(row)) for row in relative]
    else:
        measures = [part.by(decision) for part in parts]
        missing = [
            float(1 - own["parsed"].mean() if "parsed" in own else np.isinf(own["absolute_error"]).mean()) for own in measures
        ]
        if all("relative_error" in own for own in measures):
            found["median_relative_error"] = [float(np.median(own["relative_error"])) for own in measures]
        if decision != GREEDY:
            inside = [part.decided.covered_by(decision) for part in parts if part.decided is not None]
            found["coverage"] = [finite_mean(own) for own in inside]
    figures = {
        measure: RunFigure((fmean if measure in _AVERAGED else median)(known), min(known), max(known))
        for measure, values in found.items()
        if len(known := [value for value in values if value is not None]) == len(values)
    }
    few = bool(parts) and few_decide(errors)
    return Level(name, decision, split, len(errors), len(golds), figures, median(missing), few, float((golds == 0).mean()))


def _gaps(
    rows: Sequence[Level],
    mine: Mapping[int, tuple[list[int], Floats]],
    baseline: str,
    theirs: Mapping[tuple[str, str], Mapping[int, Floats]],
) -> Iterator[tuple[int, Gap]]:
    """Compare every row of a loss with a baseline, with the same seeds."""
    tested: dict[int, tuple[float, float]] = {}  # difference, p
    for at, (seeds, errors) in mine.items():
        if errors.shape[1] > 1:
            others = np.stack([theirs[baseline, rows[at].split][seed] for seed in seeds])
            tested[at] = _difference(errors, others, few=rows[at].few)
    corrected = holm({at: p for at, (_, p) in tested.items()})
    maes = {row.split: row.mae for row in rows if not row.is_model and row.name == TITLES[baseline]}
    for at, (difference, _) in tested.items():
        ours, other = rows[at].mae, maes[rows[at].split]
        change = ours / other - 1 if other and math.isfinite(ours) and math.isfinite(other) else None
        sure = corrected[at] < 1 - LEVEL
        agree = sure and (difference > 0) == (ours > other) and ours != other
        verdict: Verdict | None = ("worse" if difference > 0 else "better") if agree else None
        yield at, Gap(change, corrected[at], verdict, sure and difference < 0)


def _difference(mine: Floats, theirs: Floats, *, few: bool) -> tuple[float, float]:
    """Return the difference of errors ``[S, E]``, larger is worse, and its p-value; of few seeds the largest of any run."""
    sign = few or not np.isfinite([mine, theirs]).all()

    def test(a: Floats, b: Floats) -> tuple[float, float]:
        found = compare(a, b, "sign" if sign else "mean", LEVEL, resamples=1_999)
        return found.difference.estimate, found.p_value

    if len(mine) >= LEAST_SEEDS:
        return test(mine, theirs)
    runs = [test(a, b) for a, b in zip(mine, theirs, strict=True)]
    agree = len({math.copysign(1, difference) for difference, _ in runs}) == 1
    return median(difference for difference, _ in runs), max(p for _, p in runs) if agree else 1.0


def remedy(setup: Setup) -> str:
    """Return what to do about models that have learned too little."""
    return "train longer or use a pre-trained model" if setup.model in BUILT else "train longer"


def _note(setup: Setup, row: Level) -> str:
    if not row.is_model:
        return ""
    if row.no_number >= 0.5:
        return MOST_MISSING
    if row.below_constant:
        return f"worse than a constant: {remedy(setup)}"
    return FEW if row.few else ""


def _sentences(setup: Setup, rows: Sequence[Level]) -> Iterator[str]:
    """Yield what the answer says, about the first split."""
    mine = [row for row in rows if row.split == setup.splits[0]]
    models = [row for row in mine if row.is_model]
    if silent := [row for row in models if row.no_number >= 0.5]:
        what = "all models" if len(silent) == len(models) else _named(silent)
        yield f"Of {what}, {MOST_MISSING}; in means each counts as the median of the training rows. {sentence(remedy(setup))}."
    speaking = [row for row in models if row not in silent]
    baselines = {key: row for row in mine for key, title in TITLES.items() if not row.is_model and row.name == title}
    constant = baselines.get("constant")
    if constant is not None and constant.mae and speaking:  # nothing is better than no error
        yield from _against_constant(setup, models, speaking, constant)
    if baselines and speaking:
        best, key = min(speaking, key=lambda row: row.mae), min(baselines, key=lambda key: baselines[key].mae)
        told = key == "constant" and (len(baselines) == 1 or not any(row.beats_constant for row in models))
        if not told and key in best.gaps and best.mae != baselines[key].mae:
            yield _against_baseline(best, baselines[key], best.gaps[key])


def _against_constant(setup: Setup, models: Sequence[Level], speaking: Sequence[Level], constant: Level) -> Iterator[str]:
    """Yield who is worse than a constant, and whether none is better; ``speaking`` models answer with numbers."""
    level = f"The constant, the median of the training rows, has an MAE of {constant.shown('mae')}."
    worse = [row for row in speaking if row.below_constant]
    best = min(speaking, key=lambda row: row.mae)
    learned = any(row.beats_constant for row in models)
    if len(worse) == len(models):
        told = f" The best, {best.title}, has {best.shown('mae')}." if len(models) > 1 else ""
        yield f"All models are worse than a constant: {remedy(setup)}. {level}{told}"
        return
    if not learned:
        told = f"The best, {best.title}, has an MAE of {best.shown('mae')}."
        yield f"No model is significantly better than a constant: {remedy(setup)}. {level} {told}"
    if worse:
        told = f": {remedy(setup)}. {level}" if learned else "."
        yield f"{_named(worse, mae=True)} {'is' if len(worse) == 1 else 'are'} worse than a constant{told}"


def _against_baseline(best: Level, baseline: Level, gap: Gap) -> str:
    """Compare the best model with the best baseline."""
    model = f"the best model here ({best.title}, {best.shown('mae')}; {p_equation(gap.p)})"
    name = "the constant" if baseline.name == TITLES["constant"] else baseline.name
    told = f"The best baseline, {name} on the same rows, has an MAE of {baseline.shown('mae')}"
    if gap.verdict is None:
        return f"{told}, not significantly different from {model}."
    share = "" if not best.mae or math.isinf(best.mae) else f"{percent(abs(1 - baseline.mae / best.mae)).lstrip('+')} "
    return f"{told}, {share}{'lower' if gap.verdict == 'worse' else 'higher'} than that of {model}."


def _named(rows: Sequence[Level], *, mae: bool = False) -> str:
    return listed([f"{row.title} (MAE {row.shown('mae')})" if mae else row.title for row in rows], MOST_NAMED)


def levels_rows(setup: Setup, found: Levels) -> list[dict[str, Any]]:
    """Return the table as plain data, one row per split, loss and decision, or baseline.

    The figures of ``FIGURES`` are those of a typical run, ``.._low`` and ``.._high`` the lowest and the highest run; None if
    infinite or if they do not apply. ``no_number`` is the share of outputs without a number. For each baseline,
    ``constant_change`` and so on is the MAE relative to that of the baseline, ``.._p`` the corrected p-value, ``.._verdict``
    ``"better"`` or ``"worse"`` if that is significant. ``shown`` has the figures as the page shows them.
    """
    rows = []
    for row in found.rows:
        values: dict[str, Any] = {"setup": setup.title, "split": row.split, "name": row.name}
        values |= {"decision": row.decision or None, "seeds": row.seeds, "examples": row.examples, "no_number": row.no_number}
        for name in FIGURES:
            figure = row.figures.get(name)
            ends = (None, None, None) if figure is None else (figure.typical, figure.low, figure.high)
            values |= dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))
        for baseline in TITLES:
            gap = row.gaps.get(baseline)
            parts = (None, None, None) if gap is None else (gap.change, gap.p, gap.verdict)
            values |= dict(zip((f"{baseline}_change", f"{baseline}_p", f"{baseline}_verdict"), parts, strict=True))
        values |= {"interval": found.interval, "note": row.note}
        rows.append(values | {"shown": {heading: row.shown(name) for name, heading in found.columns()}})
    return rows


def levels_scores(setup: Setup, found: Levels) -> Iterator[tuple[Any, ...]]:
    """Yield the first columns of ``report.csv``, up to ``high``, for each figure; ``low`` and ``high`` are runs."""
    for row in found.rows:
        for name, figure in row.figures.items():
            yield (
                *(setup.task, setup.model, setup.title, row.name, row.split, row.decision or None, name),
                *("typical run", FIGURES[name][1], False, row.seeds, row.examples),
                *(figure.typical, figure.low, figure.high),
            )
