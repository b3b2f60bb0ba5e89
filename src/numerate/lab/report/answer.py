"""State the result in sentences: which loss is significantly better than the baseline, by how much, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.evaluation.derailing import DERAILED
from numerate.lab.evaluation.missing import NO_NUMBER, ZERO_LABELS
from numerate.lab.models.names import BUILT
from numerate.lab.report.analysis import LEVEL, RunCost, Score, Setup, estimate, few_decide, finite
from numerate.lab.report.decisions import Decisions, fitting_rule
from numerate.lab.stats import LEAST_SEEDS, Comparison, seeds_needed
from numerate.lab.wording.decisions import change_text, decision_title, pair
from numerate.lab.wording.measures import mean_measure
from numerate.lab.wording.text import MOST_NAMED, SPLIT_NAMES, counted, either, listed, p_equation, sentence, times

Verdict = Literal["better", "worse", "noise", "untested"]

_MANY_SEEDS = 100


@dataclass(frozen=True)
class Answer:
    """Result of one setup, as text."""

    verdict: Verdict
    lead: str
    more: tuple[str, ...]
    winners: tuple[str, ...]  # losses that are significantly better on any split

    @property
    def sentences(self) -> tuple[str, ...]:
        """All of it."""
        return self.lead, *self.more


def answer(setup: Setup, scores: Sequence[Score], costs: Sequence[RunCost], where: str) -> Answer:
    """Return the answer for one setup, from the scores of its headline metric, by split and decision."""
    compared = [score for score in scores if score.comparison is not None]
    seeds = sorted({score.comparison.seeds for score in compared if score.comparison is not None})
    if lead := _untested(setup, seeds[-1] if seeds else 0, where):
        return Answer("untested", lead, (_scores(setup, scores),), ())
    better, worse = ([score for score in compared if score.better is way] for way in (True, False))
    near = next(score.split for score in compared)  # in range; gains elsewhere alone do not lead
    led = not any(score.split == near for score in better)
    sentences: list[str] = []
    if led:
        there = [score for score in compared if score.split == near] if better else compared
        differs = "is significantly better than" if any(score in worse for score in there) else "differs significantly from"
        place = f"{where}{in_split(setup, near, ', ') if better else ''}"
        with_seeds = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]} seeds"
        examples = listed(sorted({f"{score.examples:,}" for score in there}))
        sentences.append(
            f"No {_trained(setup)} {differs} {setup.baseline} on {place}, with {with_seeds} and {examples} test examples."
        )
    by_place: dict[str, list[Score]] = {}
    for score in scores:
        by_place.setdefault(_where(setup, score), []).append(score)
    without = []
    for name, mine in by_place.items():
        won = sorted((score for score in better if score in mine), key=lambda score: score.size, reverse=True)
        if won:
            place = f" {name}" if name and sentences else "" if sentences else f" on {where}{f', {name}' if name else ''}"
            gain = _by_how_much(won[0], mine, setup, costs)
            sentences.append(f"{won[0].label} is significantly better than {setup.baseline}{place}: {gain}.")
        elif better and not (led and mine[0].split == near):
            without.append(name)
        if won[1:]:
            sentences.append(f"Also significantly better{f' {name}' if name else ''}: {_each(won[1:])}.")
    if without:
        sentences.append(f"No {_trained(setup)} is significantly better {listed(without)}.")
    if worse:
        sentences.append(f"Significantly worse than {setup.baseline}: {_each(worse, setup)}.")
    if not better:
        sentences.append(_floor_or_ceiling(setup, scores) or _largest_gain(setup, compared))
    winners = tuple(dict.fromkeys(score.label for score in better))
    harmed = led and any(score.split == near for score in worse)
    verdict: Verdict = "worse" if harmed else "better" if better else "worse" if worse else "noise"
    return Answer(verdict, sentences[0], tuple(sentences[1:]), winners)


def error_sizes(setup: Setup, scores: Sequence[Score]) -> str:
    """Return a sentence on which losses have significantly smaller or larger errors, by the first error among the metrics.

    Empty if no loss differs, or if the headline is an error itself.
    """
    errors = [score for score in scores if score.measure.median and score.measure.higher_is_better is False]
    if not errors or setup.headline.median:
        return ""
    errors = [score for score in errors if score.measure == errors[0].measure]
    parts = [
        f"significantly {words} with {_each(chosen, setup)}"
        for way, words in ((True, "smaller"), (False, "larger"))
        if (chosen := [score for score in errors if score.better is way])
    ]
    share = f"share of examples closer to the gold answer than {setup.baseline} minus share farther"
    return f"{sentence(errors[0].measure.plain)} ({share}): {'; '.join(parts)}." if parts else ""


def derailed_sentence(setup: Setup, scores: Sequence[Score]) -> str:
    """Return the share of derailed answers of each loss, on the split with the largest; empty if there are none."""
    found = [score for score in scores if score.measure.name == DERAILED and score.interval.estimate > 0]
    if not found:
        return ""
    split = max(found, key=lambda score: score.interval.estimate).split
    mine = [score for score in scores if score.measure.name == DERAILED and score.split == split]
    if len(mine) > MOST_NAMED:
        mine.sort(key=lambda score: -score.interval.estimate)
    shares = listed([f"{score.label} {score.measure.value(score.interval.estimate)}" for score in mine], MOST_NAMED)
    return f"Some answers derailed, with more digits than any training label{in_split(setup, split, ', ')}: {shares}."


def exploded_sentence(setup: Setup) -> str:
    """Return the losses and decisions of which a few answers dominate the mean absolute error of a run, in the first split.

    Empty if there are none, or if losses are not judged by an error without an upper limit.
    """
    split, name = setup.splits[0], "absolute_error"
    if not setup.headline.median or any(name not in cell.splits[split].measures for cell in setup.runs()):
        return ""
    found = []
    for label in setup.labels:
        for decision in setup.decisions(label):
            errors = finite(setup.values(label, split, name, decision, filled=True))
            if few_decide(errors):
                summary = mean_measure(name)
                means = [summary.value(mean) for mean in (estimate(summary, errors), float(errors.mean(1).max()))]
                told = f"{means[0]} in a typical run, {means[1]} in the worst" if len(errors) > 1 else means[0]
                found.append(f"{pair(label, decision)} ({told})")
    if not found:
        return ""
    return f"Warning: a few very large errors dominate the mean absolute error of {listed(found, MOST_NAMED)}."


def column_of(setup: Setup) -> str | None:
    """Return the column that a table's models predict; None of other data."""
    config = setup.first.config
    settings, data = config.get("task_settings"), config.get("data")
    column = settings.get("target") if isinstance(settings, dict) else None
    return column if isinstance(column, str) and isinstance(data, str) and data else None


