"""Texts of unknown origin in Markdown: column names, prompts and file names that must not become headings, links or HTML."""

from __future__ import annotations

import re


def inline(text: object) -> str:
    r"""Return a text for a line of prose, in one line.

    Examples:
        >>> inline("a <b> [x](javascript:y)\n# z")
        'a \\<b\\> \\[x\\](javascript:y) # z'
    """
    return re.sub(r"([\\`*\[\]<>|&])", r"\\\1", _line(text))


def code(text: object) -> str:
    """Return a text as code in a line, in as many backticks as it takes.

    Examples:
        >>> code("price"), code("a`b")
        ('`price`', '``a`b``')
    """
    line = _line(text)
    ticks = "`" * (_longest_ticks(line) + 1)
    space = " " if line.startswith("`") or line.endswith("`") or not line.strip() else ""
    return f"{ticks}{space}{line}{space}{ticks}"


def block(text: str, language: str) -> str:
    """Return a text as a block of code, in as many backticks as it takes."""
    ticks = "`" * max(3, _longest_ticks(text) + 1)
    return f"{ticks}{language}\n{text}\n{ticks}"


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _longest_ticks(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
