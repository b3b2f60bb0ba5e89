"""Words and phrases that we no longer use: the field has another term, or a shorter sentence says the same."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    "benchmarks",
    "docs",
    "examples",
    "scripts",
    "src/numerate",
)
"""Files, folders and patterns whose prose is checked: Markdown text; docstrings, comments and strings of Python files."""

ALLOWED: tuple[tuple[str, str], ...] = ()
"""Places that may use a word: a path, and the match with some text around it."""


class Word(NamedTuple):
    """A pattern, what to write instead, a sentence that it catches, and one that it lets pass."""

    pattern: str
    instead: str
    caught: str
    passes: str


OLD_WORDS = (
    Word(
        r"\bbeginnings?\b(?! of (a |an |the |each )?(run|epoch|training|file|line|page)s?\b)",
        "prefix, or start",
        "each beginning of a number is a node",
        "from the beginning of a run",
    ),
    Word(r"\bhold(s|ing)? (its|their) levels?\b", "calibrated", "rows that make intervals hold their level", "hold the level"),
    Word(
        r"\bhold(s|ing)? (the|its|their) truths?\b", "contain the truth; calibrated", "intervals hold the truth", "holds the key"
    ),
    Word(r"\bpromis(e|es|ed)\b", "guarantee", "as often as they promise", "a compromise"),
    Word(r"\bmend(s|ed|ing)?\b", "fix", "it mends two weaknesses", "we recommend and amend it"),
    Word(r"\bby heart\b", "memorise", "it learns the prices by heart", "by hearing"),
    Word(r"\bin words\b", "as text", "the result in words", "ratings of 7,506 words"),
    Word(
        r"\b(an?|the|each|every|one|both|first|other|which|headline|this|that|same|some|all|no|of|by|several) measures?\b"
        r"(?! (up|out|against|it|them|that) \b)",
        "metric",
        "the first measure of decisions",
        "we measure time, and it measures memory",
    ),
    Word(r"\brivals?\b", "baseline", "three rivals", "on arrival"),
    Word(
        r"\bwhole numbers?\b", "complete number, number-level, or integer", "a distribution over whole numbers", "the whole text"
    ),
    Word(r"\btells? (nothing|something)\b", "(un)informative", "columns that tell something", "it says something"),
    Word(r"\b(tells?|told)\b(?! (apart|\w+ from)\b)", "say, report, show", "the column tells why", "hard to tell apart"),
    Word(r"\bbeyond (doubt|noise)\b", "significant", "better beyond noise", "beyond the axes"),
    Word(r"\bwithin noise\b", "not significant", "within noise of cross-entropy", "within the noise of 400 rows"),
    Word(r"\bwidth of (a|the) search\b", "beam width", "the width of the search", "the width of the kernel"),
    Word(r"\bknows? no\b", "has no, ignores, or without", "it knows no distance", "it knows nothing else"),
    Word(r"\bnothing beats\b", "remains best", "nothing beats cross-entropy", "it beats nothing"),
    Word(r"\b(does|do) not go with\b", "is not supported by", "does not go with decided numbers", "does not go without"),
    Word(r"\bsaid to be\b", "reported as", "are said to be identical", "are reported as identical"),
    Word(r"\bcomes? (this|so) far\b", "is reached", "nothing comes this far", "how far it comes"),
    Word(
        r"\bthan it is farther\b", "beats it on .. points more rows than it loses", "than it is farther", "farther from the mean"
    ),
    Word(r"\bmakes? of (it|them|distributions)\b", "respond to", "see what losses make of them", "makes one of them"),
    Word(r"\blikeliest\b", "most likely", "the likeliest token", "the most likely token"),
    Word(r"\bnearer\b", "closer", "5.1 is nearer to 5.0", "the nearest row"),
    Word(r"\b(light|heavy) ones\b", "likely and unlikely prefixes", "the light ones are thinned out", "light nodes"),
    Word(r"\bput together\b", "assembled, composed", "the number put together from digits", "put them together"),
    Word(r"\bgo(es)? on (with|to|from|helping|writing)\b", "continue", "soft labels go on helping", "it goes on"),
    Word(r"\bwritten[- ](out )gradients?\b", "analytic gradient", "a written-out gradient", "the gradient is written"),
    Word(r"\bthat there (is|are)(?=[.,;:]|$)", "available", "the settings that there are.", "so that there are two"),
    Word(r"\bway out\b", "remedy", "an error names the way out", "on the way"),
    Word(r"\b(would mean|means) waiting\b", "syncs", "reading it there would mean waiting", "the mean waiting time"),
)


def files_of(rooms: tuple[str, ...]) -> list[Path]:
    """The Markdown and Python files of some rooms."""
    found: list[Path] = []
    for room in rooms:
        paths = [ROOT / room] if (ROOT / room).exists() else sorted(ROOT.glob(room))
        parts = [part for path in paths for part in (sorted(path.rglob("*")) if path.is_dir() else [path])]
        chosen = [part for part in parts if part.suffix in (".md", ".py")]
        assert chosen, f"{room} has no files"
        found += chosen
    return found


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each piece of prose in a file, without code: the text of a page; strings and comments of a module."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        for paragraph in re.finditer(r"(?:.+\n?)+", text):
            yield text.count("\n", 0, paragraph.start()) + 1, without_code(paragraph[0])
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:  # not a key or a name
            yield node.lineno, without_code(node.value)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [(token.start[0], token.string.lstrip("# ")) for token in tokens if token.type == tokenize.COMMENT]
    for _, block in groupby(enumerate(comments), key=lambda numbered: numbered[1][0] - numbered[0]):
        lines = [comment for _, comment in block]
        yield lines[0][0], without_code(" ".join(comment for _, comment in lines))


def without_code(text: str) -> str:
    """Prose in one line, without examples, code in backticks and targets of links."""
    text = re.sub(r"^\s*(>>>|\.\.\. ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"``[^`]+``|`[^`]+`|\]\([^)\s]+\)", " ", text)
    return " ".join(text.split())


def old_words(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Path and message of each use of an old word."""
    for path in paths:
        for line, text in prose(path):
            for word in OLD_WORDS:
                for match in re.finditer(word.pattern, text, re.IGNORECASE):
                    near = text[max(match.start() - 30, 0) : match.end() + 30]
                    name = path.relative_to(ROOT).as_posix()
                    if not any(name == allowed and part in near for allowed, part in ALLOWED):
                        yield name, f"{name}:{line}: {near!r}: instead of {match[0]!r} write {word.instead}"