def subject(setup: Setup) -> str:
    """Return ``price in diamonds.csv (tiny, 78,768 parameters, not pre-trained)``; of other data than a table, the task."""
    config, what, named = setup.first.config, setup.task, [setup.model]
    data, column = config.get("data"), column_of(setup)
    if isinstance(data, str) and data:
        file = PurePath(data.replace("\\", "/")).name or data
        what, named = (f"{column} in {file}", named) if column is not None else (what, [file, *named])
    parameters = setup.first.cost.get("parameters")
    if parameters is not None:
        named.append(f"{parameters:,.0f} parameters")
    if config.get("model"):
        named.append("not pre-trained" if setup.model in BUILT else "pre-trained")
    return f"{what} ({', '.join(named)})"


def decision_sentence(setup: Setup, found: Decisions) -> str:
    """Return what the fitting rule changes on the first split; empty if nothing was compared.

    Heads are left out: their answers are medians already.
    """
    summary, split = found.measures[0], found.splits()[0]
    rule = fitting_rule(found.decisions, summary.name)
    pairs = []
    written = [label for label in found.labels(split, summary) if not setup.predicts(label)]
    for label in written:
        greedy, score = (found.cell(label, split, summary, each or "") for each in (GREEDY, rule))
        if score is None or greedy is None or score.examples < 2:
            continue
        tested = score.comparison
        change = change_text(summary, score.change, None if tested is None else tested.difference.estimate)
        before, after = (summary.value(each.interval.estimate) for each in (greedy, score))
        if {before, after} != {summary.infinite}:
            p = f", {p_equation(tested.final_p)}" if tested is not None and tested.seeds >= LEAST_SEEDS else ""
            pairs.append(f"{label} from {before} to {after}" + (f" ({change}{p})" if change else ""))
    if not pairs:
        return ""
    place = f", {SPLIT_NAMES.get(split, split)}" if len(found.splits()) > 1 else ""
    return f"Deciding by {rule} instead of greedily changes the {summary.summary}{place}: {listed(pairs, MOST_NAMED)}."


