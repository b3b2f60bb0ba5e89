"""Make every table and figure of the results again, from the scores.

    python research/pages.py                  # all pages and figures, and src/numerate/results.json
    python research/pages.py clocks boxes     # these pages alone

A page says in a comment which command makes a table, and where the table ends::

    <!-- python research/tables.py tests research/scores/tables_*.csv.xz -->
    | table | ..
    <!-- end -->

``*`` in a path means every file that fits, by name. ``research/figures.py`` lists the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import shlex
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "research"))

MARK = "<!-- python research/"
_BLOCK = re.compile(rf"({MARK}([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def pages() -> list[Path]:
    """Return the pages that have tables of the scores."""
    found = [*(ROOT / "research" / "results").glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if MARK in page.read_text(encoding="utf-8"))


def fill(text: str) -> str:
    """Return the text of a page with its tables made again."""
    return _BLOCK.sub(lambda block: f"{block[1]}{output(block[2]).strip()}\n{block[3]}", text)


def output(command: str) -> str:
    """Return what a script of this folder prints; modules remember the files that they have read."""
    name, *patterns = shlex.split(command)
    words = [word for pattern in patterns for word in _expanded(pattern)]
    printed, complaint = io.StringIO(), io.StringIO()
    try:
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            import_module(name.removesuffix(".py")).main(words)
    except SystemExit:
        raise ValueError(f"{command} failed: {complaint.getvalue().strip()}") from None
    return printed.getvalue()


def _expanded(pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
    if not found:
        raise ValueError(f"no file fits {pattern}")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    import figures
    import recommended

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="names of pages; default: everything")
    chosen = parser.parse_args(arguments).pages
    known = {page.stem: page for page in pages()}
    if unknown := [name for name in chosen if name not in known]:
        parser.error(f"{unknown[0]!r} is not known: expected some of {', '.join(known)}.")
    for name in chosen or known:
        known[name].write_text(fill(known[name].read_text(encoding="utf-8")), encoding="utf-8")
    if not chosen:
        figures.main([])
        recommended.main()


if __name__ == "__main__":
    main()
