"""What to train with and how to decide answers, by kind of numbers: the table of docs/results.md in code. Needs no torch.

The figures are in ``results.json``, which ``research/recommended.py`` writes from the scores.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from numerate.checks import check_choice, check_integer, choices, public_dir

__all__ = ["Recommendation", "recommended"]
__dir__ = public_dir(globals())

NumberKind = Literal["table", "raters", "sums", "words", "clock", "chart", "box"]

_FIGURES: dict[str, str] = json.loads(Path(__file__).with_name("results.json").read_text(encoding="utf-8"))
_UNMEASURED = "Nothing has been measured to be better than plain cross-entropy with greedy answers."
_PRETRAINED, _LARGEST = 100_000_000, 2_000_000_000  # parameters; pre-trained models of 135 M to 1.5 B were measured


@dataclass(frozen=True)
class Recommendation:
    """Loss, decision and format that have measured best for a kind of numbers.

    Attributes:
        kind: of the numbers.
        title: the kind as text.
        loss: as ``numerate compare --loss`` takes it: ``"ce"``, ``"soft"``, or a key of ``LOSSES``.
        decision: ``"greedy"``, or a rule of :meth:`numerate.NumberDistribution.decide`, such as ``"median"``.
        reason: what was measured, in a sentence.
        results: the section of the documentation with the figures.
        members: how many models to train on the same rows and pool, as ``numerate train --members`` takes it.
        format: how numbers are written, as ``numerate compare --format`` takes it.
    """

    kind: NumberKind
    title: str
    loss: str
    decision: str
    reason: str
    results: str
    members: int = 1
    format: str = "plain"

    @property
    def options(self) -> str:
        """Options with which ``numerate compare`` runs loss, format and decision, with one member."""
        written = "" if self.format == "plain" else f" --format {self.format}"
        return f"--loss {self.loss}{written}" + ("" if self.decision == "greedy" else f" --set decide={self.decision}")

    def __str__(self) -> str:
        decided = "give greedy answers" if self.decision == "greedy" else f"decide answers by {self.decision}"
        trained = f"train with {self.loss}" if self.members == 1 else f"train {self.members} members with {self.loss}"
        written = "" if self.format == "plain" else f" on {self.format} numbers"
        return f"For {self.title}, {trained}{written} and {decided}. {self.reason} See {self.results}."


_RECOMMENDATIONS = (
    Recommendation(
        "table",
        "tables of noisy numbers",
        "soft",
        "median",
        "Against cross-entropy with greedy answers, the mean absolute error is {tables_few} smaller on six real tables of 1,000 "
        "rows (p < 0.001), and {tables_many} on six of 10,000 rows (p ≤ 0.006), nearly all of which the median gives alone. With "
        "1,000 rows a pool of eight members has an error {tables_pool} smaller than one member (p ≤ 0.008).",
        "docs/results.md#tables",
        members=8,
    ),
    Recommendation(
        "raters",
        "averages of several ratings",
        "ce",
        "median",
        "The mean absolute error of the median is {raters_median_ce}, and {raters_median_soft} if all ten ratings are trained on "
        "(soft, p = 0.002), which pays where their distribution matters: CRPS {raters_crps_soft} instead of {raters_crps_ce} "
        "(p < 0.001).",
        "docs/results.md#raters",
    ),
    Recommendation(
        "sums",
        "sums",
        "ce",
        "greedy",
        "With a tuned learning rate no loss beats cross-entropy: {sums_ce} of sums are right with it, and {sums_others} with "
        "seven others; of products {products_ce}, and {products_others}. How the numbers of sums are written matters more: with "
        "three digits to a token {sums_plain} are right in plain text, and {sums_padded} padded (p < 0.001). Products are "
        "not to be padded: {products_plain} are right in plain text with these tokens, and {products_padded} padded (p < 0.001); "
        "with one digit to a token the mode of a pool of eight members is right in {products_members_8} %, that of one of them "
        "in {products_members_1} % (p = 0.004).",
        "docs/results.md#exact-answers",
        format="padded",
    ),
    Recommendation(
        "words",
        "worked solutions",
        "ce",
        "greedy",
        "No loss makes numbers more likely without harm to the text on both datasets that were tried, and exact answers do not "
        "differ: of SVAMP {svamp_ce} with cross-entropy and {svamp_others} with five others; of GSM8K {gsm8k_ce}, and "
        "{gsm8k_others}.",
        "docs/results.md#worked-solutions",
    ),
    Recommendation(
        "clock",
        "clock times",
        "ce",
        "mode",
        "The most probable time is right more often than the greedy one with each of five losses, in {clocks_mode} instead of "
        "{clocks_greedy} % of the pictures with cross-entropy (p < 0.001), and no loss beats cross-entropy. That of a pool of "
        "eight members is right in {clocks_members_8} %, that of one of them in {clocks_members_1} % (p = 0.012).",
        "docs/results.md#clocks",
        members=8,
    ),
    Recommendation("chart", "charts", "ce", "greedy", _UNMEASURED, "docs/results.md#limits"),
    Recommendation(
        "box",
        "boxes",
        "soft",
        "greedy",
        "With 1,000 training pictures of single shapes {boxes_few_soft} of the boxes have an IoU of at least 0.5, and "
        "{boxes_few_ce} with cross-entropy (p < 0.001); with 10,000 pictures {boxes_many_soft}, and {boxes_many_ce} (p = 0.006).",
        "docs/results.md#boxes",
    ),
)
_OF_PRETRAINED_TABLES = (
    "With four pre-trained models of 135 M to 1.5 B parameters and 1,000 rows of three datasets, the median alone cuts the "
    "mean absolute error of cross-entropy with greedy answers by {sizes_median}, and with soft labels by {sizes_soft}. "
    "Most differences between soft labels and cross-entropy, both with the median, are not significant."
)
_BY_KIND = {one.kind: one for one in _RECOMMENDATIONS}


def recommended(kind: NumberKind, *, parameters: int | None = None) -> Recommendation:
    """Return the loss, the decision and the format that have measured best for a kind of numbers, and the figures.

    Your own data may differ: ``numerate compare`` says so in its report.

    Args:
        kind: ``"table"``: noisy numbers, such as prices, measurements, durations and forecasts; ``"raters"``: averages of several
            people's ratings; ``"sums"``: exact answers, with the format of sums; ``"words"``: worked solutions of word problems;
            ``"clock"``, ``"chart"`` and ``"box"``: numbers read from pictures.
        parameters: number of parameters of your model, such as ``model.num_parameters()``. From 100 million on, the figures are
            those of pre-trained models, for kinds that were measured with several of them. Default: small models, trained from
            scratch.

    Examples:
        >>> best = recommended("table")
        >>> best.loss, best.decision, best.members, best.options
        ('soft', 'median', 8, '--loss soft --set decide=median')
        >>> print(recommended("chart"))
        For charts, train with ce and give greedy answers. Nothing has been measured to be better than plain cross-entropy \
with greedy answers. See docs/results.md#limits.
        >>> recommended("table", parameters=8_000_000_000).reason[-45:]
        ' No model of more than 2 B has been measured.'
    """
    check_choice("kind", kind, choices(NumberKind))
    best = replace(_BY_KIND[kind], reason=_BY_KIND[kind].reason.format(**_FIGURES))
    if parameters is not None:
        check_integer("parameters", parameters, "the number of parameters of a model, at least 1", least=1)
    if parameters is None or parameters < _PRETRAINED:
        return best
    if kind != "table":
        if best.format != "plain":
            best = replace(best, reason=f"{best.reason} Pre-trained models have not been measured with {best.format} numbers.")
        return replace(best, format="plain", members=1)  # neither formats nor pools of pre-trained models were measured
    reason = _OF_PRETRAINED_TABLES.format(**_FIGURES)
    if parameters > _LARGEST:
        reason += " No model of more than 2 B has been measured."
    return replace(best, reason=reason, results="docs/results.md#larger-pre-trained-models", members=1)
