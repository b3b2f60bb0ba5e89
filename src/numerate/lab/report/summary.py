"""The first screen of a report: the answer in one short sentence, what it compares, and three figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.models.settings import PLAIN
from numerate.lab.report.analysis import RunCost, Score, Setup
from numerate.lab.report.answer import Verdict, column_of
from numerate.lab.report.choice import ShownPair, better, choose, key
from numerate.lab.report.key_figures import BEST_BASELINE, KeyFigure, key_figures, of_baselines, size_of
from numerate.lab.report.levels import Level, Levels, remedy
from numerate.lab.report.member_scores import MemberScores
from numerate.lab.report.recommended import RecommendationCheck
from numerate.lab.stats import LEAST_SEEDS
from numerate.lab.training.config import CROSS_ENTROPY
from numerate.lab.wording.decisions import decision_noun, pair
from numerate.lab.wording.measures import EXAMPLES_WON, Measure
from numerate.lab.wording.text import either, listed, p_equation, percent, rounded, safe_text, sentence

_NAME = 40  # characters of a name from data


@dataclass(frozen=True)
class Summary:
    """The first screen of a setup."""

    verdict: Verdict  # whether ``after`` is significantly better or worse than ``before``
    sentence: str  # the answer
    note: str  # which pair ``after`` is, and why
    figures: tuple[KeyFigure, ...]  # the score before and after, how sure the difference is, and the best baseline
    before: Score | None  # the baseline with greedy answers; None if it was not run
    after: Score | None  # the pair that is compared with it; None if there is no other
    pairs: Sequence[Score]  # all pairs, each compared with ``before``
    baselines: Mapping[str, float]  # the metric of each baseline that was fitted to the same rows

    @property
    def measure(self) -> Measure:
        """The metric."""
        return self.pairs[0].measure


def summarise(
    setup: Setup,
    costs: Sequence[RunCost],
    advice: RecommendationCheck | None,
    levels: Levels | None = None,
    members: MemberScores | None = None,
) -> Summary:
    """Return the first screen of a setup, from its runs, what is recommended, the baselines of a table, and pools."""
    choice, rows = choose(setup, advice), [] if levels is None else levels.of(setup.splits[0])
    verdict, text = _answer(choice, rows)
    pooled, cost = ("", "") if members is None else _pool(choice, members)
    baselines = of_baselines(choice.measure, rows)
    figures = key_figures(choice, costs, rows, baselines, tested=verdict != "untested")
    text, note = (" ".join(filter(None, part)) for part in ((text, pooled), (_note(choice, verdict), cost)))
    return Summary(verdict, text, note, figures, choice.before, choice.after, choice.pairs, baselines)


def _answer(choice: ShownPair, rows: Sequence[Level]) -> tuple[Verdict, str]:
    """Return the verdict and the sentence."""
    if without := _untested(choice, rows):
        return "untested", without
    setup, after = choice.setup, choice.after
    assert after is not None
    place, base = _place(setup), _noun(setup, str(setup.baseline))
    if choice.alike:
        return "noise", _alike(choice)
    way = better(after)
    if choice.silent(after):
        return "worse" if way is False else "noise", f"Most outputs of {pair(*key(after))} on {place} held no number."
    if way and choice.explodes:
        return "noise", f"{_subject(choice)} came closer on most rows of {place}, but a few of its errors are very large."
    if way:
        return "better", f"{_subject(choice)} {_changed(choice, better=True)}."
    if not choice.best_of_all:
        if way is False:
            return "worse", f"{_subject(choice)} {_changed(choice, better=False)}: keep {base}."
        by = percent(after.change) if after.change else ""
        return "noise", f"{_subject(choice)} made no significant difference on {place}{f' ({by})' if by else ''}."
    what = either(setup.dimensions())
    worse = [score for score in choice.others if better(score) is False]
    if not worse:
        return "noise", f"No {what} was significantly better than {base} on {place}."
    labels = dict.fromkeys(safe_text(score.label, _NAME) for score in worse)
    named = f"{next(iter(labels))} is" if len(labels) == 1 else f"{len(worse)} of {len(choice.others)} are"
    named = "all are" if len(worse) == len(choice.others) > 1 else named
    return "worse" if way is False else "noise", f"No {what} beat {base} on {place}; {named} significantly worse."


def _untested(choice: ShownPair, rows: Sequence[Level]) -> str:
    """Return why there is no verdict; empty if there is one."""
    setup, place = choice.setup, _place(choice.setup)
    base = _noun(setup, str(setup.baseline))
    if choice.before is None:
        return f"No verdict on {place}: the baseline has no finished run."
    if choice.after is None:
        return f"Only {base} was run on {place}: there is nothing to compare it with."
    if all(choice.silent(score) for score in choice.pairs):
        return f"Most outputs on {place} held no number: {remedy(setup)}."
    if not setup.judged:
        worse = all(row.below_constant for row in rows if row.is_model)
        return f"{'Every model is worse than' if worse else 'No model beat'} a constant on {place}: {remedy(setup)}."
    seeds = max((score.comparison.seeds for score in choice.others if score.comparison is not None), default=0)
    if not seeds:
        return f"No verdict on {place}: no loss shares a seed and two test examples with {base}."
    if seeds < LEAST_SEEDS:
        return f"{'One seed is' if seeds == 1 else 'Two seeds are'} too few for a verdict on {place}: run five or more."
    return ""


def _alike(choice: ShownPair) -> str:
    """Return what all pairs score, where none differs from another on any example."""
    assert choice.after is not None
    value, place = choice.after.interval.estimate, _place(choice.setup)
    if choice.measure.percent and choice.measure.higher_is_better and value in (0, 1):
        advice = "train longer, or use an easier task" if value == 0 else "train less, or use a harder task"
        return f"Every loss scored {100 * value:.0f} % on {place}: {advice}."
    return f"All answers on {place} are the same: there is nothing to compare."


def _subject(choice: ShownPair) -> str:
    """``Soft labels with the median``; of the baseline's own answers ``The median``."""
    assert choice.after is not None
    label, rule = key(choice.after)
    if label == choice.setup.baseline:
        return sentence(decision_noun(rule))
    noun = _noun(choice.setup, label)
    named = noun if noun == safe_text(label, _NAME) else sentence(noun)
    return named if rule == GREEDY else f"{named} with {decision_noun(rule)}"


