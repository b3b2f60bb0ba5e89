"""number and interval: what to answer after each prompt, and between which bounds, from the model's distribution."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numerate.checks import check_number
from numerate.decode.members import NoNumberError
from numerate.decode.model import distribution
from numerate.decode.prompts import Prompts
from numerate.distribution import NumberDistribution
from numerate.distribution.decision_rules import Cost
from numerate.distribution.exact import Number


def number(
    model: Any,
    prompts: Prompts,
    tokenizer: Any,
    metric: str | Cost = "median",
    *,
    tolerance: Number | None = None,
    relative_tolerance: Number | None = None,
    floor: Number | None = None,
    candidates: Iterable[Number] | None = None,
    trim: bool = True,
    max_no_number: float = 0.5,
    **search: Any,
) -> list[float | None]:
    """Return the number with the lowest expected cost after each prompt: the median for absolute errors, the mean for squared.

    It is ``float(answer.decide(metric, ...))`` of each ``answer`` of :func:`numerate.decode.distribution`.

    Args:
        model: as in :func:`numerate.decode.distribution`.
        prompts: as in :func:`numerate.decode.distribution`; the result is a list even for a single one.
        tokenizer: as in :func:`numerate.decode.distribution`.
        metric: "median" (absolute error), "mean" (squared error), "mode" (exact answers), "relative", "within", "within_1",
            "within_5", "within_10", or a function ``cost(prediction, truth)``; see :meth:`NumberDistribution.decide`.
        tolerance: of "within": the largest error that counts as correct.
        relative_tolerance: of "within", instead: the largest relative error that counts as correct, 0.05 for 5 %.
        floor: of "relative": the smallest number to divide by.
        candidates: of "within" and functions: the answers to choose from.
        trim: leave out stray values; see :meth:`NumberDistribution.decide`.
        max_no_number: return None where the model puts more than this share of its probability on answers that do not begin
            with a number. By default where text is more likely than a number; 1 returns a number wherever there is any.
        **search: further arguments of :func:`numerate.decode.distribution`: ``grammar``, ``format``, ``width``, ``seed``, ...

    Example::

        prices = number(model, ["carat: 0.9, cut: Ideal. price?"], tokenizer)  # [3812.0]
    """
    rule: dict[str, Any] = {"tolerance": tolerance, "relative_tolerance": relative_tolerance, "floor": floor, "trim": trim}
    rule["candidates"] = [*candidates] if isinstance(candidates, Iterable) else candidates  # an iterator is read once
    NumberDistribution.point(1).decide(metric, **rule)  # raises now if the rule is wrong
    found = _found(model, prompts, tokenizer, max_no_number, search)
    return [None if one is None else float(one.decide(metric, **rule)) for one in found]


def interval(
    model: Any,
    prompts: Prompts,
    tokenizer: Any,
    level: float = 0.9,
    *,
    max_no_number: float = 0.5,
    **search: Any,
) -> list[tuple[float, float] | None]:
    """Return the central interval of the model's distribution after each prompt, both ends included.

    It is as reliable as the model; :func:`numerate.calibration.conformal` calibrates it on rows with known answers.

    Args:
        model: as in :func:`numerate.decode.distribution`.
        prompts: as in :func:`numerate.decode.distribution`; the result is a list even for a single one.
        tokenizer: as in :func:`numerate.decode.distribution`.
        level: the probability within the interval.
        max_no_number: as in :func:`number`.
        **search: further arguments of :func:`numerate.decode.distribution`.

    Example::

        ((low, high),) = interval(model, ["carat: 0.9, cut: Ideal. price?"], tokenizer, 0.9)
    """
    NumberDistribution.point(1).interval(level)  # raises now if the level is wrong
    found = _found(model, prompts, tokenizer, max_no_number, search)
    ends = [None if one is None else one.interval(level) for one in found]
    return [None if pair is None else (float(pair[0]), float(pair[1])) for pair in ends]


def _found(
    model: Any, prompts: Prompts, tokenizer: Any, max_no_number: float, search: dict[str, Any]
) -> list[NumberDistribution | None]:
    """Return the distributions, None for prompts after which the model writes no number."""
    check_number("max_no_number", max_no_number, least=0, most=1)
    found: list[NumberDistribution | None]
    try:
        found = [*distribution(model, prompts, tokenizer, **search)]
    except NoNumberError as error:
        found = error.found
    return [None if one is None or one.no_number > max_no_number else one for one in found]
