"""Make tables of losses and decisions from the scores of a comparison.

    python research/keep.py scores runs/clocks                      # research/scores/clocks_scores.csv.xz
    python research/scores.py losses research/scores/clocks_scores.csv.xz --metrics clock_accuracy,time_gap_circular
    python research/scores.py against research/scores/clocks_scores.csv.xz --way soft,mode --metrics clock_accuracy
    python research/scores.py decisions research/scores/clocks_scores.csv.xz --metrics clock_accuracy
    python research/scores.py settings research/scores/clocks_scores.csv.xz
    python research/scores.py losses research/scores/svamp_scores.csv.xz --metrics exact,number_nll,text_nll --no-worse text_nll

``losses`` compares each loss with the baseline, decision by decision. ``against`` compares one loss and decision with every
decision of the baseline, and with every other loss with its best decision, chosen on the test examples themselves. ``decisions``
compares each decision with the greedy answers of the same models. Differences are paired over seeds and examples; they have
95 % intervals, and p-values with Holm's correction over the lines of a table, as in the report. Errors that can be infinite are
summarised by medians, and compared by the share of examples on which an answer is closer minus the share where it is farther.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from keep import GREEDY, SETTINGS

from numerate.lab.stats import Comparison, compare, corrected
from numerate.lab.wording.measures import EXAMPLES_WON, Measure, measure
from numerate.lab.wording.text import counted, p_equation

ABOUT = ("model", "label", "seed", "split", "row")
MARGIN = 0.01  # of the baseline's value: a difference below it is no worse

Floats = npt.NDArray[np.float64]
Way = tuple[str, str]  # a loss and a decision


@dataclass(frozen=True)
class Kept:
    """The scores of one model of a comparison."""

    name: str
    model: str
    settings: Mapping[str, dict[str, str]]  # by loss
    seeds: int
    scores: Mapping[tuple[str, str, str, str], Floats]  # [S, E] by loss, decision, split and metric

    @property
    def labels(self) -> list[str]:
        """The losses."""
        return [*self.settings]

    def splits(self, name: str) -> list[str]:
        """Return the splits that have a metric."""
        return [*dict.fromkeys(split for _, _, split, found in self.scores if found == name)]

    def decisions(self, split: str, name: str, *labels: str) -> list[str]:
        """Return the decisions that these losses have, greedy first; default: that all have."""
        rules = dict.fromkeys(rule for _, rule, *key in self.scores if key == [split, name])
        return [rule for rule in rules if all((label, rule, split, name) in self.scores for label in labels or self.labels)]

    def best(self, label: str, split: str, name: str) -> Way:
        """Return a loss with the decision that scores best on the test examples themselves."""
        sign = 1 if measure(name).higher_is_better else -1
        rules = self.decisions(split, name, label)
        return label, max(rules, key=lambda rule: sign * summary(measure(name), self.scores[label, rule, split, name]))


@cache
def read(file: Path) -> list[Kept]:
    """Read a file of scores; an answer without a number has infinite errors."""
    texts = dict.fromkeys((*ABOUT[:2], "split", *SETTINGS), str)
    table = pd.read_csv(file, dtype=texts, keep_default_na=False, na_values=[""])
    found = []
    for model, of_model in table.groupby("model", sort=False):
        settings, seeds, scores = {}, 0, {}
        for label, mine in of_model.groupby("label", sort=False):
            settings[label] = mine[[*SETTINGS]].iloc[0].fillna("").to_dict()
            seeds = mine["seed"].nunique()
            for split, part in mine.groupby("split", sort=False):
                for column in part.columns.difference((*ABOUT, *SETTINGS), sort=False):
                    values = part[column].to_numpy(float)
                    rule, _, name = column.rpartition(" ")  # a rule may be two words
                    # Otherwise the split, or the loss, does not have it.
                    if not np.isnan(values).all() or (measure(name).median and not rule):
                        scores[label, rule or GREEDY, split, name] = np.where(np.isnan(values), np.inf, values).reshape(seeds, -1)
        found.append(Kept(file.name.removesuffix("_scores.csv.xz"), str(model), settings, seeds, scores))
    return found


def summary(about: Measure, values: Floats) -> float:
    """Return the mean over examples and seeds, or the mean over seeds of the median."""
    return float(np.mean(np.median(values, axis=1) if about.median else values.mean(1)))


def tested(about: Measure, pairs: Mapping[Any, tuple[Floats, Floats]]) -> dict[Any, Comparison]:
    """Compare pairs of scores, with p-values corrected over those in which anything differs."""
    found = {}
    for key, (mine, theirs) in pairs.items():
        bounds = about.bounds(np.stack([mine, theirs]))
        found[key] = compare(mine, theirs, "sign" if about.median else "mean", bounds=bounds)
    differ = {key: found[key] for key, (mine, theirs) in pairs.items() if not np.array_equal(mine, theirs)}
    return found | corrected(differ)


def difference(about: Measure, result: Comparison) -> str:
    """Return a difference with its interval and p-value; of errors that can be infinite, the share closer minus farther."""
    found = result.difference
    low, middle, high, shown = found.low, found.estimate, found.high, about
    if about.median:
        shown = EXAMPLES_WON
        if about.higher_is_better is False:
            low, middle, high = -high, -middle, -low
    p = p_equation(1.0 if result.corrected_p is None else result.corrected_p).replace(" ", "\N{NO-BREAK SPACE}")
    return f"{shown.signed(middle)} ({shown.signed_range(low, high)}), {p}"


def unit(about: Measure, baseline: str = "") -> str:
    """Return the heading of differences."""
    text = f"difference from `{baseline}`" if baseline else "difference"
    if about.median:
        text = f"closer - farther than `{baseline}`" if baseline else "closer - farther"
    return f"{text}, points" if about.percent or about.median else text


def losses_table(kept: Kept, given: argparse.Namespace) -> Iterator[str]:
    """Yield a table for each split: every loss and decision, and its difference from the baseline with that decision."""
    check(kept, {given.baseline, *given.losses}, given.metrics)
    chosen = [given.baseline, *(label for label in given.losses or kept.labels if label != given.baseline)]
    for split in given.splits or kept.splits(given.metrics[0]):
        names = [name for name in given.metrics if split in kept.splits(name)]
        rules = [rule for rule in kept.decisions(split, names[0]) if not given.decisions or rule in given.decisions]
        heads = ["loss", *(["decision"] if rules[1:] else [])]
        heads += [text for name in names for text in (measure(name).heading, unit(measure(name), given.baseline))]
        heads += [f"{measure(given.no_worse).plain} no worse"] if given.no_worse else []
        yield from head(kept, split, names[0], heads)
        for rule in rules:
            decided = [name for name in names if rule in kept.decisions(split, name)]  # likelihoods are of no decision
            results = {name: against_baseline(kept, chosen, (rule, split, name), given.baseline) for name in decided}
            for label in chosen:
                cells = [f"`{label}`", *([rule] if rules[1:] else [])]
                for name in names:
                    values = kept.scores.get((label, rule, split, name))
                    cells.append("" if values is None else measure(name).number(summary(measure(name), values)))
                    cells.append(difference(measure(name), results[name][label]) if label in results.get(name, ()) else "")
                if given.no_worse:
                    cells.append(_no_worse(kept, label, (rule, split, given.no_worse), results, given.baseline))
                yield row(cells)


def against_baseline(kept: Kept, labels: Sequence[str], key: tuple[str, str, str], baseline: str) -> dict[str, Comparison]:
    """Compare losses with the baseline by decision, split and metric."""
    pairs = {label: (kept.scores[(label, *key)], kept.scores[(baseline, *key)]) for label in labels if label != baseline}
    return tested(measure(key[-1]), pairs)


def _no_worse(kept: Kept, label: str, key: tuple[str, str, str], results: Mapping[str, Any], baseline: str) -> str:
    """Return ``yes`` if the whole interval of the difference lies on the good side of the margin."""
    if label == baseline or key[-1] not in results:
        return ""
    found, name = results[key[-1]][label].difference, key[-1]
    margin = MARGIN * summary(measure(name), kept.scores[(baseline, *key)])
    good = found.low > -margin if measure(name).higher_is_better else found.high < margin
    return "yes" if good else "not shown"


def against_table(kept: Kept, given: argparse.Namespace) -> Iterator[str]:
    """Yield a table for each split: one loss and decision against the baseline's, and against each other loss at its best."""
    label, rule = given.way
    check(kept, {given.baseline, label, *given.losses}, given.metrics)
    for name in given.metrics:
        about = measure(name)
        for split in given.splits or kept.splits(name):
            others = [(given.baseline, other) for other in kept.decisions(split, name, given.baseline)]
            rest = [other for other in kept.labels if other not in (given.baseline, label)]
            others += [kept.best(other, split, name) for other in rest if not given.losses or other in given.losses]
            mine = kept.scores[label, rule, split, name]
            pairs = {way: (mine, kept.scores[(*way, split, name)]) for way in others if way != (label, rule)}
            yield from head(kept, split, name, ["against", about.heading, f"`{label}`, {rule}", unit(about)])
            for way, result in tested(about, pairs).items():
                theirs = about.number(summary(about, pairs[way][1]))
                yield row([f"`{way[0]}`, {way[1]}", theirs, about.number(summary(about, mine)), difference(about, result)])


