r"""Metrics: the score of one answer against the gold answer.

With x the answer and y the gold number:

    exact                1 if x = y
    string_match         1 if the texts are the same, ignoring case and surrounding space
    parsed               1 if there is an answer; the mean is the parse rate
    absolute_error       |x - y|
    log10_error          |l(x) - l(y)|,  l(x) = sign(x) log10(|x| + 1)
    relative_error       |x - y| / |y|                      y = 0: 0 if x = 0, else infinite
    smape                2 |x - y| / (|x| + |y|)            0 if both are 0
    within_1             1 if |x - y| <= |y| / 100          also within_0, within_5, within_10; y = 0: 1 if x = 0
    magnitude            1 if floor(log10 |x|) = floor(log10 |y|); 0 matches only 0
    sign                 1 if x and y are both positive, both negative, or both 0

    clock_accuracy       1 if both times are equal on a 12-hour face
    time_gap             |x - y| in minutes, with hours from 1 to 12: from 1:00 to 12:55 it is 11 hours and 55 minutes
    time_gap_circular    min(d, 720 - d),  d = |x - y|: from 1:00 to 12:55 it is 5 minutes

    relaxed_accuracy     1 if a number is within 5 % of y, or a text equal; also _chartqa, _qwen_vl, _lm_eval (``chartqa``)
    iou, acc_50          intersection over union of two boxes, and whether it is at least 0.5 (``boxes``)
    hmean                over the regions of one image, by position; also precision, recall (``boxes``)
    spotting_hmean       over the regions of one image, by position and text; also spotting_precision, spotting_recall

The NTIL paper reports a time gap in minutes without saying whether it wraps around: ``time_gap`` is the plain difference,
``time_gap_circular`` wraps around.

A missing answer (None) is never skipped. It scores 0 for an accuracy and the largest possible error for an error: 2 for smape,
720 and 360 for the time gaps, infinity if unbounded. Errors that can be infinite are summarized by their median.

Numbers of any length are compared exactly; an error beyond the range of a float is infinite. Floats have the value of their
repr; strings are parsed.

    METRICS["absolute_error"](gold=12, guess=EXTRACTORS["last_number"]("It is 15."))

Metrics of probabilities and samples are in ``distributions``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from numbers import Real
from typing import Any, Literal

import numpy as np

from numerate.answers.boxes import count_regions, iou
from numerate.answers.chartqa import ChartRule, relaxed_accuracy
from numerate.answers.extract import Box, Region, box, boxes, clock_time, region
from numerate.answers.numerals import as_fraction, number_of
from numerate.distribution.exact import Floats

AnswerKind = Literal["number", "text", "time", "box", "boxes", "anything"]
Summary = Literal["mean", "median"]
Formula = Callable[[Any, Any], Fraction | float]

FACE = 720
"""Minutes on a 12-hour face."""


@dataclass(frozen=True)
class Metric:
    """A named score of one answer against the gold answer.

    Examples:
        >>> error = METRICS["absolute_error"]
        >>> error(12, 15), error(12, None), error.higher_is_better
        (3.0, inf, False)
        >>> error.summarize([error(12, guess) for guess in (15, 12, None)])
        3.0
    """

    name: str
    kind: AnswerKind
    """Type of gold and guess."""

    function: Formula
    """The formula, called with gold and guess of that type."""

    higher_is_better: bool
    no_answer: float
    """The score of a missing answer."""

    summary: Summary
    unit: str
    """Empty for an accuracy."""

    description: str

    def __call__(self, gold: Any, guess: Any) -> float:
        """Return the score of one answer. A guess of another type counts as a missing answer.

        Args:
            gold: the correct answer: a number, time, box or list of regions, as a value or as text.
            guess: the answer as an extractor returns it; None if missing.
        """
        y = _read_gold(self.name, self.kind, gold)
        x = _READ[self.kind](guess)
        if x is None:
            return self.no_answer
        try:
            return float(self.function(y, x))
        except OverflowError:
            return math.inf

    def summarize(self, scores: Sequence[float] | Floats) -> float:
        """Return the mean of the scores or, for a metric that can be infinite, their median.

        The median of an even number of scores is the mean of the middle two.
        """
        if len(scores) == 0:
            raise ValueError("scores is empty: expected at least one score.")
        return float(np.mean(scores) if self.summary == "mean" else np.median(scores))


def signed_log10(x: Fraction) -> float:
    """Return ``sign(x) log10(|x| + 1)`` for a number of any size.

    Examples:
        >>> signed_log10(Fraction(99)), signed_log10(Fraction(-9)), signed_log10(Fraction(10) ** 9999)
        (2.0, -1.0, 9999.0)
    """
    top, bottom, sign = abs(x.numerator), x.denominator, -1 if x < 0 else 1
    if top < bottom << 53:
        return sign * math.log1p(top / bottom) / math.log(10)
    # The 1 is negligible, and the number may be too large for a float.
    return sign * (math.log10(top) - math.log10(bottom))


def digit_counts(x: Fraction) -> tuple[int, int]:
    """Return the number of digits before the point, and in total, without sign, point and leading zeros.

    The total of a fraction without a finite decimal form is that of its numerator and denominator.

    Examples:
        >>> [digit_counts(Fraction(text)) for text in ("-1234.50", "0.05", "007", "22/7")]
        [(4, 5), (1, 3), (1, 1), (1, 3)]
    """
    before = max(0, _order(x) or 0) + 1
    rest = x.denominator
    twos = (rest & -rest).bit_length() - 1
    rest, fives = rest >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest == 1:
        return before, before + max(twos, fives)
    return before, sum(max(0, _order(Fraction(part)) or 0) + 1 for part in (x.numerator, x.denominator))


def _equal(y: Any, x: Any) -> float:
    return float(x == y)


def _same_text(y: str, x: str) -> float:
    return float(x.strip().casefold() == y.strip().casefold())


def _there(y: Any, x: Any) -> float:
    return 1.0


def _distance(y: Fraction, x: Fraction) -> int:
    """Return |x - y| times both denominators: arithmetic of integers, several times as fast as that of fractions."""
    return abs(x.numerator * y.denominator - y.numerator * x.denominator)


def _absolute(y: Fraction, x: Fraction) -> float:
    return _distance(y, x) / (x.denominator * y.denominator)


def _log10(y: Fraction, x: Fraction) -> float:
    return abs(signed_log10(x) - signed_log10(y))


def _relative(y: Fraction, x: Fraction) -> float:
    if y == 0:
        return math.inf if x else 0.0
    return _distance(y, x) / (abs(y.numerator) * x.denominator)


def _smape(y: Fraction, x: Fraction) -> float:
    size = abs(x.numerator) * y.denominator + abs(y.numerator) * x.denominator
    return 2 * _distance(y, x) / size if size else 0.0


def _within(y: Fraction, x: Fraction, percent: int) -> float:
    return float(_distance(y, x) * 100 <= abs(y.numerator) * x.denominator * percent)


def _same_order(y: Fraction, x: Fraction) -> float:
    return float(_order(y) == _order(x))


def _order(x: Fraction) -> int | None:
    """Return floor(log10 |x|) exactly; None for 0."""
    if x == 0:
        return None
    order = math.floor(math.log10(abs(x.numerator)) - math.log10(x.denominator))
    # Rounded logarithms: that of 999...9 may be the next integer.
    while not _at_least(x, order):
        order -= 1
    while _at_least(x, order + 1):
        order += 1
    return order


def _at_least(x: Fraction, order: int) -> bool:
    """Return whether |x| >= 10**order."""
    up, down = 10 ** max(0, -order), 10 ** max(0, order)
    return bool(abs(x.numerator) * up >= x.denominator * down)


def _same_sign(y: Fraction, x: Fraction) -> float:
    return float((x.numerator > 0) == (y.numerator > 0) and (x.numerator < 0) == (y.numerator < 0))


def _time_gap(y: Fraction, x: Fraction) -> Fraction:
    return abs(_since_one(x) - _since_one(y))


def _since_one(minutes: Fraction) -> Fraction:
    return (minutes - 60) % FACE


def time_gap_circular(y: Fraction, x: Fraction) -> Fraction:
    """Return the distance between two times around a 12-hour face, in minutes."""
    return min((x - y) % FACE, (y - x) % FACE)


def _acc_50(y: Box, x: Box) -> float:
    return float(iou(y, x) >= 0.5)


def _regions(y: Sequence[Region], x: Sequence[Region], share: str, read: bool) -> float:
    value: float = getattr(count_regions(y, x, read=read), share)
    return value


def _accuracy(name: str, kind: AnswerKind, function: Formula, description: str) -> Metric:
    return Metric(name, kind, function, True, 0.0, "mean", "", description)


def _error(
    name: str,
    kind: AnswerKind,
    function: Formula,
    description: str,
    unit: str,
    most: float = math.inf,
) -> Metric:
    return Metric(name, kind, function, False, most, "median" if most == math.inf else "mean", unit, description)


_RULES: tuple[tuple[ChartRule, str], ...] = (
    ("chartqa", "pix2struct"),
    ("qwen_vl", "Qwen-VL"),
    ("lm_eval", "lm-evaluation-harness"),
)

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        _accuracy("exact", "number", _equal, "the number is the gold number"),
        _accuracy("string_match", "text", _same_text, "the text is the gold text, ignoring case and surrounding space"),
        _accuracy("parsed", "anything", _there, "there is an answer"),
        _error("absolute_error", "number", _absolute, "distance from the gold number", "that of the gold numbers"),
        _error("log10_error", "number", _log10, "distance of sign(x) log10(|x| + 1) from the gold number's", "powers of ten"),
        _error("relative_error", "number", _relative, "distance from the gold number, in units of it", "the gold number"),
        _error("smape", "number", _smape, "distance from the gold number, in units of the mean of both", "their mean size", 2.0),
        *(
            _accuracy(
                f"within_{percent}", "number", partial(_within, percent=percent), f"at most {percent} % off the gold number"
            )
            for percent in (0, 1, 5, 10)
        ),
        _accuracy("magnitude", "number", _same_order, "the first digit has the place of the gold number's"),
        _accuracy("sign", "number", _same_sign, "the sign is the gold number's"),
        _accuracy("clock_accuracy", "time", _equal, "the time on a 12-hour face is the gold time"),
        _error("time_gap", "time", _time_gap, "distance from the gold time, with hours from 1 to 12", "minutes", 720.0),
        _error("time_gap_circular", "time", time_gap_circular, "distance from the gold time around the face", "minutes", 360.0),
        _accuracy("relaxed_accuracy", "text", relaxed_accuracy, "a number within 5 % of gold, or the same text"),
        *(
            _accuracy(
                f"relaxed_accuracy_{rule}", "text", partial(relaxed_accuracy, rule=rule), f"ChartQA by the rule of {source}"
            )
            for rule, source in _RULES
        ),
        _accuracy("iou", "box", iou, "intersection over union with the gold box"),
        _accuracy("acc_50", "box", _acc_50, "intersection over union of at least 0.5 (Acc@0.5)"),
        *(
            _accuracy(f"{task}{share}", "boxes", partial(_regions, share=share, read=read), f"{share} of the regions, {basis}")
            for task, read, basis in (("", False, "by place"), ("spotting_", True, "by place and text"))
            for share in ("precision", "recall", "hmean")
        ),
    )
}
"""Metrics of single answers, by name."""


def _read_gold(name: str, kind: AnswerKind, gold: Any) -> Any:
    value = _READ[kind](gold)
    if value is None or (kind == "boxes" and not all(entry.corners for entry in value)):
        raise ValueError(
            f"gold={gold!r:.80} cannot be scored by {name!r}: expected {_EXPECTED[kind]}. Fix or remove that example."
        )
    return value


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    exact = as_fraction(value)
    if exact is None:
        return None
    # `str` raises for integers of more than 4,300 digits.
    top, bottom = Decimal(exact.numerator), Decimal(exact.denominator)
    return f"{top}" if bottom == 1 else f"{top}/{bottom}"


def _time(value: object) -> Fraction | None:
    if isinstance(value, str):
        return clock_time(value)
    minutes = as_fraction(value)
    return None if minutes is None else minutes % FACE


def _box(value: object) -> Box | None:
    if isinstance(value, str):
        return box(value)
    match region({"box": value.tolist() if isinstance(value, np.ndarray) else value}).corners:
        case (x1, y1, x2, y2):
            return x1, y1, x2, y2
    return None


def _boxes(value: object) -> tuple[Region, ...] | None:
    if isinstance(value, str):
        return boxes(value)
    return tuple(map(region, value)) if isinstance(value, Sequence) else None


def _anything(value: object) -> object:
    return None if isinstance(value, Real) and as_fraction(value) is None else value


_READ: dict[AnswerKind, Callable[[Any], Any]] = {
    "number": number_of,
    "text": _text,
    "time": _time,
    "box": _box,
    "boxes": _boxes,
    "anything": _anything,
}
_EXPECTED: dict[AnswerKind, str] = {
    "number": "a finite number, or text that is one",
    "text": "text, or a number",
    "time": "a time such as 2_55 or 2:55, or minutes after twelve as a number",
    "box": "a box: four numbers x1, y1, x2, y2, or text with them",
    "boxes": 'a list of {"box": [x1, y1, x2, y2], "text": ..} or {"quad": [x1, y1, .., x4, y4], "text": ..}, or that as JSON',
    "anything": "an answer",
}
