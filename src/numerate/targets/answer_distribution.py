"""AnswerDistribution: a distribution over written answers, the target of a label that is not certain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from numerate.checks import check_number
from numerate.distribution import NumberDistribution
from numerate.distribution.exact import Floats, as_list, check_masses
from numerate.targets.notation import Notation


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AnswerDistribution:
    """A distribution over texts: the ways an answer can be written, each with its probability.

    Args:
        texts: the answers, in any order; equal ones are merged, and those of probability 0 left out.
        probabilities: one finite number >= 0 per text; they are normalised to the sum 1.

    Examples:
        >>> answers = AnswerDistribution(["9", "10", "9"], [1, 2, 1])
        >>> answers.texts, answers.probabilities.tolist()
        (('9', '10'), [0.5, 0.5])
    """

    texts: tuple[str, ...]
    """Distinct, in the order given; N of them."""

    probabilities: Floats
    """``[N]``, above 0, with the sum 1; read-only."""

    def __init__(self, texts: Iterable[str], probabilities: npt.ArrayLike) -> None:
        listed = as_list("texts", texts)
        if {*map(type, listed)} != {str}:
            for text in listed:
                if not isinstance(text, str):
                    raise TypeError(f"texts holds {text!r:.80}: expected written answers; for numbers, use of_numbers.")
        masses = check_masses("probabilities", probabilities, len(listed), "text")
        kept = masses / masses.sum()
        if len({*listed}) < len(listed) or not kept.all():
            merged: dict[str, float] = {}
            for text, mass in zip(listed, kept.tolist(), strict=True):
                if mass > 0:
                    merged[text] = merged.get(text, 0.0) + mass
            listed, kept = [*merged], np.array([*merged.values()])
        kept.flags.writeable = False
        object.__setattr__(self, "texts", tuple(listed))
        object.__setattr__(self, "probabilities", kept)

    @classmethod
    def point(cls, text: str) -> AnswerDistribution:
        """Return the distribution that is certain of one text."""
        return cls([text], [1.0])

    @classmethod
    def from_pairs(cls, pairs: Any) -> AnswerDistribution:
        """Return the distribution of ``(text, probability)`` pairs, of ``{text: probability}``, or of either as JSON text.

        Examples:
            >>> AnswerDistribution.from_pairs('{"12": 0.25, "13": 0.75}').texts
            ('12', '13')
        """
        if isinstance(pairs, str):
            try:
                pairs = json.loads(pairs)
            except (ValueError, RecursionError):
                raise ValueError(
                    f'pairs={pairs!r:.80} is not JSON: expected pairs such as [["12", 0.25], ["13", 0.75]], or {{"12": 0.25}}.'
                ) from None
        if isinstance(pairs, Mapping):  # a table fills up missing keys with None
            pairs = [(text, mass) for text, mass in pairs.items() if mass is not None]
        listed = as_list("pairs", pairs)
        for pair in listed:
            if isinstance(pair, str) or not hasattr(pair, "__len__") or len(pair) != 2:
                raise ValueError(f"pairs holds {pair!r:.80}: expected (text, probability).")
        return cls([text for text, _ in listed], [mass for _, mass in listed])

    @classmethod
    def of_numbers(cls, distribution: NumberDistribution, like: str) -> AnswerDistribution:
        """Write the values of a distribution over numbers as the label ``like`` is written.

        Decimals, thousands commas, leading zeros and the power of ten are the label's; values are rounded to its decimals. The
        label's own value is written exactly as the label is.

        Examples:
            >>> numbers = NumberDistribution.bell("84.50", width=0.01, shape="uniform")
            >>> AnswerDistribution.of_numbers(numbers, like="84.50").texts
            ('84.49', '84.50', '84.51')
        """
        notation = Notation.of(like)
        plain = notation.write(notation.value)
        texts = [notation.write(value) for value in distribution.values]
        return cls([like if text == plain else text for text in texts], distribution.probabilities)

    @classmethod
    def mixed(cls, distributions: Sequence[AnswerDistribution], weights: npt.ArrayLike) -> AnswerDistribution:
        """Return the mixture: draw one of the distributions by its weight, then a text from it.

        Examples:
            >>> parts = [AnswerDistribution.point("7"), AnswerDistribution(["7", "8"], [1, 1])]
            >>> AnswerDistribution.mixed(parts, [1, 3]).probabilities
            array([0.625, 0.375])
        """
        masses = check_masses("weights", weights, len(distributions), "distribution")
        texts = [text for part in distributions for text in part.texts]
        return cls(texts, np.concatenate([w * part.probabilities for w, part in zip(masses, distributions, strict=True)]))

    def with_hard(self, label: str, weight: float) -> AnswerDistribution:
        """Return the mixture with the label alone, which gets ``weight``, 0 to 1."""
        check_number("hard", weight, least=0.0, most=1.0)
        return self if weight == 0 else AnswerDistribution.mixed([self, AnswerDistribution.point(label)], [1 - weight, weight])

    def draw(self, rng: np.random.Generator) -> str:
        """Draw a text."""
        return self.texts[draw_index(self.probabilities.cumsum(), rng)]

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        shown = ", ".join(f"{text!r}: {p:.3g}" for text, p in zip(self.texts[:4], self.probabilities, strict=False))
        return f"AnswerDistribution({shown}{f', and {len(self) - 4} more' if len(self) > 4 else ''})"


Target = Callable[[Any], AnswerDistribution]
"""From a label, as it is written or as a column of the data has it, to the distribution over answers."""


def draw_index(cumulative: Floats, rng: np.random.Generator) -> int:
    """Draw an index by its mass; ``cumulative`` are the sums of the masses."""
    place = cumulative.searchsorted(rng.random() * cumulative[-1], side="right")
    return min(int(place), len(cumulative) - 1)
