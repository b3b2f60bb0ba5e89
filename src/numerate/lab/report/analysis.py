"""From records to numbers: what each loss scores, how it differs from the baseline, and what it costs.

A *setup* is a model and a task under the same conditions; its cells differ in loss and seed alone, and only cells of one setup
are compared. Statistics are those of :mod:`numerate.lab.stats`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from numerate.lab.report.records import Cell, Floats, Predictions, Run
from numerate.lab.report.wording import EXAMPLES_WON, Measure, measure
from numerate.lab.stats import Comparison, Interval, compare, corrected, mean_interval, median_interval

LEVEL = 0.95
LEAST_SEEDS = 3  # of a verdict: two have one degree of freedom, and tell nothing but the largest differences
IN_RANGE, OUT_OF_RANGE = "interpolate", "extrapolate"
SPLIT_NAMES = {IN_RANGE: "in range", OUT_OF_RANGE: "out of range"}

_LOSS_KEYS = ("label", "loss", "loss_settings", "weight", "normalize", "scale")
_PLACE_KEYS = ("model", "task", "task_settings", "data")


@dataclass(frozen=True)
class Setup:
    """A model on a task, and the cells of its losses by label and seed."""

    model: str
    task: str
    title: str
    baseline: str | None
    cells: Mapping[str, Mapping[int, Cell]]  # the baseline first

    @property
    def labels(self) -> tuple[str, ...]:
        """Of the losses, the baseline first."""
        return tuple(self.cells)

    @property
    def first(self) -> Cell:
        """Any cell, for what all have in common."""
        return next(iter(next(iter(self.cells.values())).values()))

    @property
    def headline(self) -> Measure:
        """The measure by which losses are judged."""
        return measure(self.first.headline)

    @property
    def splits(self) -> tuple[str, ...]:
        """In range first."""
        known = [IN_RANGE, OUT_OF_RANGE]
        return tuple(sorted(self.first.splits, key=lambda split: known.index(split) if split in known else len(known)))

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of any loss."""
        return tuple(sorted({seed for cells in self.cells.values() for seed in cells}))

    def measures(self, split: str) -> tuple[Measure, ...]:
        """What the split is scored by; the headline first."""
        names = sorted(self.first.splits[split].measures, key=lambda name: name != self.first.headline)
        return tuple(measure(name) for name in names)

    def examples(self, split: str) -> Predictions:
        """Prompts and gold answers, which are the same for every cell."""
        return self.first.splits[split]

    def scores(self, label: str, split: str, name: str, seeds: Iterable[int] | None = None) -> Floats:
        """``[S, E]``."""
        cells = self.cells[label]
        return np.stack([cells[seed].splits[split].measures[name] for seed in (sorted(cells) if seeds is None else seeds)])

    def rivals(self) -> tuple[str, ...]:
        """The losses that are compared with the baseline."""
        return tuple(label for label in self.labels if self.baseline is not None and label != self.baseline)


@dataclass(frozen=True)
class Score:
    """One measure of one loss on one split, and how it differs from the baseline's."""

    label: str
    split: str
    measure: Measure
    seeds: int
    examples: int
    interval: Interval
    comparison: Comparison | None
    alike: bool  # whether no example of any seed is scored differently from the baseline's
    family: int  # how many comparisons the p-value is corrected for

    @property
    def by_sign(self) -> bool:
        """Whether the difference is that of examples won and lost, as for medians, and not that of the two figures."""
        return self.measure.median

    @property
    def _turned(self) -> bool:
        return self.by_sign and self.measure.higher_is_better is False

    @property
    def gain(self) -> Interval | None:
        """The difference; of examples won and lost, turned so that more is better."""
        if self.comparison is None:
            return None
        d = self.comparison.difference
        return replace(d, estimate=-d.estimate, low=-d.high, high=-d.low) if self._turned else d

    @property
    def effect(self) -> float | None:
        """The size of the gain, in units of its spread between seeds."""
        effect = None if self.comparison is None else self.comparison.effect
        return effect if effect is None or not self._turned else -effect

    @property
    def gain_measure(self) -> Measure:
        """What the gain is measured in."""
        return EXAMPLES_WON if self.by_sign else self.measure

    @property
    def ahead(self) -> bool:
        """Whether the loss did better than the baseline, noise or not."""
        if self.gain is None or self.gain_measure.higher_is_better is None:
            return False
        return self.gain.estimate != 0 and (self.gain.estimate > 0) == self.gain_measure.higher_is_better

    @property
    def better(self) -> bool | None:
        """True or False where the difference is beyond noise and the measure has a direction, else None."""
        if self.comparison is None or self.measure.higher_is_better is None or self.comparison.seeds < LEAST_SEEDS:
            return None
        p = self.comparison.p_value if self.comparison.corrected_p is None else self.comparison.corrected_p
        return self.ahead if p < 1 - LEVEL else None


