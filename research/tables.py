"""Make the tables of results/tables.md and results/ablations.md from the answers to tables of numbers.

    python research/keep.py answers runs/tables_flights                        # answers of all runs, and the settings they had
    python research/tables.py errors research/scores/tables_*.csv.xz           # errors of every loss and decision
    python research/tables.py losses research/scores/tables_*.csv.xz           # each loss against cross-entropy, by decision
    python research/tables.py decisions research/scores/tables_*.csv.xz        # medians against greedy answers
    python research/tables.py tests research/scores/tables_*.csv.xz            # soft labels with the median against each of them
    python research/tables.py paths research/scores/diamonds_soft*.csv.xz      # drawn answers against fixed ones and jitter
    python research/tables.py baselines research/scores/tables_*.csv.xz        # soft labels against other models of a number
    python research/tables.py best research/scores/tables_births*.csv.xz       # best weights against the last ones, for each loss
    python research/tables.py derailed research/scores/tables_*.csv.xz         # answers with more digits than any label

``best`` compares each file whose name ends in ``_best`` with the given file of the same table and training rows that has the last
weights. An answer without a number counts as the median of the training labels, as in the means of a report.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from keep import GREEDY

from numerate.lab.stats import compare, corrected, holm, paired_t
from numerate.lab.wording.text import minus, p_text, plus

BASELINE, OURS = "ce", ("soft", "median")
PATHS = ("soft_fixed", "soft_jitter")  # variants of ours, which no paper has published
ABOUT = ("label", "seed", "row", "gold", "fallback")
BASELINES = {
    "scalar": "a scalar head",
    "hl_gauss_median": "HL-Gauss bins, median",
    "hl_gauss_mean": "HL-Gauss bins, mean",
    "boosting": "gradient boosting",
    "constant": "the training median",
}

Floats = npt.NDArray[np.float64]
Way = tuple[str, str]  # a loss and a decision

_NAME = re.compile("(?:tables_|registry_|smollm2_)?(?P<table>.+?)(?:_soft)?(?P<many>_10000)?(?P<best>_best)?")


@dataclass(frozen=True)
class Kept:
    """The absolute errors of a comparison, ``[S, E]`` for each loss and decision."""

    name: str
    errors: dict[Way, Floats]
    baselines: dict[str, Floats]  # [S] mean absolute errors of other models, such as gradient boosting
    asked: tuple[tuple[Any, ...], ...] = ()  # seed, row and label of each of the S x E answers
    derailed: dict[Way, Floats] = field(default_factory=dict)  # [S] answers with more digits before the point than any test label

    @property
    def title(self) -> str:
        """Table, rows and weights, such as ``flights, 1,000 rows`` or ``flights, 1,000 rows, best weights``."""
        return f"{self.data}, best weights" if self.best else self.data

    @property
    def data(self) -> str:
        """Table and rows."""
        return f"{self.table}, {self.rows} rows"

    @property
    def table(self) -> str:
        """The table's name."""
        found = _NAME.fullmatch(self.name)
        assert found
        return found["table"]

    @property
    def short(self) -> str:
        """Table and rows as comparisons are named: ``flights``, ``flights_10000``."""
        return f"{self.table}_10000" if self.rows == "10,000" else self.table

    @property
    def rows(self) -> str:
        """How many rows were trained on."""
        return "10,000" if "_10000" in self.name else "1,000"

    @property
    def best(self) -> bool:
        """Whether the runs kept their best weights on validation rows, and not the last ones."""
        return self.name.endswith("_best")

    @cached_property
    def published(self) -> list[Way]:
        """Every published loss with its best decision: the one with the least typical error on the test rows themselves."""
        losses = dict.fromkeys(label for label, _ in self.errors if label not in (BASELINE, OURS[0], *PATHS))
        return [min((way for way in self.errors if way[0] == label), key=self.typical) for label in losses]

    def of_runs(self, way: Way) -> Floats:
        """Return the mean absolute error of each run, ``[S]``."""
        means: Floats = self.errors[way].mean(1)
        return means

    def typical(self, way: Way) -> float:
        """Return the median over runs of their mean absolute errors, which a derailed run does not decide."""
        return typical(self.errors[way])


def typical(errors: Floats) -> float:
    """Return the median over runs of the mean of errors ``[S, E]``."""
    return float(np.median(errors.mean(1)))


