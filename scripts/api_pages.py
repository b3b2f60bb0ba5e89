"""The losses on ``docs/api/losses.md`` and ``docs/losses.md``, generated from their files. Needs neither MkDocs nor torch.

On the first page, the line ``<!-- every loss -->`` is replaced by a table of the registry, followed by the docstring of each file
in ``src/numerate/losses``, with formula and paper, and its classes. The second page has a table of when to use each loss; a loss
that it lacks gets a row with its attribute ``sees``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
MARK = "<!-- every loss -->"
_ROW = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)
DIRECTIVE = re.compile(r"^::: (numerate\.\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class ListedLoss:
    """A class in ``src/numerate/losses`` that has a name in the registry."""

    module: str
    name: str
    cls: str
    sees: str
    about: str  # the docstring of the file

    def path(self, exported: Iterable[str]) -> str:
        """Return the path under which the class is documented: that of the package if the package exports it."""
        return f"numerate.{self.cls}" if self.cls in exported else f"numerate.losses.{self.module}.{self.cls}"


def listed_losses(package: Path = ROOT / "src" / "numerate") -> list[ListedLoss]:
    """Return the losses in the order of the registry: as in ``losses/__init__.py``, then the others by file."""
    found = [loss for file in sorted((package / "losses").glob("*.py")) for loss in _losses_of(file)]
    order = (package / "losses" / "__init__.py").read_text(encoding="utf-8").partition("for _loss in (")[2]
    places = {loss.cls: place.start() for loss in found if (place := re.search(rf"\b{loss.cls}\b", order))}
    return sorted(found, key=lambda loss: places.get(loss.cls, len(order)))


def exported_names(package: Path = ROOT / "src" / "numerate") -> list[str]:
    """Return ``numerate.__all__``."""
    for node in ast.parse((package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{package / '__init__.py'} has no __all__: expected a list of names.")


def expanded(markdown: str, package: Path = ROOT / "src" / "numerate") -> str:
    """Return a page with the mark replaced by the losses."""
    if MARK not in markdown:
        return markdown
    losses, exported = listed_losses(package), exported_names(package)
    lines = ["| loss | what it penalizes |", "|---|---|"]
    lines += [f"| [{loss.name}][{loss.path(exported)}] | {loss.sees} |" for loss in losses]
    for _, group in groupby(losses, key=lambda loss: loss.module):
        same_file = [*group]
        lines += ["", f"## {', '.join(loss.name for loss in same_file)}", "", same_file[0].about, ""]
        for loss in same_file:
            lines += [f"::: {loss.path(exported)}", "    options:", "      members: [released]", ""]
    return markdown.replace(MARK, "\n".join(lines))


def named(markdown: str) -> list[str]:
    """Return the names in the table of ``docs/losses.md``, in its order."""
    return [row[1] for row in _ROW.finditer(markdown)]


def with_other_losses(markdown: str, losses: Iterable[tuple[str, str]]) -> str:
    """Return ``docs/losses.md`` with a row for each loss that its table lacks; ``losses`` are names and ``sees``."""
    *_, last = _ROW.finditer(markdown)
    known = named(markdown)
    others = "".join(f"\n| `{name}` | {sees} | | | |" for name, sees in losses if name not in known)
    return markdown[: last.end()] + others + markdown[last.end() :]


def _losses_of(file: Path) -> list[ListedLoss]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            texts = {
                ast.unparse(line.targets[0]): str(line.value.value)
                for line in node.body
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
            }
            if "name" in texts:
                about = ast.get_docstring(tree) or ""
                found.append(ListedLoss(file.stem, texts["name"], node.name, texts.get("sees", ""), about))
    return found
