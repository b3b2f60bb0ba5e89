"""Bell: a distribution around a label that is a number."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction

from numerate.checks import check_choice, check_number, choices
from numerate.distribution.bell_steps import EmptyBellError, Shape, bell_steps
from numerate.distribution.exact import Floats, Number, exact_number, size
from numerate.formats.patterns import NUMBER
from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.notation import Notation


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
        step: distance between the values, which are whole steps from the label: 5 if labels are multiples of 5. Default: the
            label's last decimal.

    Examples:
        >>> target = Bell(width=0.01, shape="uniform", hard=0.25)
        >>> target("84.50").texts, target("84.50").probabilities.tolist()
        (('84.49', '84.50', '84.51'), [0.25, 0.5, 0.25])
        >>> Bell(relative=0)("+1,000.0").texts
        ('+1,000.0',)
        >>> Bell(width=50, step=50, lowest=0, shape="uniform")("50").texts
        ('0', '50', '100')
    """

    width: Number | None = None
    relative: Number | None = None
    shape: Shape = "gaussian"
    lowest: Number | None = None
    highest: Number | None = None
    hard: float = 0.0
    at_most: int = 501
    step: Number | None = None
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
        check_step(self.step)

    def __call__(self, label: str) -> AnswerDistribution:
        """Return the distribution of the answers for a label such as ``"84.50"``."""
        notation = Notation.of(label)
        if size("width", self.width if self.relative is None else self.relative) == 0 or self.hard == 1:
            return AnswerDistribution.point(label)
        bounds = self.lowest, self.highest
        center = notation.value
        if self.step is None:
            steps, _, weights = bell_steps(
                center, self.width, self.relative, self.shape, notation.decimals, *bounds, self.at_most
            )
        else:
            steps, weights = self._coarse(label, notation)
        plain = notation.write(center)
        texts = [label if text == plain else text for text in notation.write_steps(steps)]
        return AnswerDistribution(texts, weights).with_hard(label, self.hard)

    def _coarse(self, label: str, notation: Notation) -> tuple[list[int], Floats]:
        """Return the values that are whole steps from the label, counted in its last decimals, and their weights."""
        center, last = Fraction(notation.value), Fraction(10) ** -notation.decimals
        step, spread = whole_step(self.step, last, label), self.width if self.relative is None else self.relative
        width = Fraction(exact_number("width", spread)) * (1 if self.relative is None else abs(center))
        ends = {"lowest": self.lowest, "highest": self.highest}
        low, high = (None if end is None else (Fraction(exact_number(name, end)) - center) / step for name, end in ends.items())
        try:
            offsets, _, weights = bell_steps(0, width / step, None, self.shape, 0, low, high, self.at_most)
        except EmptyBellError:  # said again in the unit of the label
            raise EmptyBellError(
                f"lowest={self.lowest!r:.40} and highest={self.highest!r:.40} leave no value of the bell around label="
                f"{label!r:.40}: expected bounds with a value of the bell between them. Widen the bell or the bounds."
            ) from None
        return [round((center + offset * step) / last) for offset in offsets], weights


def check_step(step: Number | None) -> None:
    """Raise unless a step is None or above 0."""
    if step is not None and size("step", step) == 0:
        raise ValueError(f"step={step!r} is out of range: expected a number > 0, such as 5 if labels are multiples of 5.")


def whole_step(step: Number | None, last: Fraction, label: str) -> Fraction:
    """Return the distance between values: ``last``, that of the label's last decimal, or a ``step`` of whole ones."""
    found = last if step is None else Fraction(exact_number("step", step))
    if found % last:
        raise ValueError(
            f"step={step!r} is no multiple of {float(last):g}, the last decimal of label={label!r:.80}: its neighbours could not "
            "be written as it is. Expected a larger step, or labels with more decimals."
        )
    return found