def identical(setup: Setup) -> str:
    """Say which losses gave the same answer to every example, with every seed and every decision; empty if none did.

    Equal rows in a table look like a mistake otherwise.
    """

    def answers(label: str, seed: int) -> list[object]:  # the answer or, without one, the output; and the scores of decisions
        found: list[object] = []
        for split in setup.splits:
            part = setup.cells[label][seed].splits[split]
            found += [output if answer is None else answer for answer, output in zip(part.answers, part.outputs, strict=True)]
            if part.decided is not None:
                found += [part.medians, part.intervals]
                found += [tuple(scores[name]) for scores in part.decided.measures.values() for name in sorted(scores)]
        return found

    groups: dict[tuple[object, ...], list[str]] = {}
    for label, cells in setup.cells.items():
        groups.setdefault(tuple((seed, *answers(label, seed)) for seed in sorted(cells)), []).append(label)
    examples = counted(sum(len(setup.examples(split).index) for split in setup.splits), "example")
    same = [listed(labels) for labels in groups.values() if len(labels) > 1]
    return " ".join(
        f"The results of {names} are identical: the same answers to all {examples} with every seed." for names in same
    )


def apart(setups: Sequence[Setup]) -> tuple[str, list[str]]:
    """Return what several setups are, tasks, models or combinations of both, and the name of each."""
    tasks, models = ([getattr(setup, name) for setup in setups] for name in ("task", "model"))
    if len(set(tasks)) == len(setups):
        return "tasks", tasks
    if len(set(models)) == len(setups) and len(set(tasks)) == 1:
        return "models", models
    return "combinations of task and model", [setup.title for setup in setups]


def in_split(setup: Setup, split: str, before: str = "") -> str:
    """Return ``in range``; empty if there is only one split."""
    return before + SPLIT_NAMES.get(split, f"on {split}") if len(setup.splits) > 1 else ""


def _where(setup: Setup, score: Score, before: str = "") -> str:
    """``in range with greedy answers``; empty if there is only one split and one decision."""
    decided = f"with {decision_title(score.decision)}" if len(setup.decisions()) > 1 else ""
    text = " ".join(filter(None, (in_split(setup, score.split), decided)))
    return before + text if text else ""


def _by_how_much(score: Score, scores: Sequence[Score], setup: Setup, costs: Sequence[RunCost]) -> str:
    base = next(other for other in scores if (other.split, other.label) == (score.split, setup.baseline))
    value = score.measure.value
    cost = next(cost for cost in costs if cost.label == score.label)
    time = "" if cost.time_ratio is None else f", at {times(cost.time_ratio)} the time per step"
    values = f"{value(score.interval.estimate)} vs {value(base.interval.estimate)}"
    return f"{score.measure.title} {values}, {tested_gain(score)}{time}"


def tested_gain(score: Score) -> str:
    """Return the difference with interval, p-value and number of seeds."""
    comparison, gain = score.comparison, score.gain
    assert comparison is not None and gain is not None
    what = "share of examples closer minus share farther " if score.by_sign else ""
    tested = f"{p_equation(comparison.final_p)} after Holm's correction, {counted(comparison.seeds, 'seed')}"
    difference = score.gain_measure.difference(gain.estimate)
    return f"{what}{difference} ({100 * LEVEL:g} % interval {score.gain_range()}; {tested})"


def _each(scores: Sequence[Score], setup: Setup | None = None) -> str:
    """Losses with their differences; with a setup, also the split."""
    by_label: dict[str, list[str]] = {}
    for score in scores:
        assert score.gain is not None
        place = _where(setup, score, " ") if setup is not None else ""
        by_label.setdefault(score.label, []).append(f"{score.gain_measure.difference(score.gain.estimate)}{place}")
    return listed([f"{label} ({', '.join(gains)})" for label, gains in by_label.items()])


def _floor_or_ceiling(setup: Setup, scores: Sequence[Score]) -> str:
    """A note if all scores are 0 or 1, so that no loss could differ."""
    if setup.headline.percent and setup.headline.higher_is_better:
        for value, remedy in ((0, "Train longer, or use an easier task."), (1, "Train less, or use a harder task.")):
            if all(score.interval.estimate == value for score in scores):
                return f"Nothing to compare: every loss scores {100 * value} % ({setup.headline.title}). {remedy}"
    return ""


