"""Ratings: the values that several people gave, as a distribution."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN
from typing import Any

import numpy as np

from numerate.distribution import NumberDistribution
from numerate.distribution.exact import EXACT, NUMERAL, Number, as_list, exact_number, is_nan, written_decimals
from numerate.targets.answer_distribution import AnswerDistribution


@dataclass(frozen=True)
class Ratings:
    """A target: the share of raters that gave each value.

    A label is a list of numbers, or the text of one such as ``"[1, 2, 2]"``; None and NaN, a rater without a value, are left out.

    Args:
        step: round each rating to a multiple of this, such as 1 for whole points or 0.5 for half points; None keeps them. A text
            that is no number is the name of a ``column``: ``Ratings("ratings")``.
        decimals: decimals that every value is written with; by default the most that a rating of the label has. Set it if the
            ratings of some labels have more decimals than those of others.
        column: the column of a row that holds the ratings; :class:`SoftNumbers` and ``attach`` read it.

    Examples:
        >>> Ratings()("[1, 2, 2, 2]").texts, Ratings()([1, 2.5]).texts, Ratings(step=1)([1.5, 2.4, 2.6]).texts
        (('1', '2'), ('1.0', '2.5'), ('2', '3'))
        >>> Ratings("ratings")
        Ratings(step=None, decimals=None, column='ratings')
    """

    step: Number | None = None
    decimals: int | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.step, str) and self.column is None and not NUMERAL.fullmatch(self.step.strip()):
            object.__setattr__(self, "column", self.step)
            object.__setattr__(self, "step", None)
        if self.step is not None and exact_number("step", self.step) <= 0:
            raise ValueError(f"step={self.step!r} is out of range: expected a number > 0, such as 1; None keeps the ratings.")
        if self.decimals is not None and (isinstance(self.decimals, bool) or self.decimals not in range(1001)):
            raise ValueError(f"decimals={self.decimals!r} is out of range: expected an integer from 0 to 1000, or None.")

    def __call__(self, label: str | Iterable[Number | None]) -> AnswerDistribution:
        """Return the distribution of the ratings of a label."""
        given = [rating for rating in self._listed(label) if rating is not None and not is_nan(rating)]
        if not given:
            raise ValueError(f"label={label!r:.80} holds no rating: expected at least one number; leave such rows out.")
        values = [exact_number("label", rating) for rating in given]
        written = [written_decimals(rating, value) for rating, value in zip(given, values, strict=True)]
        if self.step is not None:
            step = exact_number("step", self.step)
            values = [EXACT.multiply(EXACT.divide(value, step).to_integral_value(ROUND_HALF_EVEN), step) for value in values]
            written = [written_decimals(self.step, step)]
        places = max(written) if self.decimals is None else self.decimals
        shares = NumberDistribution(values, np.ones(len(values)))
        return AnswerDistribution.of_numbers(shares, like=f"0.{'0' * places}" if places else "0")

    @staticmethod
    def _listed(label: Any) -> list[Any]:
        if isinstance(label, str):
            try:
                listed = json.loads(label, parse_float=str, parse_int=str)
            except ValueError:
                listed = None
            if not isinstance(listed, list):
                raise ValueError(f"label={label!r:.80} is not a list: expected the ratings as a text such as '[1, 2, 2]'.")
            return listed
        if hasattr(label, "tolist"):  # an array or a tensor
            label = label.tolist()
        return as_list("label", label)