def _changed(choice: ShownPair, *, better: bool) -> str:
    """``cut the error on price by 21 %``, ``raised exact answers on sums from 50.0 % to 87.5 %``."""
    before, after, measure, place = choice.before, choice.after, choice.measure, _place(choice.setup)
    assert before is not None
    assert after is not None
    if measure.higher_is_better:
        ends = " to ".join(measure.value(score.interval.estimate) for score in (before, after))
        return f"{'raised' if better else 'lowered'} {measure.plain} on {place} from {ends}"
    change = after.change
    if change is None or (change < 0) != better or abs(change) < 0.0005:  # closer on more examples, with an equal median
        won = EXAMPLES_WON.value(after.size).removesuffix(" %")
        far, near = ("closer", "farther") if better else ("farther", "closer")
        base = _noun(choice.setup, before.label)
        return f"{'beat' if better else 'lost to'} {base} on {place}: {far} on {won} points more rows than {near}"
    what = "error" if choice.filled else measure.title
    return f"{'cut' if better else 'raised'} the {what} on {place} by {size_of(change)}"


def _note(choice: ShownPair, verdict: Verdict) -> str:
    """Return which pair is shown, and why."""
    after, advice, count = choice.after, choice.advice, len(choice.others)
    if after is None or choice.before is None:
        return ""
    if not choice.best_of_all and advice is not None:
        which = f" (the best of {advice.settings} settings)" if advice.settings > 1 else ""
        told = f"Shown: {pair(*key(after))}{which}, which numerate recommends for {advice.recommendation.title}; "
        told += "chosen before the test."
        still = [score for score in advice.scores if score.better and score.split == choice.split]
        if still and verdict in ("better", "noise"):
            best = max(still, key=lambda score: score.size)
            told += f" On these rows, {pair(*key(best))} is significantly better than that."
        return told
    if count == 1:
        return ""
    corrected = "; p is corrected for that" if verdict != "untested" else ""
    which = f"the best of {count} pairs"
    if choice.outscored:
        which = f"the best of the significantly better ones among {count} pairs"
    told = f"Shown: {pair(*key(after))}, {which} of loss and decision on these test rows{corrected}."
    if choice.recommended is not None and verdict == "better":
        few = "gave few numbers" if choice.silent(choice.recommended) else "is not significantly better than the baseline"
        told += f" The recommended {pair(*key(choice.recommended))} {few}."
    return told


