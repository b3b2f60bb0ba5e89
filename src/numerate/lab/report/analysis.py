"""Compute the scores and the cost of each loss, and their differences from the baseline.

A *setup* is a model and a task under the same conditions: its runs differ only in loss and seed. Only runs of the same setup
are compared. The statistics are those of :mod:`numerate.lab.stats`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median
from typing import TypeVar

import numpy as np

from numerate.distribution.exact import Floats
from numerate.lab.data import TASKS, Task
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import rule_and_members
from numerate.lab.evaluation.missing import ZERO_LABELS, mostly_zero
from numerate.lab.models.settings import PLAIN
from numerate.lab.report.records import ExperimentRecord, Predictions, RunRecord
from numerate.lab.stats import LEAST_SEEDS, Comparison, Interval, compare, corrected, mean_interval, median_interval
from numerate.lab.training.config import HEADS
from numerate.lab.wording.measures import EXAMPLES_WON, Measure, measure
from numerate.lab.wording.text import IN_RANGE, OUT_OF_RANGE, percent

LEVEL = 0.95
FEW_ANSWERS = 10  # medians: a larger mean is that of a few answers

DATA_KEYS = ("task", "task_settings", "data")  # the settings that choose examples


@dataclass(frozen=True)
class Setup:
    """Model and task, with the runs of each loss by label and seed."""

    model: str
    task: str
    title: str
    baseline: str | None
    cells: Mapping[str, Mapping[int, RunRecord]]  # the baseline first
    judged: bool = True  # False where no model is better than a constant: then no difference between models is called significant

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels of the losses, the baseline first."""
        return tuple(self.cells)

    @property
    def first(self) -> RunRecord:
        """One of the runs, for what all have in common."""
        return next(iter(next(iter(self.cells.values())).values()))

    @property
    def headline(self) -> Measure:
        """Measure by which losses are judged."""
        return self.measure(self.first.headline)

    @property
    def gain_measure(self) -> Measure:
        """Measure of the difference from the baseline."""
        return EXAMPLES_WON if self.headline.median else self.headline

    @property
    def splits(self) -> tuple[str, ...]:
        """Splits, in range first."""
        known = [IN_RANGE, OUT_OF_RANGE]
        return tuple(sorted(self.first.splits, key=lambda split: known.index(split) if split in known else len(known)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds of all losses."""
        return tuple(sorted({seed for cells in self.cells.values() for seed in cells}))

    def runs(self) -> list[RunRecord]:
        """Return the runs of all losses."""
        return [cell for cells in self.cells.values() for cell in cells.values()]

    def measures(self, split: str) -> tuple[Measure, ...]:
        """Return the metrics of the split, the headline first."""
        names = sorted(self.examples(split).measures, key=lambda name: name != self.first.headline)
        return tuple(map(self.measure, names))

    def measure(self, name: str) -> Measure:
        """Look up a metric; where most labels are 0, it says that instead of an infinite relative error."""
        found = measure(name)
        return replace(found, undefined=ZERO_LABELS) if name == "relative_error" and self._zero_labels else found

    @cached_property
    def _zero_labels(self) -> bool:
        """Whether at least half of the labels of a split are 0."""
        return any(mostly_zero(part.golds) for part in self.first.splits.values())

    def examples(self, split: str) -> Predictions:
        """Return the predictions of one run, for prompts and gold answers, which all runs share."""
        return self.first.splits[split]

    def decisions(self, label: str | None = None) -> tuple[str, ...]:
        """Return the decisions that all runs have on all splits, greedy first, then those from pools.

        Not all losses need pools. With a ``label``, its own are returned; without one, those of any loss.
        """
        rules = [rule for rule in self._common(self.runs()) if rule_and_members(rule)[1] == 1]
        chosen = [cells for name, cells in self.cells.items() if label in (None, name)]
        known = dict.fromkeys(rule for cells in chosen for rule in self._common([*cells.values()]))
        pools = {rule: members for rule in known if (members := rule_and_members(rule)[1]) > 1}
        return (GREEDY, *rules, *sorted(pools, key=lambda rule: pools[rule]))

    def _common(self, runs: Sequence[RunRecord]) -> tuple[str, ...]:
        """Return the rules and pools that all of these runs have on all splits."""
        every = [run.splits[split].decided for split in self.splits for run in runs]
        rules = every[0].rules if every[0] is not None else ()
        return tuple(rule for rule in rules if all(part is not None and rule in part.measures for part in every))

    def sizes(self, label: str) -> tuple[int, ...]:
        """Return the pools that all runs of a loss have, by number of members; empty if they have one member."""
        every = [run.splits[split].decided for split in self.splits for run in self.cells[label].values()]
        found = [set[int]() if part is None else set(part.pools) for part in every]
        return tuple(sorted(set.intersection(*found)))

    def known_task(self) -> Task | None:
        """Return the task with its settings; None if it is not known, or has settings that are not, as in another release."""
        task = TASKS.get(self.task)
        try:
            return None if task is None else task(**(self.first.config.get("task_settings") or {}))
        except (TypeError, ValueError):
            return None

    def values(
        self,
        label: str,
        split: str,
        name: str,
        decision: str = GREEDY,
        *,
        seeds: Iterable[int] | None = None,
        filled: bool = False,
    ) -> Floats:
        """Return the values of a metric, ``[S, E]``; if ``filled``, those of the fallback where they are infinite."""
        cells = self.cells[label]
        mine = [cells[seed].splits[split] for seed in (sorted(cells) if seeds is None else seeds)]
        return np.stack([part.filled(name, decision) if filled else part.by(decision)[name] for part in mine])

    def format(self, label: str) -> str:
        """Return the format in which the runs of a label write numbers."""
        return str(next(iter(self.cells[label].values())).config.get("format", PLAIN))

    def without_format(self, label: str) -> str:
        """Return a label without the format at its end."""
        return label.removesuffix(f" {self.format(label)}")

    def dimensions(self) -> list[str]:
        """Return what is compared: ``loss``, ``format``, ``decision``, ``number of members``."""
        several = {
            "loss": len({*map(self.without_format, self.labels)}) > 1,
            "format": len({*map(self.format, self.labels)}) > 1,
            "decision": sum(rule_and_members(rule)[1] == 1 for rule in self.decisions()) > 1,
            "number of members": any(self.sizes(label) for label in self.labels),
        }
        return [name for name, compared in several.items() if compared]

    def predicts(self, label: str) -> bool:
        """Return whether runs predict a number from a hidden state instead of writing it; their answers are medians already."""
        return next(iter(self.cells[label].values())).config.get("loss") in HEADS

    def others(self) -> tuple[str, ...]:
        """Return the labels of the losses that are compared with the baseline."""
        return tuple(label for label in self.labels if self.baseline is not None and label != self.baseline)


@dataclass(frozen=True)
class Score:
    """Measure of a loss and decision on a split, and its paired difference from another loss or decision."""

    label: str
    split: str
    measure: Measure
    decision: str  # how the answers were decided
    seeds: int
    examples: int
    interval: Interval
    comparison: Comparison | None = None
    base: float = math.nan  # the score that it is compared with
    alike: bool = False  # whether every example of every seed has the same score
    family: int = 1  # number of comparisons the p-value is corrected for
    judged: bool = True  # see Setup

    @property
    def by_sign(self) -> bool:
        """Whether the difference counts examples won and lost, as for medians, instead of subtracting means."""
        return self.measure.median

    @property
    def _turned(self) -> bool:
        return self.by_sign and self.measure.higher_is_better is False

    @property
    def gain(self) -> Interval | None:
        """Difference; for examples won and lost, with the sign such that more is better."""
        if self.comparison is None:
            return None
        d = self.comparison.difference
        return replace(d, estimate=-d.estimate, low=-d.high, high=-d.low) if self._turned else d

    @property
    def effect(self) -> float | None:
        """Effect size, with the sign of the gain."""
        effect = None if self.comparison is None else self.comparison.effect
        return effect if effect is None or not self._turned else -effect

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return self.comparison is not None and self.comparison.seeds >= LEAST_SEEDS

    @property
    def size(self) -> float:
        """Size of the gain, better or worse; 0 without a comparison."""
        return 0.0 if self.gain is None else abs(self.gain.estimate)

    @property
    def gain_measure(self) -> Measure:
        """Measure in which the gain is displayed."""
        return EXAMPLES_WON if self.by_sign else self.measure

    @property
    def ahead(self) -> bool:
        """Whether the score is the better one, significantly or not."""
        if self.gain is None or self.gain_measure.higher_is_better is None:
            return False
        return self.gain.estimate != 0 and (self.gain.estimate > 0) == self.gain_measure.higher_is_better

    @property
    def better(self) -> bool | None:
        """True or False if the difference is significantly better or worse, else None.

        Everything that the report and the terminal call better, worse or significant among models goes through this.
        """
        compared = self.comparison
        if not self.judged or not self.tested or compared is None or self.measure.higher_is_better is None:
            return None
        return (compared.difference.estimate > 0) == self.measure.higher_is_better if compared.final_p < 1 - LEVEL else None

    @property
    def change(self) -> float | None:
        """Difference of the scores, as both are displayed, as a share of the other; None if that is 0 or one is infinite."""
        value, base = self.interval.estimate, self.base
        share = (value - base) / base if self.comparison and base and math.isfinite(base) and math.isfinite(value) else math.inf
        return share if math.isfinite(share) else None

    def gain_text(self) -> str:
        """Return the difference with its share: ``−90.0 (−14.4 %)``; of medians ``−14.4 %, closer − farther +20.7 points``."""
        change, gain = self.change, self.gain
        assert gain is not None
        if self.by_sign:
            closer = f"closer − farther {EXAMPLES_WON.difference(gain.estimate)}"
            return closer if change is None else f"{percent(change)}, {closer}"
        gap = self.measure.signed(self.interval.estimate - self.base)
        return gap if change is None or self.measure.percent else f"{gap} ({percent(change)})"

    def gain_range(self) -> str:
        """Return the interval of the difference."""
        assert self.gain is not None
        return self.gain_measure.signed_range(self.gain.low, self.gain.high)


AnyScore = TypeVar("AnyScore", bound=Score)


def compared(score: AnyScore, mine: Floats, base: Floats) -> AnyScore:
    """Return a score with its difference, from values ``[S, E]`` of both; means are compared only if all values are finite."""
    alike = np.array_equal(mine, base)
    if not mine.shape[0] or mine.shape[1] < 2 or not (score.by_sign or np.isfinite([mine, base]).all()):
        return replace(score, comparison=None, alike=alike)
    bounds = score.measure.bounds(np.stack([mine, base]))
    found = compare(mine, base, "sign" if score.by_sign else "mean", LEVEL, bounds=bounds)
    return replace(score, comparison=found, base=estimate(score.measure, base), alike=alike)


def holm_corrected(rows: Sequence[AnyScore]) -> list[AnyScore]:
    """Return scores with corrected p-values.

    A comparison in which no example of any seed differs cannot be significant, so it does not count for the correction
    (Tarone 1990): a split on which all answers are wrong does not reduce the power on the other split.
    """
    comparisons = {i: row.comparison for i, row in enumerate(rows) if row.comparison is not None}
    alike = {i: replace(same, corrected_p=1.0) for i, same in comparisons.items() if rows[i].alike}
    family = corrected({i: tested for i, tested in comparisons.items() if i not in alike})
    final = family | alike
    return [replace(row, comparison=final.get(i), family=max(1, len(family))) for i, row in enumerate(rows)]


def scores(setup: Setup) -> list[Score]:
    """Compute every metric of every loss on every split, with p-values corrected over the losses and splits of a metric.

    The headline metric is computed for each decision, with p-values corrected by decision.
    """
    result: list[Score] = []
    for name in dict.fromkeys(metric.name for split in setup.splits for metric in setup.measures(split)):
        shown = setup.measure(name)
        places = [(split, label) for split in setup.splits if shown in setup.measures(split) for label in setup.labels]
        for decision in setup.decisions() if name == setup.headline.name else (GREEDY,):
            mine = [place for place in places if decision in setup.decisions(place[1])]
            result += holm_corrected([_score(setup, label, split, shown, decision) for split, label in mine])
    return result


def score_of(setup: Setup, label: str, split: str, summary: Measure, decision: str, values: Floats) -> Score:
    """Return the score of values ``[S, E]`` of a metric, not compared yet."""
    seeds, examples = values.shape
    return Score(label, split, summary, decision, seeds, examples, interval(summary, values), judged=setup.judged)


def _score(setup: Setup, label: str, split: str, summary: Measure, decision: str) -> Score:
    score = score_of(setup, label, split, summary, decision, setup.values(label, split, summary.name, decision))
    compared = label in setup.others() and decision in setup.decisions(setup.baseline)
    return against(setup, score, str(setup.baseline), decision) if compared else score


def against(setup: Setup, score: Score, label: str, decision: str, *, filled: bool = False) -> Score:
    """Compare a score with that of another loss or decision, with the seeds of both; ``filled`` as in :meth:`Setup.values`."""
    seeds = sorted(setup.cells[score.label].keys() & setup.cells[label].keys())
    if not seeds:
        return replace(score, comparison=None)
    pairs, of = ((score.label, score.decision), (label, decision)), (score.split, score.measure.name)
    return compared(score, *(setup.values(one, *of, rule, seeds=seeds, filled=filled) for one, rule in pairs))


@dataclass(frozen=True)
class RunCost:
    """Cost of the runs of a loss: medians over seeds, and median, lowest and highest ratio to the baseline."""

    label: str
    seeds: int
    ms_per_step: float | None
    peak_mib: float | None
    tokens_per_second: float | None
    train_seconds: float | None
    time_ratio: float | None
    time_ratio_low: float | None
    time_ratio_high: float | None
    memory_ratio: float | None


def setups(experiment: ExperimentRecord) -> list[Setup]:
    """Group the runs of an experiment into setups that can be compared."""
    groups: dict[str, dict[str, list[RunRecord]]] = {}
    for cell in experiment.cells:
        key = json.dumps([cell.config.get(name) for name in ("model", *DATA_KEYS)], sort_keys=True)
        groups.setdefault(key, {}).setdefault(cell.label, []).append(cell)
    result = [_setup(experiment, cells) for cells in groups.values()]
    titles = [setup.title for setup in result]
    named = [setup if titles.count(setup.title) == 1 else _with_settings(setup) for setup in result]
    return sorted(named, key=lambda setup: (setup.task, setup.model, setup.title))


def costs(setup: Setup) -> list[RunCost]:
    """Compute the cost of each loss."""
    base = setup.cells[setup.baseline] if setup.baseline is not None else {}

    def middle(label: str, name: str) -> float | None:
        values = [cell.cost[name] for cell in setup.cells[label].values() if name in cell.cost]
        return median(values) if values else None

    def ratios(label: str, name: str) -> list[float]:
        pairs = [(cell.cost.get(name), base[seed].cost.get(name)) for seed, cell in setup.cells[label].items() if seed in base]
        return [mine / theirs for mine, theirs in pairs if mine is not None and theirs]

    result = []
    for label in setup.labels:
        time, memory = ratios(label, "ms_per_step"), ratios(label, "peak_mib")
        medians = [middle(label, name) for name in ("ms_per_step", "peak_mib", "tokens_per_second", "train_seconds")]
        time_ratios = [median(time) if time else None, min(time, default=None), max(time, default=None)]
        values = [*medians, *time_ratios, median(memory) if memory else None]
        result.append(RunCost(label, len(setup.cells[label]), *values))
    return result


def finite(errors: Floats) -> Floats:
    """Return the errors ``[S, E]`` of the examples that have a finite one with every seed."""
    return errors[:, np.isfinite(errors).all(0)]


def few_decide(errors: Floats) -> bool:
    """Return whether a few answers dominate the mean of a run, of errors ``[S, E]``: it is above ten medians."""
    with np.errstate(over="ignore"):
        return bool(errors.size and errors.mean(1).max() > FEW_ANSWERS * np.median(errors) > 0)


def estimate(summary: Measure, values: Floats) -> float:
    """Summarise a metric ``[S, E]``: the median or mean of a run, averaged over seeds.

    The mean of an error without an upper limit is that of a typical run, the median over seeds: one derailed run cannot ruin it.
    """
    with np.errstate(over="ignore"):
        if summary.median:
            return float(np.median(values, axis=1).mean())
        return float(np.median(values.mean(1)) if summary.unbounded else values.mean())


def interval(summary: Measure, values: Floats, resamples: int = 999) -> Interval:
    """Return the :func:`estimate` in a 95 % interval, clipped to possible values; for one example it is (-inf, inf)."""
    middle = estimate(summary, values)
    if values.shape[1] == 1:
        return Interval(middle, -np.inf, np.inf, LEVEL, "examples")
    bounds = summary.bounds(values)
    if not summary.median:
        mean = mean_interval(values, LEVEL, bounds=bounds, resamples=resamples)
        return replace(mean, estimate=middle, low=min(mean.low, middle), high=max(mean.high, middle))
    result = median_interval(values, LEVEL, resamples=resamples)
    return replace(result, low=max(result.low, bounds[0]), high=min(result.high, bounds[1]))


def _setup(experiment: ExperimentRecord, cells: Mapping[str, list[RunRecord]]) -> Setup:
    first = next(iter(cells.values()))[0]
    for cell in (cell for own in cells.values() for cell in own):
        _check_same_examples(first, cell)
    model, task = str(first.config.get("model")), str(first.config.get("task"))
    baseline = experiment.baseline if experiment.baseline in cells else None
    order = sorted(cells, key=lambda label: (label != baseline, _rank(cells[label]), label))
    ordered = {label: {cell.seed: cell for cell in sorted(cells[label], key=lambda cell: cell.seed)} for label in order}
    return Setup(model, task, f"{task} ({model})", baseline, ordered)


def _rank(cells: Sequence[RunRecord]) -> float:
    """Sort key of losses in tables and figures: the best first."""
    headline = measure(cells[0].headline)
    split = min(cells[0].splits, key=lambda split: split != IN_RANGE)
    summary = np.median if headline.median else np.mean
    value = float(np.mean([summary(cell.splits[split].measures[headline.name]) for cell in cells if split in cell.splits]))
    return value if headline.higher_is_better is False else -value


def _with_settings(setup: Setup) -> Setup:
    config = setup.first.config
    settings = sorted((config.get("task_settings") or {}).items())
    notes = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in settings]
    notes += [str(config["data"])] if config.get("data") else []
    return replace(setup, title=f"{setup.title}, {', '.join(notes) or 'default settings'}")


def _check_same_examples(first: RunRecord, cell: RunRecord) -> None:
    problems = []
    if cell.headline != first.headline:
        problems.append(f"headlines {cell.headline!r} and {first.headline!r}")
    if cell.splits.keys() != first.splits.keys():
        problems.append(f"splits {', '.join(cell.splits)} and {', '.join(first.splits)}")
    for split in (split for split in first.splits if split in cell.splits):
        mine, theirs = cell.splits[split], first.splits[split]
        if (mine.index, mine.prompts, mine.golds) != (theirs.index, theirs.prompts, theirs.golds):
            problems.append(f"other examples of split {split!r}")
        if mine.measures.keys() != theirs.measures.keys():
            problems.append(f"other metrics of split {split!r}")
    if problems:
        raise ValueError(
            f"{cell.folder} and {first.folder} cannot be compared ({', '.join(problems)}): expected the same metrics of "
            "the same examples in the same order. Delete the older one and run it again."
        )
