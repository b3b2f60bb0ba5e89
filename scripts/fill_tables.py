"""Write the tables of documentation pages again, each by the command that is given above it.

    python scripts/fill_tables.py docs/results/tables.md docs/results/exact.md

A page says which command makes a table, in a comment, and where the table ends::

    <!-- python scripts/results.py tests docs/results/tables_*.csv.xz -->
    | table | ..
    <!-- end -->

Commands run in the repository; ``*`` in a path means every file that fits, by name.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # where benchmarks/ is found
_BLOCK = re.compile(r"(<!-- python ((?:scripts/|-m benchmarks\.)[^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str) -> str:
    """Return the text of a page with its tables made again."""
    return _BLOCK.sub(lambda block: f"{block[1]}{output(block[2]).strip()}\n{block[3]}", text)


def output(command: str) -> str:
    """Return what a script prints."""
    name, *patterns = shlex.split(command.removeprefix("-m "))
    words = [word for pattern in patterns for word in _expanded(pattern)]
    printed, complaint = io.StringIO(), io.StringIO()
    try:
        with contextlib.chdir(ROOT), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(complaint):
            _script(name).main(words)
    except SystemExit:
        raise ValueError(f"{command} failed: {complaint.getvalue().strip()}") from None
    return printed.getvalue()


@cache
def _script(name: str) -> ModuleType:
    """Load a script, or a module of benchmarks/, once, so that tables of one page share what it has read."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(Path(name).stem, ROOT / name)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _expanded(pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    found = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
    if not found:
        raise ValueError(f"no file fits {pattern}")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", type=Path, nargs="+")
    for page in parser.parse_args(arguments).pages:
        page.write_text(fill(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