def decisions_table(kept: Kept, given: argparse.Namespace) -> Iterator[str]:
    """Yield a table for each split: every decision of a loss against its greedy answers."""
    check(kept, set(given.losses), given.metrics)
    for name in given.metrics:
        about = measure(name)
        for split in given.splits or kept.splits(name):
            rules = [rule for rule in kept.decisions(split, name) if rule != GREEDY]
            ways = [(label, rule) for label in given.losses or kept.labels for rule in rules]
            pairs = {way: (kept.scores[(*way, split, name)], kept.scores[way[0], GREEDY, split, name]) for way in ways}
            yield from head(kept, split, name, ["loss", "decision", about.heading, GREEDY, unit(about)])
            for (label, rule), result in tested(about, pairs).items():
                means = [about.number(summary(about, values)) for values in pairs[label, rule]]
                yield row([f"`{label}`", rule, *means, difference(about, result)])


def settings_table(every: Sequence[Kept]) -> Iterator[str]:
    """Yield a table of the settings that the losses of all files had."""
    yield row(["comparison", "model", "loss", *(name.replace("_", " ") for name in SETTINGS)])
    yield row(["---"] * (3 + len(SETTINGS)))
    for kept in every:
        for label, settings in kept.settings.items():
            shown = settings | {key: f"{float(settings[key]):g}" for key in ("learning_rate", "weight")}  # 0.3 x 3 is 0.9
            yield row([kept.name, f"`{kept.model}`", f"`{label}`", *(shown[key] for key in SETTINGS)])


