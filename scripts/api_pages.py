"""The losses on ``docs/api/losses.md`` and ``docs/choosing.md``, as their files have them. Needs neither MkDocs nor torch.

The first page holds the line ``<!-- every loss -->``. In its place come a table of the registry, and for each file of
``src/numerate/losses`` its docstring, with formula and paper, and its classes. A new file is on the page by itself. The second
says of each loss what to take it for; one that its table does not have yet gets a row with what the loss says it sees.
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
_CHOICE = re.compile(r"^\| `(\w+)` \|.*$", re.MULTILINE)
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
        """Return the path under which it is documented: that of the package if the package exports it."""
        return f"numerate.{self.cls}" if self.cls in exported else f"numerate.losses.{self.module}.{self.cls}"


def listed_losses(package: Path = ROOT / "src" / "numerate") -> list[ListedLoss]:
    """Return the losses in the order of the registry: as ``losses/__init__.py`` names them, then the others by file."""
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
    """Return the text of a page with the losses in place of the mark."""
    if MARK not in markdown:
        return markdown
    losses, exported = listed_losses(package), exported_names(package)
    lines = ["| loss | what it looks at |", "|---|---|"]
    lines += [f"| [{loss.name}][{loss.path(exported)}] | {loss.sees} |" for loss in losses]
    for _, group in groupby(losses, key=lambda loss: loss.module):
        same_file = [*group]
        lines += ["", f"## {', '.join(loss.name for loss in same_file)}", "", same_file[0].about, ""]
        for loss in same_file:
            lines += [f"::: {loss.path(exported)}", "    options:", "      members: [released]", ""]
    return markdown.replace(MARK, "\n".join(lines))


def choices(markdown: str) -> list[str]:
    """Return the names in the table of losses of ``docs/choosing.md``, in its order."""
    return [row[1] for row in _CHOICE.finditer(markdown, markdown.index("## 3. The loss"))]


def with_other_losses(markdown: str, losses: Iterable[tuple[str, str]]) -> str:
    """Return ``docs/choosing.md`` with a row for each loss, by its name and what it sees, that its table does not have."""
    *_, last = _CHOICE.finditer(markdown, markdown.index("## 3. The loss"))
    known = choices(markdown)
    others = "".join(f"\n| `{name}` | {sees} | |" for name, sees in losses if name not in known)
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
