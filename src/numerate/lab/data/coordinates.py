"""Tasks whose answers hold coordinates in a picture, each of which has a soft label of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from numerate.lab.data.base import Example, Task

if TYPE_CHECKING:
    from numerate.targets import AnswerDistribution

_WIDTH = 0.01  # of soft labels, as a share of the picture's side


class Coordinates(NamedTuple):
    """How the coordinates of an answer are written."""

    pattern: re.Pattern[str]  # matches each of them in the text of an answer, and nothing else there
    side: int  # the picture's width or height in their unit
    highest: int  # the largest that is written; the smallest is 0
    integers: bool = False  # whether they are written as integers, which formats may pad; others have one width already


class CoordinateTask(Task):
    """A task whose answers hold coordinates: each gets a bell around it, independent of the others, that ends at the picture."""

    @property
    def coordinates(self) -> Coordinates:
        """How coordinates are written."""
        raise NotImplementedError

    @property
    def formats(self) -> tuple[str, ...]:
        """Padded integers; no other coordinates."""
        return ("plain", "padded") if self.coordinates.integers else ("plain",)

    @property
    def answer_numbers(self) -> re.Pattern[str]:
        """Matches each coordinate of an answer."""
        return self.coordinates.pattern

    @property
    def soft_pattern(self) -> re.Pattern[str]:
        """Matches each coordinate of an answer."""
        return self.coordinates.pattern

    @property
    def soft_width(self) -> Mapping[str, float]:
        """One per cent of the picture's side."""
        return {"width": _WIDTH * self.coordinates.side}

    def soft_target(self, **settings: Any) -> Callable[[Example], AnswerDistribution]:
        """Return the bell around one coordinate, which is the answer of the example it gets. Bounds can only be narrower."""
        form = self.coordinates
        if settings.pop("relative", None) is not None:
            raise ValueError(
                f"an answer of the task {self.name!r} is {self.answer_is}: relative has no meaning for coordinates, set the width"
            )
        if (width := settings.get("width")) is not None and width >= form.side:
            raise ValueError(f"the width is not below {form.side}, the side of the picture in the unit of the task {self.name!r}")
        lowest, highest = settings.pop("lowest", None), settings.pop("highest", None)
        settings["lowest"] = 0 if lowest is None else max(0, lowest)
        settings["highest"] = form.highest if highest is None else min(form.highest, highest)
        from numerate.targets import Bell

        bell = Bell(**settings)
        return lambda example: bell(example.answer)

    def answers_in_words(self) -> list[str]:
        """Return nothing: answers are coordinates, and texts between them."""
        return []
