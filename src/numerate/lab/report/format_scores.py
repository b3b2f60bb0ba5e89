"""Losses x formats: what writing numbers in another format changes, against plain text with the same loss and decision.

Differences are of the headline metric, paired by example and seed. P-values are corrected by Holm's method over the losses,
formats and splits of a decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numerate.lab.models.settings import PLAIN
from numerate.lab.report.analysis import Score, Setup, against, holm_corrected
from numerate.lab.report.answer import in_split, tested_gain
from numerate.lab.wording.decisions import pair
from numerate.lab.wording.text import listed, sentence, without_plain

_MOST_NAMED = 3  # formats that a sentence names with their figures


@dataclass(frozen=True)
class Formats:
    """Scores by loss and format."""

    formats: tuple[str, ...]  # all of them, plain text first
    losses: tuple[str, ...]  # names without their format
    # Of the headline metric; those in another format than plain are compared with plain text of the same loss.
    scores: Sequence[Score]
    labels: dict[tuple[str, str], str]  # of a loss and a format

    def cell(self, loss: str, format: str, split: str, decision: str) -> Score | None:
        """Return one of the scores; None if the loss was not run in the format."""
        key = (self.labels.get((loss, format)), split, decision)
        return next((score for score in self.scores if (score.label, score.split, score.decision) == key), None)

    @property
    def unpaired(self) -> list[str]:
        """Losses that were not run in plain text, so that nothing shows what their format changes by itself."""
        return [loss for loss in self.losses if (loss, PLAIN) not in self.labels]

    @property
    def tested(self) -> bool:
        """Whether there are enough seeds for a test."""
        return any(score.tested for score in self.scores)


def formats(setup: Setup, headline: Sequence[Score]) -> Formats | None:
    """Compare the formats of each loss with plain text; ``headline`` has the scores of the headline metric.

    None if all runs have one format.
    """
    names = {label: setup.without_format(label) for label in setup.labels}
    labels = {(name, setup.format(label)): label for label, name in names.items()}
    known = tuple(sorted({format for _, format in labels}, key=lambda format: (format != PLAIN, format)))
    if len(known) < 2:
        return None
    scores: list[Score] = []
    for decision in dict.fromkeys(score.decision for score in headline):
        mine = [score for score in headline if score.decision == decision]
        plain = {score.label: labels.get((names[score.label], PLAIN)) for score in mine}
        paired = [score for score in mine if plain[score.label] not in (None, score.label)]
        scores += holm_corrected([against(setup, score, str(plain[score.label]), decision) for score in paired])
        scores += [replace(score, comparison=None) for score in mine if score not in paired]
    return Formats(known, tuple(dict.fromkeys(names.values())), scores, labels)


def format_sentence(setup: Setup, found: Formats) -> str:
    """Return which formats are better and which are worse than plain text, on the first split; empty if there is no test."""
    alone = without_plain(found.unpaired, str(setup.baseline))
    if not found.tested or not setup.judged:
        return alone
    tested = [score for score in found.scores if score.split == setup.splits[0]]
    where = in_split(setup, setup.splits[0], ", ")
    parts = []
    for better, word in ((True, "better"), (False, "worse")):
        mine = sorted((score for score in tested if score.better is better), key=lambda score: -score.size)
        named = [f"{pair(score.label, score.decision)} ({tested_gain(score)})" for score in mine[:_MOST_NAMED]]
        rest = len(mine) - len(named)
        named += [f"{rest} more"] if rest else []
        parts += [f"significantly {word} than plain text with the same loss: {listed(named)}"] if named else []
    if not parts:
        return f"No format differs significantly from plain text with the same loss{where}. {alone}".rstrip()
    return f"{sentence('; '.join(parts))}{where}. {alone}".rstrip()