def _trained(setup: Setup) -> str:
    """Return what the runs differ in: ``loss``, ``format`` or both."""
    return either([name for name in setup.dimensions() if name in ("loss", "format")] or ["loss"])


def _largest_gain(setup: Setup, compared: Sequence[Score]) -> str:
    """The largest gain that is not significant, and how many seeds would detect it."""
    ahead = [score for score in compared if score.better is None and score.ahead]
    if not ahead:
        return f"No {_trained(setup)} scores better than {setup.baseline}, not even by an insignificant amount."
    largest = max(ahead, key=lambda score: score.size)
    place = _where(setup, largest, ", ")
    return f"The largest gain is not significant: {largest.label}{place}, {tested_gain(largest)}. {_needed(largest)}".rstrip()


def _needed(score: Score) -> str:
    comparison = score.comparison
    assert comparison is not None
    if comparison.spread is None or comparison.example_error is None:
        return ""
    level = 1 - (1 - LEVEL) / score.family  # Holm's threshold for the smallest p-value of the family
    shared = {"example_error": comparison.example_error, "examples": comparison.examples}
    needed, with_endless_examples = (_seeds_needed(comparison, level, **own) for own in (shared, {}))
    what = "test examples" if with_endless_examples <= _MANY_SEEDS else f"than {_MANY_SEEDS} seeds"
    more = f"About {needed} seeds" if comparison.seeds < needed <= _MANY_SEEDS else f"More {what}"
    return f"{more} would be needed to detect a difference of this size."


def _seeds_needed(comparison: Comparison, level: float, **examples: Any) -> int:
    assert comparison.spread is not None
    try:
        return seeds_needed(comparison.difference.estimate, comparison.spread, level=level, **examples)
    except ValueError:  # too small for any number of seeds
        return _MANY_SEEDS + 1


def _untested(setup: Setup, seeds: int, where: str) -> str:
    """Why there is no verdict; empty if there is one."""
    if setup.baseline is None:
        return f"The baseline has no finished run on {where}: there is nothing to compare with."
    if len(setup.labels) == 1:
        return f"Only {setup.baseline} was run on {where}: there is no other loss to compare with it."
    if seeds == 0:
        return f"No loss shares a seed and at least two test examples with {setup.baseline} on {where}: nothing can be compared."
    if seeds < LEAST_SEEDS:
        few = "One seed is" if seeds == 1 else "Two seeds are"
        why = "another seed gives other scores" if seeds == 1 else "they do not show how much seeds vary"
        return f"{few} not enough to compare losses on {where}: {why}. Run five or more seeds."
    if not setup.judged:
        return f"There is no verdict on losses on {where}: no model is significantly better than a constant."
    return ""


def _scores(setup: Setup, scores: Sequence[Score]) -> str:
    """The score of each loss in the first split; apart from them, the losses whose median is that of missing answers."""
    first = [score for score in scores if (score.split, score.decision) == (scores[0].split, scores[0].decision)]
    said = {score.label: score.measure.value(score.interval.estimate) for score in first}
    infinite = [score for score in first if said[score.label] in (NO_NUMBER, ZERO_LABELS)]
    values = listed([f"{score.label} {said[score.label]}" for score in first if score not in infinite] or ["none"])
    text = f"Scores of these models ({scores[0].measure.title}{_where(setup, scores[0], ', ')}): {values}."
    if others := [score.label for score in infinite if not _silent(setup, score)]:
        text += f" That of {listed(others)} is infinite: where the gold number is 0, any error is."
    if missing := [score.label for score in infinite if score.label not in others]:
        seeds = " with some seed" if len(setup.seeds) > 1 else ""
        text += f" At least half of the outputs of {listed(missing)} held no number{seeds}."
    return text


def _silent(setup: Setup, score: Score) -> bool:
    """Whether an infinite median is that of missing answers: False if with every seed most outputs held a number."""
    parts = [cell.splits[score.split] for cell in setup.cells[score.label].values()]
    every = [part.by(score.decision) for part in parts]
    return not all("parsed" in own and own["parsed"].mean() > 0.5 for own in every)