def _pool(choice: ShownPair, members: MemberScores) -> tuple[str, str]:
    """Return by how much the largest pool is better than one member, if it is, and what it costs.

    It is the pool of the loss that is shown, or if that has none, the one with the largest gain.
    """
    pools = [pool for pool in members.of(choice.split) if pool.scores[members.rules[0]].better]
    pools = [pool for pool in pools if pool.members == choice.setup.sizes(pool.label)[-1]]
    shown = [pool for pool in pools if choice.after is not None and pool.label == choice.after.label]
    if not pools:
        return "", ""
    best = max(shown or pools, key=lambda pool: pool.scores[members.rules[0]].size)
    score, one = best.scores[members.rules[0]], members.pool(best.label, best.split, 1)
    assert score.comparison is not None
    assert one is not None
    gain = score.gain_measure.difference(score.size).removeprefix("+")
    if not members.measure.higher_is_better and score.change:
        gain = size_of(score.change)
    of = "" if shown else f" of {_noun(choice.setup, best.label)}"
    changes = f"{'raises' if members.measure.higher_is_better else 'cuts'} the {members.measure.summary} by {gain}"
    told = f"A pool of {best.members} members{of} {changes} against one member ({p_equation(score.comparison.final_p)})."
    names = {"s to train": "train_seconds", "ms per row": "answer_ms"}
    times = [(what, getattr(best, name), getattr(one, name)) for what, name in names.items()]
    costs = [f"{rounded(all_of)} {what} (one: {rounded(alone)})" for what, all_of, alone in times if None not in (all_of, alone)]
    return told, f"The pool takes {listed(costs)}." if costs else ""


def _place(setup: Setup) -> str:
    """Return the column of a table, or the task."""
    return safe_text(column_of(setup) or setup.task.replace("_", " "), _NAME)


def _noun(setup: Setup, label: str) -> str:
    """Return ``cross-entropy``, ``soft labels`` or the label of a loss, and its format if it is not plain text."""
    cells = setup.cells.get(label, {})
    format = setup.format(label) if cells else PLAIN
    name = setup.without_format(label) if cells else label
    noun = "cross-entropy" if name == CROSS_ENTROPY else safe_text(name, _NAME)
    if name == "soft" or any(cell.config.get("soft") for cell in cells.values()):
        noun = "soft labels" if name == "soft" else f"soft labels ({noun})"
    return noun if format == PLAIN else f"{noun} in the {safe_text(format, _NAME)} format"


def overall_sentence(titles: Sequence[str], kind: str, summaries: Sequence[Summary], baseline: str, what: Sequence[str]) -> str:
    """Return the answer for several setups.

    ``kind`` is what they are: tasks, models, or combinations of both; ``what`` is compared: losses, formats, ..
    """
    base, count = "cross-entropy" if baseline == CROSS_ENTROPY else safe_text(baseline, _NAME), len(summaries)
    if all(summary.verdict == "untested" for summary in summaries):
        return f"Nothing could be tested against {base} on any of {count} {kind}."
    won = [safe_text(title, _NAME) for title, summary in zip(titles, summaries, strict=True) if summary.verdict == "better"]
    if not won:
        return f"No {either(what)} was significantly better than {base} on any of {count} {kind}."
    return f"A {either(what)} beat {base} on {len(won)} of {count} {kind}{f': {listed(won)}' if len(won) <= 3 else ''}."


def overall_figures(summaries: Sequence[Summary]) -> tuple[KeyFigure, ...]:
    """Return figures for several setups: how many are better, how large the changes are, how many beat the baselines."""
    verdicts = [summary.verdict for summary in summaries]
    won, lost, untested = (verdicts.count(way) for way in ("better", "worse", "untested"))
    told = [f"{lost} significantly worse" if lost else "", f"{untested} untested" if untested else ""]
    figures = [KeyFigure("Significantly better", f"{won} of {len(summaries)}", ", ".join(filter(None, told)), bool(won) or None)]
    changes = sorted(s.after.change for s in summaries if s.after is not None and s.after.change is not None)
    if changes:
        ends = dict.fromkeys(percent(end) for end in (changes[0], changes[-1]))
        note = "of the pair shown, from the baseline with greedy answers"
        figures.append(KeyFigure("Change of the score", " to ".join(ends), note))
    rated = [figure.better for summary in summaries for figure in summary.figures if figure.title == BEST_BASELINE]
    if rated:
        text, note = f"better on {rated.count(True)} of {len(rated)}", f"significantly; worse on {rated.count(False)}"
        figures.append(KeyFigure(BEST_BASELINE, text, note, True if any(rated) else None))
    return tuple(figures)
