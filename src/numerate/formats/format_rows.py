"""FormatRows: a map for data sets that writes the numbers of texts and chats in a format."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numerate.formats.number_format import NumberFormat, Which, as_format, meant_spans
from numerate.formats.patterns import NUMBER

if TYPE_CHECKING:
    from typing_extensions import Self

_ANSWERS, _PROMPTS = ("completion", "text", "answer", "response"), ("prompt", "question")


@dataclass(frozen=True)
class FormatRows:
    """Write the numbers of a row in a format, before it is tokenised: ``dataset.map(FormatRows(format))``.

    Rows are plain (``text``, or ``prompt`` and ``completion``), or chats (``messages``, or ``prompt`` and ``completion`` that are
    lists of messages). Answers are what a model is trained on: ``completion``, ``text`` and the messages of the assistant; all
    else is a prompt.

    Args:
        format: a :class:`NumberFormat`, or a kind that needs no width, such as ``"spaced"``.
        answers: which numbers of an answer are written in the format; see :meth:`NumberFormat.write_text`.
        prompts: which numbers of a prompt; None leaves prompts as they are. Operands of arithmetic should have the format of the
            answer, and be asked for in it: pass every prompt through :meth:`prompt`.
        columns: columns of answers, instead of those above.
        keep: a pattern of texts that stay as they are.
        strict: raise for numbers that do not fit; see :meth:`NumberFormat.write`.

    Examples:
        >>> rows = FormatRows(NumberFormat("padded", digits=4, decimals=0), prompts="all")
        >>> rows({"prompt": "12 + 345 =", "completion": " 357"})
        {'prompt': '0012 + 0345 =', 'completion': ' 0357'}
        >>> FormatRows("spaced")({"messages": [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "42"}]})
        {'messages': [{'role': 'user', 'content': '6 * 7?'}, {'role': 'assistant', 'content': '4 2'}]}
    """

    format: NumberFormat | str
    answers: Which = "answer"
    prompts: Which | None = None
    columns: tuple[str, ...] = ()
    keep: re.Pattern[str] | None = None
    strict: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "format", as_format(self.format))

    @classmethod
    def fit(cls, rows: Iterable[Mapping[str, Any]], kind: str, **settings: Any) -> Self:
        """Return a map whose format fits all numbers of the rows that it would write; ``settings`` are those of the class.

        Examples:
            >>> FormatRows.fit([{"prompt": "12 + 345 =", "completion": " 357"}], "padded", prompts="all").format
            NumberFormat(kind='padded', digits=(2, 3), decimals=(0, 0))
        """
        found: list[str] = []
        rewrite = cls("plain", **settings)

        def collect(text: str, numbers: Which) -> str:
            found.extend(text[start:end] for start, end in meant_spans(text, numbers, NUMBER, rewrite.keep))
            return text

        for row in rows:
            rewrite._mapped(row, collect)
        return cls(NumberFormat.fit(found, kind), **settings)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with its numbers in the format."""
        return self._mapped(row, self._written)

    def prompt(self, prompt: Any) -> Any:
        """Return a prompt, a text or a chat, as the prompts of the rows are written; use it when you ask the model."""
        return prompt if self.prompts is None else _content(prompt, lambda text: self._written(text, self.prompts or "all"))

    def _written(self, text: str, numbers: Which) -> str:
        return as_format(self.format).write_text(text, numbers, keep=self.keep, strict=self.strict)

    def _mapped(self, row: Mapping[str, Any], change: Callable[[str, Which], str]) -> dict[str, Any]:
        """Return a row with its texts changed; ``change`` gets a text, and which numbers of it are meant."""

        def changed(content: Any, numbers: Which | None) -> Any:
            return content if numbers is None else _content(content, lambda text: change(text, numbers))

        columns = [name for name in (self.columns or _ANSWERS) if row.get(name) is not None]
        if not columns and row.get("messages") is None:
            raise ValueError(
                f"the row has the columns {', '.join(map(repr, row))}: expected text, prompt and completion, or messages; name "
                "the columns of answers with columns=(...). Rows of tokens cannot be rewritten: map before tokenising."
            )
        out = {**row, **{name: changed(row[name], self.answers) for name in columns}}
        out |= {name: changed(row[name], self.prompts) for name in _PROMPTS if row.get(name) is not None}
        if row.get("messages") is not None:
            out["messages"] = [
                {**message, "content": changed(message["content"], self.answers if _is_answer(message) else self.prompts)}
                for message in row["messages"]
            ]
        return out


def _is_answer(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "assistant"


def _content(content: Any, change: Callable[[str], str]) -> Any:
    """Return a text, the parts of a message, or messages with their texts changed; anything else as it is."""
    if isinstance(content, str):
        return change(content)
    if isinstance(content, Mapping):
        return {**content, **{name: _content(content[name], change) for name in ("content", "text") if name in content}}
    return [_content(part, change) for part in content] if isinstance(content, list | tuple) else content
