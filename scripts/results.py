"""Keep the answers of comparisons on tables in small files, and make the tables of docs/results/tables.md from them.

    numerate compare experiments/tables_flights.yaml --tune 5
    python scripts/results.py keep runs/tables_flights docs/results          # answers of all runs, and the settings they had
    python scripts/results.py errors docs/results/tables_*.csv.xz            # errors of every loss and decision, as Markdown
    python scripts/results.py losses docs/results/tables_*.csv.xz            # each loss against cross-entropy, by decision
    python scripts/results.py decisions docs/results/tables_*.csv.xz         # medians against greedy answers
    python scripts/results.py tests docs/results/tables_*.csv.xz             # soft labels with the median against each of them
    python scripts/results.py paths docs/results/diamonds_soft*.csv.xz       # drawn answers against fixed ones and jitter
    python scripts/results.py rivals docs/results/tables_*.csv.xz            # soft labels against other models of a number
    python scripts/results.py best docs/results/tables_births*.csv.xz        # best weights against the last ones, for each loss
    python scripts/results.py derailed docs/results/tables_*.csv.xz          # answers with more digits than any label

``best`` compares each file whose name ends in ``_best`` with the given file of the same table and training rows that has the last
weights.
``scripts/results_figure.py`` draws the figure of docs/results.md.

A kept file has one line for each loss, seed and test row: the label, the greedy answer and the decided ones. An answer without a
number counts as the median of the training labels, as in the means of a report.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import lzma
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from numerate.lab.wording.text import minus, p_text, plus

GREEDY, BASELINE, OURS = "greedy", "ce", ("soft", "median")
PATHS = ("soft_fixed", "soft_jitter")  # variants of ours, which no paper has published
COLUMNS = ("label", "seed", "row", "gold", "fallback", GREEDY)
SETTINGS = ("comparison", "label", "train_examples", "steps", "learning_rate", "weight", "width")
RIVALS = {
    "scalar": "a scalar head",
    "hl_gauss_median": "HL-Gauss bins, median",
    "hl_gauss_mean": "HL-Gauss bins, mean",
    "boosting": "gradient boosting",
    "constant": "the training median",
}

Floats = npt.NDArray[np.float64]
Record = dict[str, Any]
Way = tuple[str, str]  # a loss and a decision

_NAME = re.compile("(?:tables_|registry_|smollm2_)?(?P<table>.+?)(?:_soft)?(?P<many>_10000)?(?P<best>_best)?")


# Keep


def keep(folder: Path, out: Path) -> None:
    """Write the answers of the runs of a comparison, and add their settings to ``settings.csv``."""
    cells = [cell for cell in (_cell(part) for part in sorted((folder / "cells").iterdir())) if not cell[0].get("validation")]
    cells.sort(key=lambda cell: (cell[0]["label"], cell[0]["seed"]))
    rules = [*cells[0][2][0]["decisions"]]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow((*COLUMNS, *rules))
    for config, result, records in cells:
        for record in records:
            decided = [f"{float(record['decisions'][rule]['answer']):.5g}" for rule in rules]
            about = config["label"], config["seed"], record["index"], record["gold"], result["label_median"]
            lines.writerow((*about, record["answer"], *decided))
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{folder.name}.csv.xz").write_bytes(lzma.compress(text.getvalue().encode(), preset=9))
    _keep_settings(folder.name, [config for config, _, _ in cells], out / "settings.csv")


def _cell(folder: Path) -> tuple[Record, Record, list[Record]]:
    config, result = (json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "result.json"))
    lines = (folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return config, result, [json.loads(line) for line in lines]


def _keep_settings(name: str, configs: Sequence[Record], file: Path) -> None:
    """Replace the lines of a comparison in the table of settings."""
    rows = []
    if file.is_file():
        with file.open(encoding="utf-8", newline="") as lines:
            rows = [row for row in csv.DictReader(lines) if row["comparison"] != name]
    for label, group in groupby(configs, key=lambda config: config["label"]):
        config = next(group)
        soft = {key: value for key, value in (config.get("soft") or {}).items() if key in ("relative", "width") and value}
        width = " ".join(f"{key} {value:g}" for key, value in soft.items())
        rates = {key: f"{config[key]:g}" for key in ("learning_rate", "weight")}
        rows.append({"comparison": name, "label": label, **rates, "width": width} | {key: config[key] for key in SETTINGS[2:4]})
    with file.open("w", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, SETTINGS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["comparison"], row["label"])))


# Read


@dataclass(frozen=True)
class Kept:
    """The absolute errors of a comparison, ``[S, E]`` for each loss and decision."""

    name: str
    errors: dict[Way, Floats]
    rivals: dict[str, Floats]  # [S] mean absolute errors of other models, such as gradient boosting
    asked: tuple[tuple[str, ...], ...] = ()  # seed, row and label of each of the S x E answers
    derailed: dict[Way, Floats] = field(default_factory=dict)  # [S] answers with more digits before the point than any test label

    @property
    def title(self) -> str:
        """Table, rows and weights, such as ``flights, 1,000 rows`` or ``flights, 1,000 rows, best weights``."""
        return f"{self.data}, best weights" if self.best else self.data

    @property
    def data(self) -> str:
        """Table and rows."""
        found = _NAME.fullmatch(self.name)
        assert found
        return f"{found['table']}, {self.rows} rows"

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
    """Read a file that :func:`keep` wrote, and the errors of rivals beside it."""
    with lzma.open(file, "rt", encoding="utf-8", newline="") as text:
        names, *rows = csv.reader(text)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True))
    gold, fallback = _values(columns["gold"]), _values(columns["fallback"])
    labels, seeds = np.array(columns["label"]), np.array(columns["seed"])
    too_large = 10.0 ** len(str(int(np.abs(gold).max())))
    found, derailed = {}, {}
    for decision in (name for name in names if name not in COLUMNS[:-1]):
        answers = _values(columns[decision])
        errors = np.abs(np.where(np.isnan(answers), fallback, answers) - gold)
        for label in dict.fromkeys(columns["label"]):
            mine, runs = labels == label, len(np.unique(seeds[labels == label]))
            found[label, decision] = errors[mine].reshape(runs, -1)
            derailed[label, decision] = (np.abs(answers[mine]) >= too_large).reshape(runs, -1).sum(1).astype(float)
    name = file.name.removesuffix(".csv.xz")
    first = labels == labels[0]
    asked = tuple(zip(*(np.array(columns[key])[first].tolist() for key in ("seed", "row", "gold")), strict=True))
    return Kept(name, found, _rivals(file.parent / f"{name}_rivals.csv"), asked, derailed)


def _values(column: Sequence[str]) -> Floats:
    """Return the numbers of a column, NaN where there is none; some are fractions: ``211/100``."""
    return np.array([float(Fraction(text)) if "/" in text else text or "nan" for text in column], float)


def _rivals(file: Path) -> dict[str, Floats]:
    if not file.is_file():
        return {}
    with file.open(encoding="utf-8", newline="") as text:
        rows = [*csv.DictReader(text)]
    names = dict.fromkeys(row["baseline"] for row in rows)
    return {name: np.array([float(row["mae"]) for row in rows if row["baseline"] == name]) for name in names}


# Tables


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
    for name, mae in kept.rivals.items():
        yield f"| {RIVALS[name]} | {number(np.median(mae))} |" + " |" * (3 * len(decisions) - 1)


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


def rivals_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a Markdown table: ours, and the change from ours to other models of a number, tested over the runs of each."""
    from numerate.lab.stats import holm, paired_t

    rivals = [name for name in RIVALS if any(name in kept.rivals for kept in every)]
    yield from _head("table", f"`{OURS[0]}`, {OURS[1]}", *(RIVALS[name] for name in rivals))
    for kept in every:
        ours = kept.of_runs(OURS)
        p = holm(
            {name: paired_t(kept.rivals[name][:, None], ours[:, None], over="seeds") for name in rivals if name in kept.rivals}
        )
        changes = {name: 100 * (np.median(kept.rivals[name]) / np.median(ours) - 1) for name in p}
        cells = [
            f"{number(np.median(kept.rivals[name]))}, {signed(changes[name], 0)} % ({p_text(p[name])})" if name in p else ""
            for name in rivals
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
    from numerate.lab.stats import compare, corrected

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
    from numerate.lab.stats import compare, corrected

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
    "rivals": rivals_table,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("keep", help="write the answers of a comparison's runs")
    one.add_argument("folder", type=Path)
    one.add_argument("out", type=Path)
    for name in _TABLES:
        commands.add_parser(name).add_argument("files", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    if given.command != "keep":
        print("\n".join(_TABLES[given.command]([read(file) for file in given.files])))
    elif (given.folder / "cells").is_dir():
        keep(given.folder, given.out)
    else:
        parser.exit(2, f"{given.folder} has no cells: expected a folder written by `numerate compare`.\n")


if __name__ == "__main__":
    main()
