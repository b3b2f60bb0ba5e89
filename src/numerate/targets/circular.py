"""CircularBell: a distribution around a clock time or an angle, where the end of the scale is next to its start."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial

from numerate.checks import check_choice, check_number, choices
from numerate.distribution import NumberDistribution
from numerate.distribution.bell_steps import Shape
from numerate.distribution.exact import Number, exact_number, size
from numerate.formats.patterns import CLOCK, NUMBER
from numerate.targets.answer_distribution import AnswerDistribution
from numerate.targets.bell import check_step, whole_step
from numerate.targets.notation import Notation

Read = Callable[[str], tuple[Fraction, Fraction]]
Write = Callable[[Fraction, str], str]


@dataclass(frozen=True)
class CircularBell:
    """A target: the values around a label on a scale that is closed to a circle; 23:59 is two minutes from 00:01.

    Values beyond one end of the scale come in at the other, and probabilities that meet there are added. Ready-made:
    :meth:`clock` and :meth:`angle`.

    Args:
        period: the length of the whole circle.
        width: how far off is still fine, in the unit of the period; 0 gives the label alone.
        read: from a label's text to its value and the step between neighbouring values; by default a plain number, in steps
            of its last decimal.
        write: from a value in [0, period) and the label's text to the value's text; by default written as the label is.
        shape: ``"gaussian"``, ``"laplace"`` or ``"uniform"``, as for :class:`Bell`.
        hard: weight of the label itself in a mixture with the bell, 0 to 1.
        at_most: a wider bell is represented by this many values, equally likely.
        pattern: what such a label looks like in a text; see :class:`SoftNumbers`.
        step: distance between the values, which are whole steps from the label; a part of the period. Default: that of ``read``.

    Examples:
        >>> CircularBell.clock(width=1, shape="uniform")("12_00").texts
        ('11_59', '12_00', '12_01')
        >>> CircularBell.clock(width=5, step=5, shape="uniform")("12_00").texts
        ('11_55', '12_00', '12_05')
        >>> CircularBell.angle(width=1, shape="uniform")("0").texts
        ('359', '0', '1')
    """

    period: Number
    width: Number
    shape: Shape = "gaussian"
    read: Read | None = None
    write: Write | None = None
    hard: float = 0.0
    at_most: int = 501
    pattern: re.Pattern[str] = field(default=NUMBER, repr=False)
    step: Number | None = None

    def __post_init__(self) -> None:
        if size("period", self.period) == 0:
            raise ValueError(f"period={self.period!r} is out of range: expected a number > 0, such as 360 for degrees.")
        size("width", self.width)
        check_step(self.step)
        if self.step is not None and Fraction(exact_number("period", self.period)) % Fraction(exact_number("step", self.step)):
            raise ValueError(
                f"step={self.step!r} does not divide period={self.period!r}: expected a part of it, such as 5 of 720."
            )
        check_choice("shape", self.shape, choices(Shape))
        check_number("hard", self.hard, least=0.0, most=1.0)
        for name, function in (("read", self.read), ("write", self.write)):
            if function is not None and not callable(function):
                raise TypeError(f"{name}={function!r:.80} cannot be called: expected a function, or None for plain numbers.")

    @classmethod
    def clock(
        cls,
        width: Number,
        *,
        hours: int = 12,
        shape: Shape = "gaussian",
        hard: float = 0.0,
        padded: bool | None = None,
        zero: bool = False,
        at_most: int = 501,
        step: Number | None = None,
    ) -> CircularBell:
        """Return a target for clock times such as ``2_55``, ``14:55``, ``14:55:30`` and ``2:55 PM``.

        Args:
            width: how many minutes off is still fine.
            hours: 12 for a dial, with hours 1 to 12; 24 for times of day, and for AM and PM.
            shape: as for :class:`Bell`.
            hard: as for :class:`Bell`.
            padded: whether an hour is written as two digits. By default as in the label; if its hour has two digits anyway,
                padded on 24 hours and not on 12, or with AM and PM.
            zero: on 12 hours, write 0 instead of 12.
            at_most: as for :class:`Bell`.
            step: minutes between the times. Default: a minute, or a second where the label has seconds.

        Examples:
            >>> CircularBell.clock(width=2, hours=24, shape="uniform")("23:59").texts
            ('23:57', '23:58', '23:59', '00:00', '00:01')
        """
        check_choice("hours", hours, (12, 24))
        return cls(
            60 * hours,
            width,
            shape,
            partial(_read_clock, hours=hours),
            partial(_write_clock, hours=hours, padded=padded, zero=zero),
            hard,
            at_most,
            CLOCK,
            step,
        )

    @classmethod
    def angle(
        cls,
        period: Number = 360,
        *,
        width: Number,
        lowest: Number = 0,
        shape: Shape = "gaussian",
        hard: float = 0.0,
        at_most: int = 501,
        step: Number | None = None,
    ) -> CircularBell:
        """Return a target for angles, written from ``lowest`` up to ``lowest + period``: -180 for angles from -180 to 179.

        Examples:
            >>> CircularBell.angle(360, width=1, lowest=-180, shape="uniform")("179").texts
            ('178', '179', '-180')
        """
        start = Fraction(exact_number("lowest", lowest))
        write = partial(_write_number, period=Fraction(period), start=start)
        return cls(period, width, shape, None, write, hard, at_most, step=step)

    def __call__(self, label: str) -> AnswerDistribution:
        """Return the distribution of the answers for a label."""
        value, last = (self.read or _read_number)(label)
        step = whole_step(self.step, last, label)
        if size("width", self.width) == 0 or self.hard == 1:
            return AnswerDistribution.point(label)
        # Positions are whole steps from the label, so that any step is exact.
        width = Fraction(exact_number("width", self.width)) / step
        steps = NumberDistribution.bell(0, width=width, shape=self.shape, decimals=0, at_most=self.at_most)
        period, write = Fraction(exact_number("period", self.period)), self.write or _write_number
        texts = [label if not offset else write((value + Fraction(offset) * step) % period, label) for offset in steps.values]
        return AnswerDistribution(texts, steps.probabilities).with_hard(label, self.hard)


def _read_number(label: str) -> tuple[Fraction, Fraction]:
    notation = Notation.of(label)
    return Fraction(notation.value), Fraction(10) ** -notation.decimals


def _write_number(value: Fraction, like: str, period: Fraction = Fraction(0), start: Fraction = Fraction(0)) -> str:
    shifted = (value - start) % period + start if period else value
    notation = Notation.of(like)
    return notation.write_step(round(shifted * Fraction(10) ** notation.decimals))


def _read_clock(label: str, hours: int) -> tuple[Fraction, Fraction]:
    match = CLOCK.fullmatch(label)
    if match is not None:
        hour, minute, second, half = int(match[1]), int(match[3]), int(match[5] or 0), match[7]
        if minute < 60 and second < 60 and hour <= (12 if half or hours == 12 else 24) and not (half and hours == 12):
            hour = hour % 12 + (12 if half.lower().startswith("p") else 0) if half else hour % hours
            return Fraction(60 * (60 * hour + minute) + second, 60), Fraction(1, 60) if match[5] else Fraction(1)
    example = "2_55 or 2:55" if hours == 12 else "14:55, 14:55:30 or 2:55 PM"
    raise ValueError(f"label={label!r:.80} is not a time on {hours} hours: expected {example}; choose hours=12 or hours=24.")


def _write_clock(value: Fraction, like: str, hours: int, padded: bool | None, zero: bool) -> str:
    match = CLOCK.fullmatch(like)
    assert match is not None
    minutes, second = divmod(round(value * 60), 60)
    hour, minute = divmod(minutes, 60)
    half = ""
    if match[7]:
        letter = "ap"[hour >= 12]
        half = match[6] + re.sub("[AaPp]", letter.upper() if match[7][0].isupper() else letter, match[7], count=1)
    if match[7] or hours == 12:
        hour = hour % 12 or (0 if zero else 12)
    if padded is None:
        padded = len(match[1]) == 2 and (match[1][0] == "0" or (hours == 24 and not match[7]))
    written = f"{hour:02}" if padded else str(hour)
    return f"{written}{match[2]}{minute:02}{f'{match[2]}{second:02}' if match[5] else ''}{half}"
