"""The answer in a sentence: which loss is better than the baseline beyond noise, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from numerate.lab.report.analysis import LEAST_SEEDS, LEVEL, SPLIT_NAMES, Cost, Score, Setup
from numerate.lab.report.wording import counted, listed, p_text, sentence, times
from numerate.lab.stats import seeds_needed

Verdict = Literal["better", "worse", "noise", "untested"]

_MANY_SEEDS = 100


@dataclass(frozen=True)
class Answer:
    """What to tell a colleague about one setup."""

    verdict: Verdict
    lead: str
    more: tuple[str, ...]
    winners: tuple[str, ...]  # losses that are better on any split


def answer(setup: Setup, scores: Sequence[Score], costs: Sequence[Cost], where: str) -> Answer:
    """The answer for one setup, from the scores of its headline."""
    compared = [score for score in scores if score.comparison is not None]
    seeds = sorted({score.comparison.seeds for score in compared if score.comparison is not None})
    if not seeds or seeds[-1] < LEAST_SEEDS or setup.headline.higher_is_better is None:
        few = seeds and seeds[-1] < LEAST_SEEDS
        lead = _nothing_compared(setup, where) if not seeds else _few_seeds(seeds[-1], where) if few else _no_direction(setup)
        return Answer("untested", lead, (_figures(setup, scores),), ())
    better, worse = ([score for score in compared if score.better is way] for way in (True, False))
    base = setup.baseline
    said: list[str] = []
    for split in setup.splits:
        won = sorted((score for score in better if score.split == split), key=_size, reverse=True)
        if won:
            place = _place(setup, split) if said else f"on {where}{_place(setup, split, ', ')}"
            said.append(f"{won[0].label} is better than {base} {place}: {_by_how_much(won[0], scores, setup, costs)}.")
        if won[1:]:
            said.append(f"Better too{_place(setup, split, ' ')}: {_each(won[1:])}.")
    if not better:
        with_seeds = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        examples = listed(sorted({f"{score.examples:,}" for score in compared}))
        differs = "is better than" if worse else "differs from"
        said = [f"No loss {differs} {base} beyond noise on {where}, with {with_seeds} and {examples} test examples."]
    elif quiet := [split for split in setup.splits if all(score.split != split for score in better)]:
        said.append(f"No loss is better beyond noise {listed([_place(setup, split) for split in quiet])}.")
    if worse:
        said.append(f"Worse than {base}: {_each(worse, setup)}.")
    if not better:
        said.append(_floor_or_ceiling(setup, scores) or _most_promising(setup, compared))
    winners = tuple(dict.fromkeys(score.label for score in better))
    return Answer("better" if better else "worse" if worse else "noise", said[0], tuple(said[1:]), winners)


def how_far_off(setup: Setup, scores: Sequence[Score]) -> str:
    """The second question, of tasks whose first is another one: whose answers are nearer to the truth, beyond noise?

    By the first error among the measures; nothing is said where no loss differs.
    """
    errors = [score for score in scores if score.measure.median and score.measure.higher_is_better is False]
    if not errors or setup.headline.median:
        return ""
    mine = [score for score in errors if score.measure == errors[0].measure]
    said = [
        f"{words} {setup.baseline}: {_each(chosen, setup)}"
        for way, words in ((True, "nearer to the truth than"), (False, "farther from it than"))
        if (chosen := [score for score in mine if score.better is way])
    ]
    return f"By {mine[0].measure.plain}, {'; '.join(said)}." if said else ""


def overall(setups: Sequence[Setup], answers: Sequence[Answer], baseline: str) -> str:
    """One sentence for several setups."""
    untested = sum(found.verdict == "untested" for found in answers)
    if untested == len(answers):
        return f"No loss could be tested against {baseline} yet."
    one_each = len({setup.task for setup in setups}) == len(setups)
    of = f"{len(setups)} {'tasks' if one_each else 'combinations of task and model'}"
    on = "on" if one_each else "in"
    won = [
        f"{listed(found.winners)} on {setup.task if one_each else setup.title}"
        for setup, found in zip(setups, answers, strict=True)
        if found.winners
    ]
    rest = f" {untested} could not be tested." if untested else ""
    if not won:
        return f"No loss is better than {baseline} beyond noise {on} any of {of}.{rest}"
    return f"{sentence(on)} {len(won)} of {of} a loss is better than {baseline} beyond noise: {listed(won)}.{rest}"


def _place(setup: Setup, split: str, before: str = "") -> str:
    """``in range``; nothing if there is but one split."""
    return before + SPLIT_NAMES.get(split, f"on {split}") if len(setup.splits) > 1 else ""


def _by_how_much(score: Score, scores: Sequence[Score], setup: Setup, costs: Sequence[Cost]) -> str:
    base = next(other for other in scores if (other.split, other.label) == (score.split, setup.baseline))
    value = score.measure.value
    figures = f"{score.measure.title} {value(score.interval.estimate)} against {value(base.interval.estimate)}"
    cost = next(cost for cost in costs if cost.label == score.label)
    time = "" if cost.time_ratio is None else f", at {times(cost.time_ratio)} the time per step"
    return f"{figures}, {_gain(score)} ({_noise(score)}){time}"


def _noise(score: Score) -> str:
    comparison, gain = score.comparison, score.gain
    assert comparison is not None and gain is not None
    p = p_text(comparison.p_value if comparison.corrected_p is None else comparison.corrected_p)
    p = f"p {p}" if p.startswith("<") else f"p = {p}"
    ends = f"{100 * LEVEL:g} % interval {score.gain_measure.signed_range(gain.low, gain.high)}"
    return f"{ends}; {p} after Holm, {counted(comparison.seeds, 'seed')}"


def _gain(score: Score) -> str:
    assert score.gain is not None
    if not score.by_sign:
        return score.gain_measure.difference(score.gain.estimate)
    nearer, farther = ("nearer", "farther") if score.gain.estimate >= 0 else ("farther", "nearer")
    return f"{nearer} more often than {farther} by {score.gain_measure.number(abs(score.gain.estimate))} points"


def _each(scores: Sequence[Score], setup: Setup | None = None) -> str:
    """Losses and by how much; with a setup, on which split."""
    by_label: dict[str, list[str]] = {}
    for score in scores:
        place = _place(setup, score.split, " ") if setup is not None else ""
        by_label.setdefault(score.label, []).append(f"{_gain(score)}{place}")
    return listed([f"{label} ({', '.join(gains)})" for label, gains in by_label.items()])


def _size(score: Score) -> float:
    return abs(score.gain.estimate) if score.gain is not None else 0.0


def _floor_or_ceiling(setup: Setup, scores: Sequence[Score]) -> str:
    """Where no loss could have shown anything."""
    if not (setup.headline.percent and setup.headline.higher_is_better):
        return ""
    if all(score.interval.estimate == 0 for score in scores):
        return f"Nothing to tell apart: {setup.headline.title} are at 0 % throughout. Train longer, or make the task easier."
    if all(score.interval.estimate == 1 for score in scores):
        return f"Nothing to tell apart: {setup.headline.title} are at 100 % throughout. Train less, or make the task harder."
    return ""


def _most_promising(setup: Setup, compared: Sequence[Score]) -> str:
    """The largest gain that was not beyond noise, and how many seeds would tell."""
    ahead = [score for score in compared if score.better is None and score.ahead]
    if not ahead:
        return f"No loss is ahead of {setup.baseline}, not even within noise."
    most = max(ahead, key=_size)
    return (
        f"Most ahead is {most.label}{_place(setup, most.split, ', ')}: {_gain(most)} ({_noise(most)}). {_needed(most)}".rstrip()
    )


def _needed(score: Score) -> str:
    comparison = score.comparison
    assert comparison is not None
    if comparison.spread is None:
        return ""
    level = 1 - (1 - LEVEL) / score.family  # what the smallest p-value of the family has to pass
    try:
        needed = seeds_needed(comparison.difference.estimate, comparison.spread, level=level)
    except ValueError:  # more than anybody has
        needed = _MANY_SEEDS + 1
    if needed <= comparison.seeds:
        return "More test examples would be needed to tell a difference of this size from noise."
    many = f"more than {_MANY_SEEDS}" if needed > _MANY_SEEDS else f"about {needed}"
    return f"To tell a difference of this size from noise, {many} seeds would be needed."


def _few_seeds(seeds: int, where: str) -> str:
    if seeds == 1:
        return f"With one seed, no loss can be told from luck on {where}: another seed gives other figures. Run five or more."
    return f"Two seeds cannot tell a loss from luck on {where}: how far seeds differ is not known from two. Run five or more."


def _no_direction(setup: Setup) -> str:
    return f"The figures are below, but no verdict: it is not known whether more of {setup.headline.title} is better."


def _nothing_compared(setup: Setup, where: str) -> str:
    if setup.baseline is None:
        return f"The baseline has no finished run on {where}: there is nothing to compare with."
    if len(setup.labels) == 1:
        return f"Only {setup.baseline} was run on {where}: there is no other loss to compare with it."
    return f"No loss has a seed in common with {setup.baseline} on {where}, and more than one example: nothing can be compared."


def _figures(setup: Setup, scores: Sequence[Score]) -> str:
    here = [score for score in scores if score.split == setup.splits[0]]
    figures = listed([f"{score.label} {score.measure.value(score.interval.estimate)}" for score in here])
    return f"What these very models score ({here[0].measure.title}{_place(setup, setup.splits[0], ', ')}): {figures}."