@dataclass(frozen=True)
class Cost:
    """What a loss costs: medians over seeds, and the ratio to the baseline with its smallest and largest over seeds."""

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


def setups(run: Run) -> list[Setup]:
    """The cells of a run, put together as they can be compared."""
    found: list[Setup] = []
    for cells in _grouped(run.cells, _PLACE_KEYS).values():
        varied = {key for same in _by_name(cells) for key in _varied(same)}
        conditions = sorted(varied.difference(_LOSS_KEYS))
        for part in _grouped(cells, conditions).values():
            found.append(_setup(run, _told_apart(part, sorted(varied.intersection(_LOSS_KEYS))), conditions))
    titles = [setup.title for setup in found]
    named = [setup if titles.count(setup.title) == 1 else _with_settings(setup) for setup in found]
    return sorted(named, key=lambda setup: (setup.task, setup.model, setup.title))


def scores(setup: Setup) -> list[Score]:
    """Every measure of every loss on every split. P-values are corrected over the losses and splits of a measure.

    A comparison in which no example of any seed differs could not have shown anything, and is not counted (Tarone 1990):
    out of range, where all answers are wrong, takes nothing from the losses' chances in range.
    """
    found: list[Score] = []
    for name in dict.fromkeys(shown.name for split in setup.splits for shown in setup.measures(split)):
        shown = measure(name)
        rows = [_score(setup, label, split, shown) for split in _having(setup, name) for label in setup.labels]
        made = {i: row.comparison for i, row in enumerate(rows) if row.comparison is not None}
        alike = {i: replace(one, corrected_p=1.0) for i, one in made.items() if rows[i].alike}
        family = corrected({i: one for i, one in made.items() if i not in alike})
        told = family | alike
        found += [replace(row, comparison=told.get(i), family=max(1, len(family))) for i, row in enumerate(rows)]
    return found


def costs(setup: Setup) -> list[Cost]:
    """What each loss costs."""
    base = setup.cells[setup.baseline] if setup.baseline is not None else {}

    def middle(label: str, name: str) -> float | None:
        values = [cell.cost[name] for cell in setup.cells[label].values() if name in cell.cost]
        return median(values) if values else None

    def ratios(label: str, name: str) -> list[float]:
        pairs = [(cell.cost.get(name), base[seed].cost.get(name)) for seed, cell in setup.cells[label].items() if seed in base]
        return [mine / theirs for mine, theirs in pairs if mine is not None and theirs]

    found = []
    for label in setup.labels:
        time, memory = ratios(label, "ms_per_step"), ratios(label, "peak_mib")
        found.append(
            Cost(
                label=label,
                seeds=len(setup.cells[label]),
                ms_per_step=middle(label, "ms_per_step"),
                peak_mib=middle(label, "peak_mib"),
                tokens_per_second=middle(label, "tokens_per_second"),
                train_seconds=middle(label, "train_seconds"),
                time_ratio=median(time) if time else None,
                time_ratio_low=min(time, default=None),
                time_ratio_high=max(time, default=None),
                memory_ratio=median(memory) if memory else None,
            )
        )
    return found


def interval(shown: Measure, values: Floats, resamples: int = 999) -> Interval:
    """The summary of a measure ``[S, E]``, its interval cut where no value can be; of a single example, without an interval."""
    if values.shape[1] == 1:
        return Interval(float(np.mean(values)), -np.inf, np.inf, LEVEL, "examples")
    bounds = shown.bounds(values)
    if not shown.median:
        return mean_interval(values, LEVEL, bounds=bounds, resamples=resamples)
    found = median_interval(values, LEVEL, resamples=resamples)
    return replace(found, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))


def _score(setup: Setup, label: str, split: str, shown: Measure) -> Score:
    mine = setup.scores(label, split, shown.name)
    comparison, alike = None, False
    if label in setup.rivals():
        assert setup.baseline is not None
        common = sorted(setup.cells[label].keys() & setup.cells[setup.baseline].keys())
        if common and mine.shape[1] > 1:
            ours, theirs = (setup.scores(name, split, shown.name, common) for name in (label, setup.baseline))
            alike = np.array_equal(ours, theirs)
            if shown.median or np.isfinite([ours, theirs]).all():
                bounds = shown.bounds(np.stack([ours, theirs]))
                comparison = compare(ours, theirs, "sign" if shown.median else "mean", LEVEL, bounds=bounds)
    return Score(label, split, shown, mine.shape[0], mine.shape[1], interval(shown, mine), comparison, alike, 0)


