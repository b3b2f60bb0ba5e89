"""The three figures on the first screen of a report: the score before and after, how sure it is, and the best baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numerate.lab.baselines.kept import TITLES
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.error_sources import rule_and_members
from numerate.lab.report.analysis import LEVEL, RunCost, Score, against
from numerate.lab.report.choice import ERROR, ShownPair, better, key
from numerate.lab.report.levels import Level
from numerate.lab.stats import LEAST_SEEDS
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.measures import Measure
from numerate.lab.wording.text import counted, p_equation, percent, sentence, times

BEST_BASELINE = "Against the best baseline"
CONSTANT = TITLES["constant"]
_OF_BASELINES = {  # metric and whether it is summarised by its median: figure of a baseline
    (ERROR, False): "mae",
    (ERROR, True): "median_absolute_error",
    ("relative_error", True): "median_relative_error",
}


@dataclass(frozen=True)
class KeyFigure:
    """A figure to remember: its name, the figure itself, what it refers to, and whether it is good news."""

    title: str
    text: str
    note: str
    better: bool | None = None


def key_figures(
    choice: ShownPair, costs: Sequence[RunCost], rows: Sequence[Level], baselines: Mapping[str, float], *, tested: bool
) -> tuple[KeyFigure, ...]:
    """Return the figures of a setup. ``rows`` are the levels of a table; not ``tested``: nothing is called significant."""
    third = _best_baseline(choice, rows, baselines, tested=tested) or _cost(choice, costs)
    return tuple(figure for figure in (_scores(choice), _certainty(choice, tested=tested), third) if figure is not None)


def of_baselines(measure: Measure, rows: Sequence[Level]) -> dict[str, float]:
    """Return the metric of each baseline of a table; one that is no better than the constant is left out."""
    name = _OF_BASELINES.get((measure.name, measure.median), "")
    figures = {row.name: row.figures.get(name) for row in rows if not row.is_model}
    found = {title: figure.typical for title, figure in figures.items() if figure and math.isfinite(figure.typical)}
    return {title: value for title, value in found.items() if title == CONSTANT or value < found.get(CONSTANT, math.inf)}


def _scores(choice: ShownPair) -> KeyFigure:
    """The score before and after."""
    title, value = sentence(choice.measure.summary), choice.measure.value
    shown = [score for score in (choice.before, choice.after) if score is not None]
    ends = [value(score.interval.estimate) for score in shown]
    if len(shown) == 1:
        return KeyFigure(title, ends[0], pair(*key(shown[0])))
    if choice.alike:
        return KeyFigure(title, ends[0], "every answer of every loss is scored the same")
    unit = f" {ends[1].rpartition(' ')[2]}"
    note = f"{pair(*key(shown[0]))} → {pair(*key(shown[1]))}"
    return KeyFigure(title, f"{ends[0].removesuffix(unit)} → {ends[1]}", note, better(shown[1]))


def _certainty(choice: ShownPair, *, tested: bool) -> KeyFigure | None:
    """How sure the difference is."""
    after, title = choice.after, "How sure"
    if after is None or choice.before is None or choice.alike:
        return None
    found, gain = after.comparison, after.gain
    size = f"{counted(after.seeds if found is None else found.seeds, 'seed')}, {after.examples:,} test rows"
    if found is None or gain is None:
        return KeyFigure(title, "not tested", size)
    if not tested or choice.measure.higher_is_better is None:
        return KeyFigure(title, "no verdict", size)
    what = f"{'closer minus farther' if after.by_sign else 'difference'} {after.gain_measure.difference(gain.estimate)}"
    holm = f"; Holm's correction for {after.family} pairs" if after.family > 1 else ""
    note = f"{what} ({100 * LEVEL:g} % interval {after.gain_range()}); {size}{holm}"
    return KeyFigure(title, p_equation(found.final_p), note, better(after))


def _best_baseline(choice: ShownPair, rows: Sequence[Level], baselines: Mapping[str, float], *, tested: bool) -> KeyFigure | None:
    """The best of the baselines of a table and of the heads; of other tasks, the best other loss."""
    after, setup = choice.after or choice.before, choice.setup
    if after is None or math.isinf(after.interval.estimate):
        return None
    sign = -1 if choice.measure.higher_is_better else 1
    most = rule_and_members(after.decision)[1]  # not a larger pool, which costs more
    rated = [score for score in choice.pairs if score.label not in (after.label, setup.baseline)]
    rated = [score for score in rated if math.isfinite(score.interval.estimate) and rule_and_members(score.decision)[1] <= most]
    heads = [score for score in rated if setup.predicts(score.label)]
    best = min(heads if heads or baselines else rated, key=lambda score: sign * score.interval.estimate, default=None)
    name = min(baselines, key=lambda name: baselines[name], default="")
    if name and (best is None or baselines[name] < best.interval.estimate):
        row = next((row for row in rows if (row.name, row.decision) == key(after)), None)
        gap = None if row is None else next((gap for kind, gap in row.gaps.items() if TITLES[kind] == name), None)
        said = f"the {name}" if name == CONSTANT else name
        if gap is None or not choice.filled or not tested:
            return _compared(BEST_BASELINE, after, said, baselines[name])
        way = {"better": True, "worse": False, None: None}[gap.verdict]
        return _compared(BEST_BASELINE, after, said, baselines[name], way, gap.p)
    if best is None:
        return None
    title = BEST_BASELINE if heads else "Against the best other loss"
    said = best.label if best.decision == GREEDY else pair(*key(best))
    found = against(setup, after, *key(best), filled=choice.filled)
    if found.comparison is None or found.comparison.seeds < LEAST_SEEDS or not tested:
        return _compared(title, after, said, best.interval.estimate)
    return _compared(title, after, said, best.interval.estimate, better(found), found.comparison.final_p)


def _compared(title: str, score: Score, name: str, other: float, way: bool | None = None, p: float | None = None) -> KeyFigure:
    """``8.2 % lower error``, or a difference of points, and the baseline's own figure."""
    mine, measure = score.interval.estimate, score.measure
    tested = "" if p is None else f"; {'not significant' if way is None else 'significant'}, {p_equation(p)}"
    note = f"{name} {measure.value(other)}{tested}"
    if measure.higher_is_better is not False:
        return KeyFigure(title, measure.difference(mine - other), note, way)
    change = mine / other - 1 if other else math.inf
    if math.isinf(change):
        return KeyFigure(title, measure.value(mine), note, way)
    return KeyFigure(
        title, f"{size_of(change)} {'higher' if change > 0 else 'lower'} error" if change else "equal error", note, way
    )


def _cost(choice: ShownPair, costs: Sequence[RunCost]) -> KeyFigure | None:
    if choice.after is None or choice.before is None or choice.after.label == choice.before.label:
        return None
    ratio = next(cost.time_ratio for cost in costs if cost.label == choice.after.label)
    return None if ratio is None else KeyFigure("Time per step", times(ratio), f"the time of {choice.before.label}")


def size_of(change: float) -> str:
    """Format the size of a change without its sign: ``21 %``, ``3.4 %``."""
    return f"{100 * abs(change):.0f} %" if 0.0995 <= abs(change) < 10 else percent(abs(change)).removeprefix("+")