def check(kept: Kept, labels: set[str], metrics: Sequence[str]) -> None:
    """Raise if one of the losses has no runs, or if one of the metrics was not kept."""
    known = dict.fromkeys(name for *_, name in kept.scores)
    if missing := [name for name in metrics if name not in known]:
        raise ValueError(f"{kept.name} has no {', '.join(missing)}: expected some of {', '.join(known)}.")
    if unknown := labels - set(kept.labels):
        raise ValueError(f"{kept.name} has no runs of {', '.join(sorted(unknown))}: expected some of {', '.join(kept.labels)}.")


def head(kept: Kept, split: str, name: str, columns: Sequence[str]) -> Iterator[str]:
    """Yield the title and the header of a table."""
    examples = next(values.shape[1] for key, values in kept.scores.items() if key[2:] == (split, name))
    size = f"{counted(kept.seeds, 'seed')}, {counted(examples, 'example')}"
    yield f"\n**{kept.name}, {split}**: `{kept.model}`, {size}\n"
    yield row(columns)
    yield row(["---"] * len(columns))


def row(cells: Sequence[str]) -> str:
    """Return a line of a table."""
    return f"| {' | '.join(cells)} |"


_TABLES: dict[str, Callable[[Kept, argparse.Namespace], Iterator[str]]] = {
    "losses": losses_table,
    "against": against_table,
    "decisions": decisions_table,
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in (*_TABLES, "settings"):
        command = commands.add_parser(name)
        command.add_argument("files", type=Path, nargs="+")
        if name == "settings":
            continue
        command.add_argument("--metrics", type=_names, required=True, help="names, separated by commas")
        command.add_argument("--splits", type=_names, default=[], help="default: all that have the metric")
        command.add_argument("--losses", type=_names, default=[], help="default: all")
        if name == "decisions":
            continue
        command.add_argument("--baseline", default="ce", help="default: ce")
        if name == "losses":
            command.add_argument("--decisions", type=_names, default=[], help="default: all")
            command.add_argument("--no-worse", metavar="METRIC", help="say whether it is worse by less than 1 %%")
        else:
            command.add_argument("--way", type=_names, required=True, help="a loss and a decision, such as soft,median")
    given = parser.parse_args(arguments)
    every = [kept for file in given.files for kept in read(file)]
    if given.command == "settings":
        lines = settings_table(every)
    else:
        lines = (line for kept in every for line in _TABLES[given.command](kept, given))
    print("\n".join(lines))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


if __name__ == "__main__":
    main()