def _having(setup: Setup, name: str) -> list[str]:
    return [split for split in setup.splits if name in setup.first.splits[split].measures]


def _setup(run: Run, cells: Mapping[str, list[Cell]], conditions: Sequence[str]) -> Setup:
    first = next(iter(cells.values()))[0]
    model, task = str(first.config.get("model")), str(first.config.get("task"))
    title = f"{task} ({', '.join([model, *(f'{key}={_text(first.config.get(key))}' for key in conditions)])})"
    baseline = run.baseline if run.baseline in cells else None
    order = sorted(cells, key=lambda label: (label != baseline, _rank(cells[label]), label))
    found: dict[str, dict[int, Cell]] = {}
    for label in order:
        found[label] = {}
        for cell in sorted(cells[label], key=lambda cell: cell.seed):
            if (twin := found[label].get(cell.seed)) is not None:
                raise ValueError(
                    f"{cell.folder} and {twin.folder} are the same run, {label!r} with seed {cell.seed}: delete one of them."
                )
            _check_same_examples(first, cell)
            found[label][cell.seed] = cell
    return Setup(model, task, title, baseline, found)


def _rank(cells: Sequence[Cell]) -> float:
    """By which losses stand in tables and figures: the best first."""
    shown = measure(cells[0].headline)
    split = next(iter(sorted(cells[0].splits, key=lambda split: split != IN_RANGE)))
    summary = np.median if shown.median else np.mean
    value = float(np.mean([summary(cell.splits[split].measures[shown.name]) for cell in cells if split in cell.splits]))
    return value if shown.higher_is_better is False else -value


def _with_settings(setup: Setup) -> Setup:
    config = setup.first.config
    notes = [_text(config[key]) for key in ("task_settings", "data") if config.get(key)]
    return replace(setup, title=f"{setup.title}, {', '.join(notes) or 'default settings'}")


def _check_same_examples(first: Cell, cell: Cell) -> None:
    problem = next(_differences(first, cell), None)
    if problem is not None:
        raise ValueError(
            f"{cell.folder} and {first.folder} cannot be compared ({problem}): expected the same examples in the same order and "
            "the same measures. Delete the older one and run it again."
        )


def _differences(first: Cell, cell: Cell) -> Iterator[str]:
    if cell.headline != first.headline:
        yield f"headlines {cell.headline!r} and {first.headline!r}"
    if cell.splits.keys() != first.splits.keys():
        yield f"splits {', '.join(cell.splits)} and {', '.join(first.splits)}"
        return
    for split, theirs in first.splits.items():
        mine = cell.splits[split]
        if (mine.index, mine.prompts, mine.golds) != (theirs.index, theirs.prompts, theirs.golds):
            yield f"other examples of split {split!r}"
        if mine.measures.keys() != theirs.measures.keys():
            yield f"other measures of split {split!r}"


def _grouped(cells: Iterable[Cell], keys: Sequence[str]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(json.dumps([cell.config.get(key) for key in keys], sort_keys=True), []).append(cell)
    return groups


def _by_name(cells: Iterable[Cell]) -> list[list[Cell]]:
    named: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        named.setdefault((cell.label, cell.seed), []).append(cell)
    return list(named.values())


def _varied(cells: Sequence[Cell]) -> list[str]:
    keys = dict.fromkeys(key for cell in cells for key in cell.config)
    return [key for key in keys if len({_text(cell.config.get(key)) for cell in cells}) > 1]


def _told_apart(cells: Iterable[Cell], names: Sequence[str]) -> dict[str, list[Cell]]:
    """By label; where several losses have the same one, by what they differ in too."""
    found: dict[str, list[Cell]] = {}
    for same in _grouped(cells, ["label", "loss"]).values():
        told = [name for name in names if len({_text(cell.config.get(name)) for cell in same}) > 1]
        for cell in same:
            found.setdefault(" ".join([cell.label, *(f"{name}={_text(cell.config.get(name))}" for name in told)]), []).append(
                cell
            )
    return found


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={_text(item)}" for key, item in sorted(value.items())) or "none"
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)