@pytest.mark.parametrize("word", OLD_WORDS, ids=lambda word: word.instead)
def test_patterns_are_precise(word: Word):
    assert re.search(word.pattern, word.caught, re.IGNORECASE)
    assert not re.search(word.pattern, word.passes, re.IGNORECASE)
    assert not re.search(word.pattern, word.instead, re.IGNORECASE)


def test_prose_of_files(tmp_path: Path):
    """Strings, comments that continue, and paragraphs are prose; names, code and examples are not."""
    (tmp_path / "module.py").write_text(
        '"""Two lines\nof ``code`` text.\n\n>>> rival\n"""\n# a comment that\n# goes on\nx = "rivals"\ny = f"a {x} b"  # end\n',
        encoding="utf-8",
    )
    (tmp_path / "page.md").write_text("# Title\n\nA `rival` in\n[two](rival.md) lines.\n", encoding="utf-8")
    expected = [(1, "Two lines of text."), (6, "a comment that goes on"), (9, "a"), (9, "b"), (9, "end")]
    assert sorted(prose(tmp_path / "module.py")) == expected
    assert list(prose(tmp_path / "page.md")) == [(1, "# Title"), (3, "A in [two lines.")]


def test_old_words_are_gone():
    found = [message for _, message in old_words(files_of(ROOMS))]
    assert not found, "\n".join(found)


def test_allowed_places_exist():
    for path, part in ALLOWED:
        assert any(part in text for _, text in prose(ROOT / path)), (path, part)
