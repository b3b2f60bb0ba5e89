"""Say whether a comparison agrees with the loss, format and decision that :func:`numerate.recommended` names for its numbers.

The recommended pair of loss, with its format, and decision is compared with every other pair by the headline metric, paired by
example and seed. P-values are corrected by Holm's method over all pairs and splits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from numerate.lab.data import Arithmetic, Task
from numerate.lab.evaluation.decisions import GREEDY
from numerate.lab.models.names import BUILT
from numerate.lab.models.settings import PLAIN
from numerate.lab.report.analysis import Score, Setup, against, estimate, few_decide, holm_corrected
from numerate.lab.report.answer import in_split, tested_gain
from numerate.lab.report.decisions import same_rule
from numerate.lab.training.config import CROSS_ENTROPY, in_format, run_name
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.measures import mean_measure
from numerate.lab.wording.text import counted, listed, p_equation, sentence
from numerate.recommendation import Recommendation, recommended

Agreement = Literal["agrees", "contradicts", "open", "untested", "not run"]

_MOST_PAIRS = 3  # that a sentence names beside the best


@dataclass(frozen=True)
class RecommendationCheck:
    """What a comparison says about a recommendation."""

    recommendation: Recommendation  # for the kind of the setup's numbers
    # ``"agrees"``: the recommended pair is significantly better than cross-entropy with greedy answers, and its absolute errors
    # are not larger; ``"contradicts"``: another pair is significantly better than it, in range; ``"open"``: neither;
    # ``"untested"``: too few seeds, or no model is better than a constant; ``"not run"``: the recommended pair is not part of the
    # comparison.
    agreement: Agreement
    sentence: str  # the same as text; empty if there is nothing to say
    scores: Sequence[Score]  # those of all other pairs, compared with the recommended one
    pair: tuple[str, str] | None = None  # the label and decision that are compared as recommended; None if they were not run
    settings: int = 0  # number of settings with which the recommended loss was run, of which the best counts


def recommended_for(task: Task, model: str) -> Recommendation:
    """Return what is recommended for a task and a model; a format only where it was measured: for sums, from scratch."""
    best = recommended(task.number_kind)
    if best.kind == "sums" and not (isinstance(task, Arithmetic) and {*task.operations} == {"+"}):
        best = replace(best, title="exact answers", format=PLAIN)
    return best if model in BUILT else replace(best, format=PLAIN)


def check_recommendation(setup: Setup, headline: Sequence[Score]) -> RecommendationCheck | None:
    """Compare the recommended pair with all others; ``headline`` has the scores of the headline metric by decision.

    None for a task that is not known. If the recommended loss was run with several settings, the best of them counts, and
    p-values are corrected over all.
    """
    task = setup.known_task()
    if task is None:
        return None
    best = recommended_for(task, setup.model)
    name = in_format(best.loss, best.format)
    rule = same_rule(setup.decisions(), best.decision)
    ours = [score for score in headline if (_loss(setup, score.label), score.decision) == (name, rule)]
    if not ours:
        told = f"numerate recommends {pair(name, best.decision)} for {best.title}, which this comparison does not include: "
        return RecommendationCheck(best, "not run", f"{told}run it with {best.options}.", ())
    sign = 1 if setup.headline.higher_is_better else -1
    bases = sorted((s for s in ours if s.split == setup.splits[0]), key=lambda s: sign * s.interval.estimate, reverse=True)
    others = [score for score in headline if score not in ours]
    found = holm_corrected([against(setup, score, base.label, base.decision) for base in bases for score in others])
    found = found[: len(others)]  # those of the best
    chosen = (bases[0].label, bases[0].decision)
    return RecommendationCheck(best, *_agreement(setup, best, bases[0], found), found, chosen, len(bases))


def _agreement(setup: Setup, best: Recommendation, base: Score, found: Sequence[Score]) -> tuple[Agreement, str]:
    """Return the agreement and the sentence, from all other pairs compared with the recommended one."""
    tested = [score for score in found if score.tested]
    if not tested or not setup.judged:
        return "untested", ""
    plain = [score for score in tested if (_loss(setup, score.label), score.decision) == (CROSS_ENTROPY, GREEDY)]
    near, name = setup.splits[0], in_format(best.loss, best.format)
    said = name if base.label == name else f"{name} ({base.label})"
    won = sorted((score for score in tested if score.better), key=lambda s: (setup.splits.index(s.split), -s.size))
    if won and won[0].split == near:
        first, *others = won
        told = f"numerate recommends {pair(said, best.decision)} for {best.title}; here {pair(first.label, first.decision)} is "
        told += f"significantly better{in_split(setup, near, ', ')}: {tested_gain(first)}."
        others.sort(key=lambda score: score not in plain)
        named = dict.fromkeys(pair(score.label, score.decision) for score in others)
        named.pop(pair(first.label, first.decision), None)
        also = f" Also significantly better: {listed([*named], _MOST_PAIRS)}." if named else ""
        return "contradicts", f"{told}{also} Trust this result for your data."
    elsewhere = ""
    if won:
        place = sentence(in_split(setup, won[0].split))
        elsewhere = f"{place}, {pair(won[0].label, won[0].decision)} is significantly better than {pair(said, best.decision)}, "
        elsewhere += f"which numerate recommends for {best.title}: {tested_gain(won[0])}."
    beaten = [score for score in plain if score.split == near]
    if not beaten or any(score.better is not False for score in beaten):
        return "open", elsewhere
    loser, where = beaten[0], in_split(setup, near, ", ")
    assert loser.comparison is not None
    tested_by = f"{p_equation(loser.comparison.final_p)}, {counted(loser.comparison.seeds, 'seed')}"
    if larger := _larger_error(setup, base, [loser, replace(base, decision=GREEDY)]):
        pairs = f"{pair(base.label, best.decision)} over {pair(loser.label, loser.decision)} ({tested_by})"
        told = f"{sentence(setup.headline.title)}{where} favours {pairs}, but its {larger}: this does not confirm what "
        told += f"numerate recommends for {best.title}."
        return "open", f"{told} {elsewhere}".rstrip()
    pairs = f"{pair(base.label, best.decision)} is significantly better than {pair(loser.label, loser.decision)}"
    told = f"This agrees with what numerate recommends for {best.title}: {pairs}{where} ({tested_by})."
    return "agrees", f"{told} {elsewhere}".rstrip()


def _larger_error(setup: Setup, ours: Score, others: Sequence[Score]) -> str:
    """Say in which absolute error a pair loses to another, if the headline is an error; empty if in none."""
    name = "absolute_error"
    if setup.headline.higher_is_better is not False or name not in setup.examples(ours.split).measures:
        return ""
    summary = mean_measure(name)

    def errors(score: Score) -> dict[str, float]:
        plain, filled = (setup.values(score.label, ours.split, name, score.decision, filled=own) for own in (False, True))
        found = {"mean absolute error": estimate(summary, filled)}
        found["median absolute error"] = float(np.median(plain, axis=1).mean())
        return found | {"mean absolute error in the worst run": float(filled.mean(1).max())}

    mine = errors(ours)
    if not few_decide(setup.values(ours.label, ours.split, name, ours.decision, filled=True)):
        del mine["mean absolute error in the worst run"]
    for other in others:
        theirs = errors(other)
        for what in (what for what in mine if mine[what] > theirs[what]):
            against = f"against {summary.value(theirs[what])} of {pair(other.label, other.decision)}"
            return f"{what} is larger, {summary.value(mine[what])} {against}"
    return ""


def _loss(setup: Setup, label: str) -> str:
    """Return the name of a loss in ``numerate compare --loss``, with the kind of its format, whatever its label."""
    config = next(iter(setup.cells[label].values())).config
    kind = setup.format(label).partition(":")[0]  # without digits and decimals
    return run_name(str(config.get("loss", label)), (config.get("soft") or {}).get("path"), kind)
