"""Tasks whose answer is a time on a 12-hour face, and the times task: compute with times, as text.

It is 10_50. What time is it 45 minutes later? Answer as hour_minute, such as 2_55.       11_35
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from numerate.answers.extract import clock_time
from numerate.answers.metrics import FACE
from numerate.lab.data.base import Example, Split, Task, check_whole

if TYPE_CHECKING:
    from numerate.decode.grammar import Grammar
    from numerate.targets import AnswerDistribution

TimeSpec = tuple[int, int]  # minutes after twelve, and minutes to add

_HOUR = re.compile(r"(?<![\d_])(\d{1,2})(?=_\d\d(?![\d_]))", re.ASCII)


class TimeTask(Task):
    """A task whose answer is a time as ``hour_minute``: hours 1 to 12, minutes in two digits."""

    number_kind = "clock"
    extractor = "clock"
    measures = ("clock_accuracy", "parsed", "time_gap", "time_gap_circular")
    period = FACE

    @property
    def formats(self) -> tuple[str, ...]:
        """Padded hours, as in ``02_55``."""
        return ("plain", "padded")

    @property
    def answer_numbers(self) -> re.Pattern[str]:
        """Matches the hour; minutes have two digits anyway."""
        return _HOUR

    def number_form(self, answers: Sequence[str]) -> Grammar:
        """Return the form ``2_55``, which stands for minutes after twelve."""
        from numerate.decode.grammar import TextGrammar

        return TextGrammar("0123456789_", clock_time, most=5)

    def written(self, value: Decimal) -> str:
        """Return minutes after twelve, rounded, as ``2_55``."""
        hour, minute = divmod(round(value) % FACE, 60)
        return f"{hour or 12}_{minute:02}"

    @property
    def soft_width(self) -> Mapping[str, float]:
        """Two minutes."""
        return {"width": 2.0}

    def soft_target(self, **settings: Any) -> Callable[[Example], AnswerDistribution]:
        """Return times within some minutes of the answer, across twelve o'clock too."""
        for name in ("relative", "lowest", "highest"):
            if settings.pop(name, None) is not None:
                raise ValueError(f"an answer of the task {self.name!r} is a time, for which {name} has no meaning")
        from numerate.targets import CircularBell

        bell = CircularBell.clock(**settings)
        return lambda example: bell(example.answer)

    def answers_in_words(self) -> list[str]:
        """Return nothing: every answer is a time."""
        return []


@dataclass(frozen=True)
class Times(TimeTask):
    """Compute with times on a 12-hour face, as text.

    Training and interpolation add or subtract up to ``longest`` minutes, extrapolation up to twice as many.

    Examples:
        >>> example = Times().examples("train", 1)[0]
        >>> example.prompt, example.answer
        ('It is 12_11. What time is it 29 minutes earlier? Answer as hour_minute, such as 2_55.', '11_42')
    """

    longest: int = 90  # the most minutes in a training question, 5 to 360

    name = "times"

    def __post_init__(self) -> None:
        check_whole("longest", self.longest, 5, 360)

    def draw(self, rng: random.Random, split: Split) -> TimeSpec:
        """Draw a time, and the minutes to add."""
        low, high = (self.longest + 1, 2 * self.longest) if split == "extrapolate" else (1, self.longest)
        return rng.randrange(FACE), rng.choice((-1, 1)) * rng.randint(low, high)

    def make(self, spec: TimeSpec) -> Example:
        """Return the question and the time that it asks for."""
        start, change = spec
        when = f"{abs(change)} minute{'' if abs(change) == 1 else 's'} {'later' if change > 0 else 'earlier'}"
        question = f"It is {self.written(Decimal(start))}. What time is it {when}? Answer as hour_minute, such as 2_55."
        return Example(question, self.written(Decimal(start + change)))