@cache
def read(file: Path) -> Kept:
    """Read a file of answers, and the errors of baselines beside it."""
    table = pd.read_csv(file, keep_default_na=False, na_values=[""], low_memory=False)
    gold, fallback = _values(table["gold"]), _values(table["fallback"])
    too_large = 10.0 ** len(str(int(np.abs(gold).max())))
    rows_of = {label: table["label"].to_numpy() == label for label in table["label"].unique()}
    found, derailed = {}, {}
    for decision in table.columns[len(ABOUT) :]:
        answers = _values(table[decision])
        errors = np.abs(np.where(np.isnan(answers), fallback, answers) - gold)
        for label, rows in rows_of.items():
            shape = table["seed"][rows].nunique(), -1
            found[label, decision] = errors[rows].reshape(shape)
            derailed[label, decision] = (np.abs(answers[rows]) >= too_large).reshape(shape).sum(1).astype(float)
    name = file.name.removesuffix(".csv.xz")
    first = table[table["label"] == table["label"][0]]
    asked = tuple(first[["seed", "row", "gold"]].itertuples(index=False, name=None))
    beside = file.parent / f"{name}_rivals.csv"
    others = pd.read_csv(beside).groupby("baseline", sort=False)["mae"] if beside.is_file() else ()
    return Kept(name, found, {str(baseline): mae.to_numpy() for baseline, mae in others}, asked, derailed)


def _values(column: pd.Series) -> Floats:
    """Return the numbers of a column, NaN where there is none; some are fractions: ``211/100``."""
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(float)
    return np.array([float(Fraction(cell)) if isinstance(cell, str) and "/" in cell else float(cell) for cell in column])


