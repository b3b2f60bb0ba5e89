"""A question that knows which parts of it are texts of cells, so that long ones can be shortened and the rest stays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

LEAST = 20
"""Characters of a text that are never cut."""


class Question(str):
    """A question about a row, and the place of each text in it that is longer than ``LEAST``.

    Examples:
        >>> question = Question.of([("title: ", "Lamp"), (", text: ", "bright " * 9)], ". price?")
        >>> question.shortened(25)
        'title: Lamp, text: bright bright bright brig. price?'
    """

    texts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, cells: Iterable[tuple[str, str]], end: str = "") -> Self:
        """Return the question that shows cells, each after the words before it, up to the words at its ``end``."""
        text, texts = "", []
        for before, cell in cells:
            text += before + cell
            if len(cell) > LEAST:
                texts.append((len(text) - len(cell), len(text)))
        question = cls(text + end)
        question.texts = tuple(texts)
        return question

    @property
    def longest(self) -> int:
        """Characters of the longest text; 0 if there is none to shorten."""
        return max((end - start for start, end in self.texts), default=0)

    def shortened(self, most: int) -> str:
        """Return the question with texts of at most ``most`` characters."""
        text, after = "", 0
        for start, end in self.texts:
            text += self[after : min(end, start + most)]
            after = end
        return text + self[after:]
