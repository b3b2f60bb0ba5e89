"""Bell: a distribution around a label that is a number."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from numerate.checks import check_choice, choices
from numerate.distribution.bell import Shape, bell_steps
from numerate.distribution.exact import Number, size
from numerate.messages import check_number
from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.notation import Notation
from numerate.targets.numerals import NUMBER


@dataclass(frozen=True)
class Bell:
    """A target: the numbers around a label, written as the label is.

    The probabilities are those of :meth:`numerate.NumberDistribution.bell`. A width of 0 gives the label alone, and so plain
    cross-entropy.

    Args:
        width: how far off is still fine, in the unit of the label.
        relative: the same as a share of the label, 0.05 for 5 %, instead of ``width``.
        shape: ``"gaussian"`` (the width is the standard deviation), ``"laplace"`` (the mean distance) or ``"uniform"`` (the
            largest distance).
        lowest: no value below this one, such as 0 for a price.
        highest: no value above this one.
        hard: weight of the label itself in a mixture with the bell, 0 to 1.
        at_most: a wider bell is represented by this many values, equally likely.

    Examples:
        >>> target = Bell(width=0.01, shape="uniform", hard=0.25)
        >>> target("84.50").texts, target("84.50").probabilities.tolist()
        (('84.49', '84.50', '84.51'), [0.25, 0.5, 0.25])
        >>> Bell(relative=0)("+1,000.0").texts
        ('+1,000.0',)
    """

    width: Number | None = None
    relative: Number | None = None
    shape: Shape = "gaussian"
    lowest: Number | None = None
    highest: Number | None = None
    hard: float = 0.0
    at_most: int = 501
    pattern: re.Pattern[str] = field(default=NUMBER, repr=False)
    """What such a label looks like in a text; see :class:`SoftNumbers`."""

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, choices(Shape))
        if (self.width is None) == (self.relative is None):
            raise ValueError(
                f"width={self.width!r} and relative={self.relative!r}: expected exactly one of them, such as relative=0.05."
            )
        size("width", self.width) if self.relative is None else size("relative", self.relative)
        check_number("hard", self.hard, least=0.0, most=1.0)

    def __call__(self, label: str) -> AnswerDistribution:
        """Return the distribution of the answers for a label such as ``"84.50"``."""
        notation = Notation.of(label)
        if size("width", self.width if self.relative is None else self.relative) == 0 or self.hard == 1:
            return AnswerDistribution.point(label)
        bounds = self.lowest, self.highest
        center = notation.value
        steps, _, weights = bell_steps(center, self.width, self.relative, self.shape, notation.decimals, *bounds, self.at_most)
        plain = notation.write(center)
        texts = [label if text == plain else text for text in map(notation.write_step, steps)]
        return AnswerDistribution(texts, weights).with_hard(label, self.hard)