def errors_tables(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table for each comparison: typical and worst run, and the median error of all rows."""
    for kept in every:
        yield from _errors_table(kept)


def _errors_table(kept: Kept) -> Iterator[str]:
    decisions = [*dict.fromkeys(decision for _, decision in kept.errors)]
    yield f"\n### {kept.title}\n"
    yield "| | " + " | ".join(f"{name}: typical | worst | median row" for name in decisions) + " |"
    yield "|---|" + "---|---|---|" * len(decisions)
    losses = sorted(dict.fromkeys(label for label, _ in kept.errors), key=lambda label: kept.typical((label, "median")))
    best = min(map(kept.typical, kept.errors))
    for label in losses:
        cells = []
        for decision in decisions:
            way = label, decision
            typical = number(kept.typical(way))
            typical = f"**{typical}**" if kept.typical(way) == best else typical
            cells.append(f"{typical} | {number(kept.of_runs(way).max())} | {number(float(np.median(kept.errors[way])))}")
        yield f"| `{label}` | " + " | ".join(cells) + " |"
    for name, mae in kept.baselines.items():
        yield f"| {BASELINES[name]} | {number(np.median(mae))} |" + " |" * (3 * len(decisions) - 1)


def tests_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: ours against cross-entropy and against every published loss with its best decision."""
    yield from _HEAD
    for kept in every:
        ways = [(BASELINE, GREEDY), (BASELINE, "median"), *sorted(kept.published, key=kept.typical)]
        yield from _tested(kept, OURS, ways)


def paths_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: a drawn path against the other ones, with the same decision."""
    yield from _HEAD
    for kept in every:
        for decision in (GREEDY, "median"):
            ways = [(label, decision) for label in (BASELINE, *PATHS) if (label, decision) in kept.errors]
            yield from _tested(kept, (OURS[0], decision), ways)


def losses_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: each loss that all files have against cross-entropy with the same decision."""
    losses = [label for label in _common(every) if label != BASELINE]
    yield from _head("table", "decision", *(f"`{label}`" for label in losses))
    for kept in every:
        for decision in (GREEDY, "median"):
            cells = _changes([(kept.errors[label, decision], kept.errors[BASELINE, decision]) for label in losses])
            yield f"| {kept.title if decision == GREEDY else ''} | {decision} | {' | '.join(cells)} |"


def decisions_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: the median against the greedy answer, for each loss that all files have."""
    losses = _common(every)
    yield from _head("table", *(f"`{label}`" for label in losses))
    for kept in every:
        cells = _changes([(kept.errors[label, "median"], kept.errors[label, GREEDY]) for label in losses])
        yield f"| {kept.title} | {' | '.join(cells)} |"


def best_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: each loss with its best weights against itself with the last ones, corrected within a column."""
    pairs = [(kept, _with_last_weights(kept, every)) for kept in every if kept.best]
    if not pairs:
        raise ValueError(f"{', '.join(kept.name for kept in every)}: expected some files whose names end in _best.")
    losses = _common([kept for pair in pairs for kept in pair])
    ways = [(label, decision) for label in losses for decision in (GREEDY, "median")]
    columns = [_changes([(best.errors[way], last.errors[way]) for way in ways]) for best, last in pairs]
    yield from _head("loss", "decision", *(best.data for best, _ in pairs))
    for (label, decision), *cells in zip(ways, *columns, strict=True):
        yield f"| {f'`{label}`' if decision == GREEDY else ''} | {decision} | {' | '.join(cells)} |"


def _with_last_weights(best: Kept, every: Sequence[Kept]) -> Kept:
    """Return the runs on the same data without the choice of weights."""
    found = [kept for kept in every if kept.data == best.data and not kept.best]
    if len(found) != 1:
        given = ", ".join(kept.name for kept in found) or "none"
        raise ValueError(f"{best.name} needs one file of {best.data} with the last weights, but was given {given}.")
    if found[0].asked != best.asked:
        raise ValueError(f"{best.name} and {found[0].name} cannot be paired: expected the same seeds, test rows and labels.")
    return found[0]


def baselines_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: ours, and the change from ours to other models of a number, tested over the runs of each."""
    names = [name for name in BASELINES if any(name in kept.baselines for kept in every)]
    yield from _head("table", f"`{OURS[0]}`, {OURS[1]}", *(BASELINES[name] for name in names))
    for kept in every:
        ours = kept.of_runs(OURS)
        p = holm(
            {
                name: paired_t(kept.baselines[name][:, None], ours[:, None], over="seeds")
                for name in names
                if name in kept.baselines
            }
        )
        changes = {name: 100 * (np.median(kept.baselines[name]) / np.median(ours) - 1) for name in p}
        cells = [
            f"{number(np.median(kept.baselines[name]))}, {signed(changes[name], 0)} % ({p_text(p[name])})" if name in p else ""
            for name in names
        ]
        yield f"| {kept.title} | {' | '.join((number(np.median(ours)), *cells))} |"


def derailed_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: derailed answers of each loss that all files have, and the runs that have some, over all files."""
    decisions = [*dict.fromkeys(decision for _, decision in every[0].derailed)]
    yield from _head("rows", "loss", *decisions)
    for rows, group in groupby(sorted(every, key=lambda kept: len(kept.rows)), key=lambda kept: kept.rows):
        of_size = [*group]
        for at, label in enumerate(_common(every)):
            cells = []
            for decision in decisions:
                runs = np.concatenate([kept.derailed[label, decision] for kept in of_size])
                cells.append(f"{runs.sum():,.0f}, in {(runs > 0).sum()} of {len(runs)} runs" if runs.any() else "0")
            yield f"| {'' if at else rows} | `{label}` | {' | '.join(cells)} |"


def _common(every: Sequence[Kept]) -> list[str]:
    losses = dict.fromkeys(label for label, _ in every[0].errors)
    return [label for label in losses if all((label, GREEDY) in kept.errors for kept in every)]


def _head(*columns: str) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"


def _changes(pairs: Sequence[tuple[Floats, Floats]]) -> list[str]:
    """Return the change of the typical error, and the rows closer minus farther with p-values corrected over the pairs."""
    tested = corrected({at: compare(mine, theirs, "sign") for at, (mine, theirs) in enumerate(pairs)})
    return [
        f"{signed(100 * (typical(mine) / typical(theirs) - 1), 0)} %, {signed(-100 * tested[at].difference.estimate, 1)} "
        f"({p_text(tested[at].corrected_p)})"
        for at, (mine, theirs) in enumerate(pairs)
    ]


_HEAD = (
    "| table | `soft`, decision | against | typical error | `soft` | change | p, mean error | rows closer - farther | p, rows |",
    "|---|---|---|---|---|---|---|---|---|",
)


def _tested(kept: Kept, ours: Way, ways: Sequence[Way]) -> Iterator[str]:
    """Yield lines of differences from ``ways``, with p-values corrected over them."""
    mine = kept.errors[ours]
    by_mean, by_row = (
        corrected({way: compare(mine, kept.errors[way], statistic) for way in ways}) for statistic in ("mean", "sign")
    )
    for at, way in enumerate(ways):
        before, after = kept.typical(way), kept.typical(ours)
        closer = -100 * by_row[way].difference.estimate
        cells = number(before), number(after), f"{signed(100 * (after / before - 1), 0)} %", p_text(by_mean[way].corrected_p)
        begin = " | " if at else f"{kept.title} | {ours[1]}"
        end = f"{signed(closer, 1)} points | {p_text(by_row[way].corrected_p)}"
        yield f"| {begin} | `{way[0]}`, {way[1]} | {' | '.join(cells)} | {end} |"


def number(value: float | np.floating[Any]) -> str:
    """Return three digits of a number."""
    if value >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def signed(value: float | np.floating[Any], digits: int) -> str:
    """Return a change with its sign, zero without."""
    return plus(minus(f"{value:.{digits}f}"))


_TABLES: dict[str, Callable[[Sequence[Kept]], Iterator[str]]] = {
    "errors": errors_tables,
    "losses": losses_table,
    "decisions": decisions_table,
    "tests": tests_table,
    "paths": paths_table,
    "best": best_table,
    "derailed": derailed_table,
    "baselines": baselines_table,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _TABLES:
        commands.add_parser(name).add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    print("\n".join(_TABLES[given.command]([read(file) for file in given.files])))


if __name__ == "__main__":
    main()
